"""Controllers: move one coefficient, once per iteration, from the entropy they see.

A controller is a frozen dataclass of hyperparameters with two pure functions, `init() -> state` and
`update(state, entropy) -> state`. The coefficient is `state.value`. The entropy is the masked mean
over the full rollout batch, in nats, before any update. Without a `target` the first entropy seen
becomes the target (REPO, section 3). The range [low, high] applies from the first move on, so a
start outside it is kept until then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

Flip = Literal["gradual", "immediate"]


@dataclass(frozen=True)
class Observation:
    """What an iteration shows, before any of its updates.

    Attributes:
        entropy: masked mean of the exact entropy over the full rollout batch, nats.
        nll: masked mean of -lp0 over the same tokens, nats; None where the host does not give it.
        progress: 0 at the first iteration of the run, 1 at the last; None where unknown.
    """

    entropy: float
    nll: float | None = None
    progress: float | None = None

    def need(self, name: str, who: str) -> float:
        """The signal `name`, which `who` cannot do without.

        Raises:
            ValueError: it was not given.
        """
        value = getattr(self, name)
        if value is None:
            raise ValueError(
                f"{who} needs `{name}`, which this host does not report; "
                f"pass it: observe(entropy=..., {name}=...)"
            )
        return value


@dataclass(frozen=True)
class ControlState:
    """The coefficient now, and the entropy (nats) it steers to; None until the first update.

    `applies` is False while a method holds its coefficient back (adaptive entropy's gate).
    """

    value: float
    target: float | None
    applies: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ControlState:
        """The inverse of `to_dict`."""
        return cls(**data)


class Controller(Protocol):
    """What a method may hold to move one of its coefficients."""

    def init(self) -> ControlState:
        """The state before the first iteration."""
        ...

    def update(self, state: ControlState, entropy: float) -> ControlState:
        """The state after an iteration whose policy had this entropy (nats)."""
        ...


def _check(start: float, low: float, high: float, target: float | None) -> None:
    if not (0 <= low <= high and math.isfinite(high)):
        raise ValueError(f"controller: its range needs 0 <= low <= high, got [{low}, {high}]")
    if not math.isfinite(start):
        raise ValueError(f"controller: start must be a number, got {start}")
    if target is not None and not (math.isfinite(target) and target >= 0):
        raise ValueError(f"controller: target must be an entropy in nats >= 0, got {target}")


def _clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def at_limit(values: Sequence[float], limit: float) -> int | None:
    """How often a coefficient was at a limit, of either sign, where it spent its end there.

    Args:
        values: the coefficient, one per iteration.
        limit: the end of its range.

    Returns:
        Iterations at the limit, if more than half of the second half's are; else None.
    """
    there = [abs(value) == abs(limit) for value in values]
    half = there[len(there) // 2 :]
    return sum(there) if 2 * sum(half) > len(half) else None


@dataclass(frozen=True)
class Multiplicative:
    """Times `factor` while entropy is below the target, divided by it while above (REPO 3, App. B).

    The magnitude stays in [low, high]. With `bidirectional` the value has a sign, which pushes the
    right way where it is + below the target and - above: then the magnitude grows, otherwise it
    shrinks. `flip` says when a wrong sign changes:

        gradual    where the magnitude would leave the range at the bottom; it is then `low`
        immediate  at once, so that the sign is that of target - entropy after every step

    `factor=2` is REPO's doubling controller, `factor=1.01` ADAPO's.

    Raises:
        ValueError: unless 0 <= low <= high, factor > 1 and target >= 0; bidirectional
            needs low > 0, one-sided a start >= 0; flip is neither word.
    """

    start: float
    low: float
    high: float
    target: float | None = None
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
        """The start value."""
        return ControlState(self.start, self.target)

    def update(self, state: ControlState, entropy: float) -> ControlState:
        """One step; entropy equal to the target changes nothing."""
        target = entropy if state.target is None else state.target
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
    """Plus or minus `delta` per iteration, kept in [low, high] (PAR 3.2 and 7.3).

    `rises="below"`: c + delta if entropy < target, else c - delta (adaptive entropy coefficient).
    `rises="above"`: c + delta if entropy > target, else c - delta (positive-advantage weight).

    Raises:
        ValueError: unless 0 <= low <= high, delta > 0 and target >= 0.
    """

    start: float
    low: float
    high: float
    delta: float
    target: float | None = None
    rises: Literal["below", "above"] = "below"

    def __post_init__(self) -> None:
        _check(self.start, self.low, self.high, self.target)
        if not (math.isfinite(self.delta) and self.delta > 0):
            raise ValueError(f"controller: delta must be above 0, got {self.delta}")
        if self.rises not in ("below", "above"):
            raise ValueError(f"controller: rises must be 'below' or 'above', got {self.rises!r}")

    def init(self) -> ControlState:
        """The start value."""
        return ControlState(self.start, self.target)

    def update(self, state: ControlState, entropy: float) -> ControlState:
        """One step."""
        target = entropy if state.target is None else state.target
        up = entropy < target if self.rises == "below" else entropy > target
        value = _clip(state.value + (self.delta if up else -self.delta), self.low, self.high)
        return replace(state, value=value, target=target)
