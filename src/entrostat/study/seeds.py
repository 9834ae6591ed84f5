"""Runs that differ by their seed alone, taken together: means with intervals.

The interval is Student's t at 95% over the seeds: mean +- t s / sqrt(n), s the unbiased standard
deviation. It speaks of the seeds of this job, not of other jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over `n` seeds, and half the width of its 95% interval."""

    mean: float
    half: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.half:.2f}"

    def cell(self, digits: int = 3, sign: str = "") -> str:
        reach = f" ± {self.half:.{digits}f}" if self.n > 1 else ""
        return f"{self.mean:{sign}.{digits}f}{reach}"


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95% Student interval of two values or more."""
    from scipy.stats import t

    n = len(values)
    if n < 2:
        raise ValueError(f"interval: needs two values or more, got {n}")
    half = float(t.ppf((1 + LEVEL) / 2, n - 1)) * stdev(values) / n**0.5
    return Interval(mean(values), half, n)


def spread(values: Sequence[float]) -> Interval | None:
    """`interval`; of one value an interval of no width, of none None."""
    if len(values) < 2:
        return Interval(values[0], 0.0, 1) if values else None
    return interval(values)
