"""A task of one's own, which veRL's processes find by name: its stop is not the run's."""

from __future__ import annotations

from entrostat.tasks import Example
from entrostat.tasks.target_sum import TargetSum


class First(TargetSum):
    """`target_sum` again, of whose answers only the first digit is read: any but 1 is right."""

    name = "first"
    stop = ("+",)

    def score(self, completion: str, example: Example) -> float:
        """1 for a digit above 1, else 0."""
        return float(completion in list("23456789"))
