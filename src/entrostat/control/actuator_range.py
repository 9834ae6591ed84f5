"""The range of a coefficient that a thermostat moves."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """Where a coefficient may be, as a position from 0, where it lowers entropy most, to 1.

    Attributes:
        low, high: its ends; a larger value raises entropy.

    Raises:
        ValueError: low is not below high.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(
                f"controller: its range needs low < high, got [{self.low}, {self.high}]"
            )

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
        return (value - self.low) / (self.high - self.low)

    def value(self, position: float) -> float:
        """The inverse of `position`; beyond an end it is that end."""
        value = self.low + (self.high - self.low) * position
        return min(max(value, self.low), self.high)
