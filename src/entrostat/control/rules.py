"""Controllers with hand-set gains: the papers' steps by the error's sign, and a PI law."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from .base import ControlState
from .target import TargetSpec, held_target, parse_target, plain_target

Flip = Literal["gradual", "immediate"]


def _check(start: float, low: float, high: float, target: TargetSpec) -> None:
    if not (0 <= low <= high and math.isfinite(high)):
        raise ValueError(f"controller: its range needs 0 <= low <= high, got [{low}, {high}]")
    if not math.isfinite(start):
        raise ValueError(f"controller: start must be a number, got {start}")
    plain_target(target)


def _clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


@dataclass(frozen=True)
class Multiplicative:
    """Multiply by `factor` while entropy is below the target, divide while above (REPO 3, App. B).

    The magnitude stays in [low, high]. With `bidirectional` the value has a sign. If the sign is
    right (+ below the target, - above) the magnitude grows, otherwise it shrinks. `flip` defines
    when a wrong sign changes:

        gradual    when the magnitude would fall below `low`; it is then `low`
        immediate  at once, so that the sign is that of target - entropy after every step

    `factor=2` is REPO's doubling controller, `factor=1.01` ADAPO's.
    """

    start: float
    low: float
    high: float
    target: TargetSpec = None
    factor: float = 2.0
    bidirectional: bool = False
    flip: Flip = "gradual"

    def __post_init__(self) -> None:
        _check(self.start, self.low, self.high, self.target)
        if self.flip not in ("gradual", "immediate"):
            raise ValueError(
                f"controller: flip must be 'gradual' or 'immediate', got {self.flip!r}"
            )
        if not (math.isfinite(self.factor) and self.factor > 1):
            raise ValueError(f"controller: factor must be above 1, got {self.factor}")
        if self.bidirectional and self.low <= 0:
            raise ValueError("controller: bidirectional needs low > 0, the magnitude at the flip")
        if not self.bidirectional and self.start < 0:
            raise ValueError(f"controller: start must be >= 0, got {self.start}")

    def init(self) -> ControlState:
        return ControlState(self.start, parse_target(self.target).fixed)

    def update(self, state: ControlState, entropy: float) -> ControlState:
        target = held_target(self.target, state.target, entropy)
        value = state.value
        if entropy != target:
            sign = math.copysign(1.0, value)
            grow = entropy < target if sign > 0 else entropy > target
            magnitude = abs(value) * self.factor if grow else abs(value) / self.factor
            flips = self.flip == "immediate" or magnitude < self.low
            if self.bidirectional and not grow and flips:
                sign = -sign
            value = sign * _clip(magnitude, self.low, self.high)
        return ControlState(value, target)


@dataclass(frozen=True)
class Additive:
    """Add or subtract `delta` per iteration, clipped to [low, high] (PAR 3.2 and 7.3).

    `rises="below"`: c + delta if entropy < target, else c - delta (adaptive entropy coefficient).
    `rises="above"`: c + delta if entropy > target, else c - delta (positive-advantage weight).
    """

    start: float
    low: float
    high: float
    delta: float
    target: TargetSpec = None
    rises: Literal["below", "above"] = "below"

    def __post_init__(self) -> None:
        _check(self.start, self.low, self.high, self.target)
        if not (math.isfinite(self.delta) and self.delta > 0):
            raise ValueError(f"controller: delta must be above 0, got {self.delta}")
        if self.rises not in ("below", "above"):
            raise ValueError(f"controller: rises must be 'below' or 'above', got {self.rises!r}")

    def init(self) -> ControlState:
        return ControlState(self.start, parse_target(self.target).fixed)

    def update(self, state: ControlState, entropy: float) -> ControlState:
        target = held_target(self.target, state.target, entropy)
        up = entropy < target if self.rises == "below" else entropy > target
        value = _clip(state.value + (self.delta if up else -self.delta), self.low, self.high)
        return replace(state, value=value, target=target)


@dataclass(frozen=True)
class PiState(ControlState):
    """`integral` is the part of the coefficient accumulated from past errors."""

    integral: float = 0.0


@dataclass(frozen=True)
class ProportionalIntegral:
    """A proportional-integral law with hand-set gains, as a baseline for the thermostat.

    With e = (target - entropy) / target, once per iteration: i <- clip(i + ki e, low, high), unless
    the coefficient is at the end of [low, high] that e pushes towards (anti-windup); c =
    clip(kp e + i, low, high). Gains are in units of the coefficient: gains tuned for REPO-R's zeta
    on one language model are wrong for another coefficient.
    """

    low: float
    high: float
    target: TargetSpec = None
    kp: float = 4.0
    ki: float = 0.5

    def __post_init__(self) -> None:
        if not (self.low <= 0 <= self.high and math.isfinite(self.high - self.low)):
            raise ValueError(
                f"controller: its range needs low <= 0 <= high, got [{self.low}, {self.high}]"
            )
        if not (self.kp >= 0 and self.ki >= 0):
            raise ValueError(f"controller: gains must be at least 0, got {self.kp} and {self.ki}")
        if plain_target(self.target).levels[0].value == 0:
            raise ValueError("controller: a target of 0 has no relative error; give one above 0")

    def init(self) -> PiState:
        return PiState(0.0, plain_target(self.target).fixed)

    def update(self, state: ControlState, entropy: float) -> PiState:
        assert isinstance(state, PiState)
        target = held_target(self.target, state.target, entropy)
        error = (target - entropy) / target if target else 0.0
        end = self.high if error > 0 else self.low
        more = 0.0 if state.value == end else self.ki * error
        integral = _clip(state.integral + more, self.low, self.high)
        value = _clip(self.kp * error + integral, self.low, self.high)
        return PiState(value, target, state.applies, integral)
