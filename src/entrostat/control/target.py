"""What a controller is asked to hold: a number, a share of the first entropy, a schedule.

0.7                        nats per token
0.8x                       .8 times the first iteration's
linear 1x 0.6x             from the first to the last iteration; also `cosine`
points 0:1x 0.3:0.8x 1:0.5 between points in time, 0 the first iteration and 1 the last
perplexity 2.5             any of these of the perplexity of a response in the place of entropy
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Signal = Literal["entropy", "perplexity"]
TargetSpec = float | str | None
_FORMS = (
    "a number of nats (0.7), a share of the first iteration's (0.8x), 'linear 1x 0.6x', "
    "'cosine 1x 0.6x' or 'points 0:1x 0.5:0.8x 1:0.6x', all also after the word 'perplexity'"
)


@dataclass(frozen=True)
class Level:
    """A number of nats, or, with `relative`, a share of the first iteration's."""

    value: float
    relative: bool = False

    def of(self, first: float) -> float:
        """In the signal's own unit."""
        return self.value * first if self.relative else self.value


@dataclass(frozen=True)
class Target:
    """What to hold, at every time of a run.

    Attributes:
        signal: "entropy", nats per token, or "perplexity", of a response.
        times: 0 at the first iteration, 1 at the last, rising; one for each level.
        levels: what to hold then; between them it is interpolated.
        smooth: by half a cosine, not linearly.
    """

    signal: Signal
    times: tuple[float, ...]
    levels: tuple[Level, ...]
    smooth: bool = False

    @property
    def constant(self) -> bool:
        """Whether it is the same at all times."""
        return len(self.levels) == 1

    @property
    def fixed(self) -> float | None:
        """Where it is one number whatever the policy, this number."""
        only = self.levels[0]
        return only.value if self.constant and not only.relative else None

    def at(self, progress: float | None, first: float) -> float:
        """What to hold at a time.

        Args:
            progress: 0 at the first iteration, 1 at the last; before and after it stays.
            first: the signal at the first iteration.

        Raises:
            ValueError: a schedule without a progress.
        """
        values = [level.of(first) for level in self.levels]
        if self.constant:
            return values[0]
        if progress is None:
            raise ValueError(
                "a target that changes needs `progress`, which this host does not report; pass it: "
                "observe(entropy=..., progress=...)"
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


def parse_target(spec: TargetSpec) -> Target:
    """Read a target as a user writes it; None is the first iteration's own, `1x`.

    Raises:
        ValueError: it is none of the forms, a level is negative or no number, a perplexity below 1,
            or times do not rise.
    """
    found = _parsed(spec)
    if found.signal == "perplexity":
        for level in found.levels:
            if level.value < 1 and not level.relative:
                raise ValueError(
                    f"target {spec!r}: a perplexity is at least 1, got {level.value:g}; a share of "
                    f"the first one is written {level.value:g}x"
                )
    return found


def _parsed(spec: TargetSpec) -> Target:
    if spec is None:
        return Target("entropy", (0.0,), (Level(1.0, relative=True),))
    if not isinstance(spec, str):
        return Target("entropy", (0.0,), (_level(spec, spec),))
    words, signal = spec.split(), "entropy"
    if words[:1] == ["perplexity"]:
        words, signal = words[1:], "perplexity"
    kind = words[0] if words else ""
    if len(words) == 1:
        return Target(signal, (0.0,), (_level(kind, spec),))
    if kind in ("linear", "cosine") and len(words) == 3:
        ends = (_level(words[1], spec), _level(words[2], spec))
        return Target(signal, (0.0, 1.0), ends, smooth=kind == "cosine")
    if kind == "points" and len(words) > 2:
        pairs = [word.partition(":") for word in words[1:]]
        times = tuple(_number(time, spec) for time, _, _ in pairs)
        rising = all(a < b for a, b in pairwise(times))
        if not (rising and times[0] >= 0 and times[-1] <= 1):
            raise ValueError(
                f"target {spec!r}: times must rise, from 0 (the first iteration) to 1 (the last)"
            )
        return Target(signal, times, tuple(_level(level, spec) for _, _, level in pairs))
    raise ValueError(f"target {spec!r} is none of: {_FORMS}")


def plain_target(spec: TargetSpec, who: str = "controller") -> Target:
    """A target in nats or as a share, read: what the papers' own controllers take.

    Args:
        spec: as a user writes it.
        who: begins an error message.

    Raises:
        ValueError: it cannot be read, or is a schedule or another signal.
    """
    try:
        found = parse_target(spec)
    except ValueError as error:
        raise ValueError(f"{who}: {error}") from None
    if not found.constant or found.signal != "entropy":
        raise ValueError(
            f"{who}: target {spec!r}: schedules and perplexity are for the thermostat; here it is "
            "a number of nats or a share of the first entropy (0.8x)"
        )
    return found


def held_target(spec: TargetSpec, known: float | None, entropy: float) -> float:
    """The target of a controller without schedules; the first entropy that it sees decides shares.

    Args:
        spec: as a user writes it.
        known: the target so far; None before an entropy was seen.
        entropy: nats per token.
    """
    return parse_target(spec).at(None, entropy) if known is None else known


def _level(text: str | float, spec: TargetSpec) -> Level:
    relative = isinstance(text, str) and text.endswith("x")
    value = _number(text.removesuffix("x") if isinstance(text, str) else text, spec)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"target must be an entropy in nats >= 0, got {spec}")
    return Level(value, relative)


def _number(text: str | float, spec: TargetSpec) -> float:
    try:
        if isinstance(text, bool):
            raise TypeError
        return float(text)
    except (TypeError, ValueError):
        raise ValueError(f"target {spec!r} is none of: {_FORMS}") from None
