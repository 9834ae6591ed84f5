"""The thermostat: holds entropy at any target with any knob, without gains set by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .base import ControlState
from .kalman_bank import Array, Bank, agreed, apply, begin, effect, learn, wanted
from .target import TargetSpec, parse_target

# one set for every knob and policy: chosen on made-up plants (docs/thermostat_record.md)
HORIZON = 4  # iterations ahead that a move is judged by
STIFFNESS = 1.0  # a move over the whole range costs as much as the noise's part
DISSENT = 0.3  # of the bank's weight may want a smaller move,
DANGER, HARM = 0.03, 0.5  # and so much one that is smaller by more than this share of the first
# entropy: what a gain that is not known yet may cost
RATE = 0.25  # of the knob's range, an iteration
APPROACH, SHARE = 0.05, 8  # a target far away is come nearer to, an iteration, by this much of the
# first entropy or by an eighth of what is left: a gain that is not known yet does less harm


@dataclass(frozen=True)
class Range:
    """Where a coefficient may be, as a position from 0, where it lowers entropy most, to 1."""

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
        """The inverse of `position`; beyond an end it is that end."""
        value = self.low + (self.high - self.low) * position
        return min(max(value, self.low), self.high)


@dataclass(frozen=True)
class ThermostatState(ControlState):
    """The knob now (`value`), what it steers to, and all that was learnt."""

    first: float | None = None  # the first entropy seen
    progress: float | None = None  # the last progress seen, 0 to 1
    bank: Bank | None = None  # what the knob does; None until the first update
    # by how much more than its range the knob would move, in shares of the range
    wish: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        out = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return out | {"bank": None if self.bank is None else self.bank.to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ThermostatState:
        bank = data["bank"]
        return cls(**data | {"bank": None if bank is None else Bank.from_dict(bank)})


def steer(bank: Bank, goal: Array) -> tuple[Bank, Array]:
    """The bank, told where the knob goes, and by how much more [...] it would go than it can.

    `goal` [..., h] is what entropy should be before each of the iterations ahead.
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
    """Moves a knob so that entropy is at its target, by what it has learnt of the knob.

    Once per iteration a bank of Kalman filters (`kalman_bank`) learns from the entropy how strong
    the knob is, how late it acts, how entropy drifts without it and how noisy it is measured. Each
    candidate says which move would bring it to the target in the iterations ahead; the move made
    is the largest that 70% of the bank's weight would make too, as far as 97% of it expect no more
    than half of the first entropy too much: small while little is known, none where it is
    unknown which way to go. What the drift asks for is in every move, which is integral
    action; the bank sees the knob as it was, limits included, so that nothing winds up.

    Parameters:
        start: the knob at first.
        range: where it may be, and which way along it entropy rises.
        target: what to hold (`entrostat.control.target`); None takes the first entropy.
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
        """The state after an iteration whose policy had this entropy, before any update.

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
        """What was learnt, to log as `thermostat/...` (docs/metrics.md)."""
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
