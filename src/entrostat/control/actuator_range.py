"""The range of a knob and which way along it entropy rises."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Range:
    """Where a knob may be, as a position from 0, where it lowers entropy most, to 1.

    Attributes:
        low, high: its ends.
        sign: +1 where a larger value raises entropy, -1 where it lowers it.
        scale: "linear", or "log" for a knob that acts by its ratio.

    Raises:
        ValueError: low is not below high, or not above 0 on the logarithmic scale.
    """

    low: float
    high: float
    sign: Literal[1, -1] = 1
    scale: Literal["linear", "log"] = "linear"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(
                f"controller: its range needs low < high, got [{self.low}, {self.high}]"
            )
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"controller: a range of ratios needs low > 0, got {self.low}")

    def holds(self, start: float) -> float:
        """The start value, if it is in the range.

        Raises:
            ValueError: it is not.
        """
        if not self.low <= start <= self.high:
            raise ValueError(
                f"controller: start must be in [{self.low:g}, {self.high:g}], got {start}"
            )
        return start

    def position(self, value: float) -> float:
        """From 0 to 1."""
        low, high = self.low, self.high
        if self.scale == "log":
            low, high, value = math.log(low), math.log(high), math.log(value)
        x = (value - low) / (high - low)
        return x if self.sign > 0 else 1 - x

    def value(self, position: float) -> float:
        """The inverse of `position`; beyond an end it is that end."""
        x = position if self.sign > 0 else 1 - position
        if self.scale == "log":
            x = min(max(x, 0.0), 1.0)
            value = math.exp(math.log(self.low) * (1 - x) + math.log(self.high) * x)
        else:
            value = self.low + (self.high - self.low) * x
        return min(max(value, self.low), self.high)
