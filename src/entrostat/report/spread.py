"""What several seeds of the same settings came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..logs.run import Run
from .runs import Row
from .seeds import Entry

# field of a row, digits shown
MEASURES = (
    ("entropy_after", 3), ("entropy_kept", 1), ("avg_after", 3), ("pass_after", 3),
    ("reward_last", 3),
)  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """One line of the table over seeds.

    Attributes:
        label: what its runs have in common.
        color: its colour in the figures.
        runs: label and seed of each.
        ranges: mean, lowest and highest of each of `MEASURES`; None where a run does not say.
    """

    label: str
    color: str
    runs: tuple[tuple[str, str], ...]
    ranges: tuple[tuple[float, float, float] | None, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """The ranges in words; empty where there is none."""
        return tuple(
            "" if some is None else "{:.{d}f} [{:.{d}f}, {:.{d}f}]".format(*some, d=digits)
            for some, (_, digits) in zip(self.ranges, MEASURES, strict=True)
        )


def spread_of(entry: Entry, rows: Sequence[Row], runs: Sequence[Run]) -> Spread:
    """The line of an entry of several seeds."""
    some = [rows[i] for i in entry.members]
    return Spread(
        entry.label,
        entry.color,
        tuple((rows[i].label, str(runs[i].config.get("seed", "—"))) for i in entry.members),
        tuple(_range([getattr(row, name) for row in some]) for name, _ in MEASURES),
    )


def _range(values: Sequence[float | None]) -> tuple[float, float, float] | None:
    """A figure that one run lacks would speak for fewer seeds: then there is none."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return sum(known) / len(known), min(known), max(known)
