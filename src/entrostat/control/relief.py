"""Relief: a slow knob takes over what a thermostat's own knob carries in the mean."""

from __future__ import annotations

from dataclasses import dataclass

from .base import ControlState, Observation
from .knob import Range

RATE = 0.005  # of the slow knob's range, an iteration at most
MEMORY = 10.0  # iterations over which the fast knob's mean is taken


@dataclass(frozen=True)
class ReliefState(ControlState):
    """The slow knob now, and where the fast one stood in the mean, from 0 to 1 of its range."""

    mean: float = 0.5


@dataclass(frozen=True)
class Relief:
    """Mid-ranging: moves a knob until the thermostat's own stands in the middle of its range.

        m <- m + (x - m) / 10          x the fast knob from 0 to 1, 1 where it raises entropy most
        z <- z + .005 * (2 m - 1)       z the slow one likewise, kept in [0, 1]

    It looks at the fast knob alone, never at the entropy: the fast one takes what the slow one does
    for drift and makes room (Allison and Isaksson, J. Process Control 8, 1998).

    Parameters:
        start: the knob at first.
        range: its range.
    """

    start: float
    range: Range

    def init(self) -> ReliefState:
        """The start value."""
        return ReliefState(self.start, None)

    def observe(self, state: ReliefState, seen: Observation) -> ReliefState:
        """The state after an iteration, whose thermostat stood at `seen.position`.

        Raises:
            ValueError: it is not given.
        """
        mean = state.mean + (seen.need("position", "controller='relief'") - state.mean) / MEMORY
        to = self.range.position(state.value) + RATE * (2 * mean - 1)
        return ReliefState(self.range.value(to), None, state.applies, mean)
