"""A controller's target: a number, a share of the first entropy, or a schedule.

0.7                        nats per token
0.8x                       .8 times the first iteration's
linear 1x 0.6x             from the first to the last iteration; also `cosine`
points 0:1x 0.3:0.8x 1:0.5 between points in time, 0 the first iteration and 1 the last
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

TargetSpec = float | str | None
_PLAIN = "an entropy in nats >= 0 (0.7) or a share of the first iteration's (0.8x)"
_CHANGING = "'linear 1x 0.6x', 'cosine 1x 0.6x', 'points 0:1x 0.5:0.8x 1:0.6x' (times from 0 to 1)"


@dataclass(frozen=True)
class Level:
    """A number of nats, or with `relative` a share of the first iteration's entropy."""

    value: float
    relative: bool = False

    def of(self, first: float) -> float:
        return self.value * first if self.relative else self.value


@dataclass(frozen=True)
class Target:
    """The target as a function of time over a run."""

    times: tuple[float, ...]  # 0 at the first iteration, 1 at the last, rising; one for each level
    levels: tuple[Level, ...]  # the target at these times; interpolated between them
    smooth: bool = False  # interpolate by half a cosine, not linearly

    @property
    def constant(self) -> bool:
        return len(self.levels) == 1

    @property
    def fixed(self) -> float | None:
        """The number of a constant target in nats; None for any other target."""
        only = self.levels[0]
        return only.value if self.constant and not only.relative else None

    def at(self, progress: float | None, first: float) -> float:
        """The target at a time, nats, given the first iteration's entropy `first`, nats.

        `progress` is 0 at the first iteration, 1 at the last; beyond `times` the target stays.
        """
        values = [level.of(first) for level in self.levels]
        if self.constant:
            return values[0]
        if progress is None:
            raise ValueError(
                "a target that changes needs `progress`, which this trainer does not report; "
                "pass it: observe(entropy=..., progress=...)"
            )
        i = bisect_right(self.times, progress) - 1
        if i < 0:
            return values[0]
        if i == len(values) - 1:
            return values[-1]
        share = (progress - self.times[i]) / (self.times[i + 1] - self.times[i])
        if self.smooth:
            share = (1 - math.cos(math.pi * share)) / 2
        return values[i] + share * (values[i + 1] - values[i])


def parse_target(spec: TargetSpec, who: str = "controller") -> Target:
    """Parse a target as a user writes it; None is the first iteration's own, `1x`.

    An error's message begins with `who`.
    """
    try:
        if is_schedule(spec):
            return parse_schedule(str(spec), _level)
        return Target((0.0,), (_level("1x" if spec is None else spec),))
    except (TypeError, ValueError):
        raise ValueError(f"{who}: target must be {_PLAIN}, or {_CHANGING}; got {spec!r}") from None


def is_schedule(value: Any) -> bool:
    return isinstance(value, str) and value.split()[:1] in (["linear"], ["cosine"], ["points"])


def parse_schedule(text: str, level: Callable[[str], Level]) -> Target:
    """Parse a schedule as a user writes it, its levels by `level`; ValueError if invalid."""
    kind, *words = text.split()
    if kind == "points":
        pairs = [word.partition(":")[::2] for word in words]
    else:
        pairs = list(zip("01", words, strict=True))
    times = tuple(float(time) for time, _ in pairs)
    rising = all(a < b for a, b in pairwise(times))
    if len(times) < 2 or not (rising and times[0] >= 0 and times[-1] <= 1):
        raise ValueError("times must rise from 0 to 1")
    return Target(times, tuple(level(each) for _, each in pairs), smooth=kind == "cosine")


def plain_target(spec: TargetSpec, who: str = "controller") -> Target:
    """`parse_target` without schedules, for the papers' controllers."""
    try:
        return Target((0.0,), (_level("1x" if spec is None else spec),))
    except (TypeError, ValueError):
        raise ValueError(
            f"{who}: target must be {_PLAIN}, got {spec!r}; schedules are for the thermostat"
        ) from None


def held_target(spec: TargetSpec, known: float | None, entropy: float) -> float:
    """The target of a controller without schedules: `known`, else from the first entropy."""
    return parse_target(spec).at(None, entropy) if known is None else known


def _level(text: str | float) -> Level:
    relative = isinstance(text, str) and text.strip().endswith("x")
    value = float(text.strip().removesuffix("x")) if isinstance(text, str) else text
    if isinstance(value, bool) or not (math.isfinite(value) and value >= 0):
        raise ValueError
    return Level(float(value), relative)
