"""Runs that differ by their seed alone, taken together: means with intervals.

The interval is Student's t at 95% over the seeds: mean +- t s / sqrt(n), s the unbiased standard
deviation. It speaks of the seeds of this job, not of other jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from ..logs.run import Run, held_out, run_of, sets_of
from .figures import Figure, of_set, value

LEVEL = 0.95
USUAL = {
    "first": Figure("metric", "entropy/exact", "first"),
    "early": Figure("metric", "entropy/exact", "early"),
    "last": Figure("metric", "entropy/exact", "last"),
    "avg@k": Figure("evaluation", "*/avg@k"),
    "pass@k": Figure("evaluation", "*/pass@k"),
    "distinct": Figure("evaluation", "*/distinct"),
}


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


@dataclass(frozen=True)
class Group:
    """Runs of equal settings but for the seed, by name, and the figures that every run has."""

    name: str
    runs: tuple[str, ...]
    figures: Mapping[str, Interval]


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


def group_by_seed(
    groups: Mapping[str, str], runs: Mapping[str, Path | Run],
    figures: Mapping[str, Figure] | None = None,
) -> list[Group]:  # fmt: skip
    """The groups of finished runs that differ by their seed alone.

    Of one run there is a group only where figures are asked for.

    Args:
        groups: what a study calls the settings of each run, by run name.
        runs: directories of those that are done, or what was read of them, by run name.
        figures: what to show of them, by the words for it; none for entropy and scores.
    """
    read = {name: run_of(run) for name, run in runs.items()}
    compared = held_out(sets_of(run) for run in read.values())
    columns = {word: of_set(figure, compared) for word, figure in (figures or USUAL).items()}
    together: dict[str, list[str]] = {}
    for name in runs:
        together.setdefault(groups[name], []).append(name)
    return [
        Group(group, tuple(names), _figures([read[name] for name in names], columns))
        for group, names in together.items()
        if len(names) > 1 or figures
    ]


def _figures(runs: Sequence[Run], columns: Mapping[str, Figure]) -> dict[str, Interval]:
    """The figures that every run has."""
    found = {}
    for word, figure in columns.items():
        values = [v for run in runs if (v := value(run, figure)) is not None]
        if len(values) == len(runs) and (some := spread(values)) is not None:
            found[word] = some
    return found
