"""The thermostat: holds entropy at any target with any knob, without hand-set gains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .base import ControlState
from .kalman_bank import Array, Bank, agreed, apply, begin, effect, learn, wanted
from .target import TargetSpec, parse_target

# one set for every knob and policy, chosen on simulated plants (docs/thermostat_record.md)
HORIZON = 4  # iterations ahead over which a move is evaluated
STIFFNESS = 1.0  # a move over the whole range costs as much as the noise's part
DISSENT = 0.3  # share of the bank's weight that may prefer a smaller move
DANGER, HARM = 0.03, 0.5  # share that may predict an overshoot above HARM times the first entropy:
# bounds the damage of a gain that is not known yet
RATE = 0.25  # largest move per iteration, of the knob's range
APPROACH, SHARE = 0.05, 8  # a distant target is approached per iteration by APPROACH of the first
# entropy, or by 1/SHARE of the distance if larger: bounds the damage of an unknown gain


@dataclass(frozen=True)
class Range:
    """The range of a coefficient; position 0 lowers entropy most, 1 raises it most."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(
                f"controller: its range needs low < high, got [{self.low}, {self.high}]"
            )

    def position(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    def value(self, position: float) -> float:
        """The inverse of `position`, clipped to the range."""
        value = self.low + (self.high - self.low) * position
        return min(max(value, self.low), self.high)


@dataclass(frozen=True)
class ThermostatState(ControlState):
    """The knob's current value (`value`), its target, and the bank."""

    first: float | None = None  # the first entropy seen
    progress: float | None = None  # the last progress seen, 0 to 1
    bank: Bank | None = None  # the learnt effect of the knob; None until the first update
    # the part of the wanted move beyond the range, as a share of the range
    wish: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        out = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return out | {"bank": None if self.bank is None else self.bank.to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ThermostatState:
        bank = data["bank"]
        return cls(**data | {"bank": None if bank is None else Bank.from_dict(bank)})


def steer(bank: Bank, goal: Array) -> tuple[Bank, Array]:
    """The bank with the knob's next position, and the part [...] of the move beyond its range.

    `goal` [..., h] is the desired entropy before each of the iterations ahead.
    """
    now = bank.entropy[..., None]
    most = np.maximum(APPROACH * bank.scale[..., None], np.abs(goal[..., :1] - now) / SHARE)
    most = most * np.arange(1, goal.shape[-1] + 1)
    path = np.clip(goal, now - most, now + most)
    slack = HARM * bank.scale[..., None] / effect(bank, goal.shape[-1])
    move = agreed(bank, wanted(bank, path, STIFFNESS), slack, DISSENT, DANGER)
    free = bank.knob + np.clip(move, -RATE, RATE)
    to = np.clip(free, 0.0, 1.0)
    return apply(bank, to), free - to


@dataclass(frozen=True)
class Thermostat:
    """Moves a knob to hold entropy at its target, by the knob's learnt effect.

    Once per iteration a bank of Kalman filters (`kalman_bank`) learns from the entropy the knob's
    gain and delay, the drift without the knob, and the measurement noise. Each candidate computes
    the move that brings entropy to the target in the iterations ahead. The move made is the
    30th-percentile move over the bank's weight, capped so that at most 3% of the weight predicts an
    overshoot above half of the first entropy. It is small while little is known, and 0 while the
    direction is unknown. Every move compensates the estimated drift, which is integral action. The
    bank receives the knob's limited position, so that nothing winds up.

    Parameters:
        start: the knob's start value.
        range: the knob's range, and the direction in which entropy rises.
        target: entropy to hold (`entrostat.control.target`); None takes the first entropy.
    """

    start: float
    range: Range
    target: TargetSpec = None

    def __post_init__(self) -> None:
        low, high = self.range.low, self.range.high
        if not low <= self.start <= high:
            raise ValueError(f"controller: start must be in [{low:g}, {high:g}], got {self.start}")
        parse_target(self.target)

    def init(self) -> ThermostatState:
        return ThermostatState(self.start, parse_target(self.target).fixed)

    def update(
        self, state: ThermostatState, entropy: float, progress: float | None = None
    ) -> ThermostatState:
        """The state after observing this entropy, before the iteration's updates.

        `progress` is 0 at the first iteration of the run, 1 at the last.
        """
        y, x = np.asarray(float(entropy)), self.range.position(state.value)
        first = float(entropy) if state.first is None else state.first
        goal = self._goal(first, state.progress, progress)
        if state.bank is None:
            scale = max(first, goal[0], 1e-3)
            bank = begin(y, np.asarray(scale), np.asarray(x))
        else:
            bank = learn(state.bank, y)
        bank, wish = steer(bank, goal[1:])
        return ThermostatState(
            self.range.value(float(bank.knob)), float(goal[0]), state.applies, first, progress,
            bank, float(wish),
        )  # fmt: skip

    def figures(self, state: ThermostatState) -> dict[str, float]:
        """Metrics of the learnt model, as `thermostat/...` (docs/metrics.md)."""
        if state.bank is None:
            return {}
        bank = state.bank
        return {
            "gain": float(bank.gain), "drift": float(bank.change), "noise": float(bank.noise),
            "saturated": float(np.sign(state.wish)),
        }  # fmt: skip

    def _goal(self, first: float, last: float | None, progress: float | None) -> Array:
        """[1 + HORIZON]: the target now and before the iterations ahead."""
        target = parse_target(self.target)
        if target.constant or progress is None:
            return np.full(1 + HORIZON, target.at(progress, first))
        step = 0.0 if last is None else progress - last
        ahead = [min(1.0, progress + j * step) for j in range(1 + HORIZON)]
        return np.array([target.at(time, first) for time in ahead])
