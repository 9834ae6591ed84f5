"""What several seeds of the same settings came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..logs.run import Run
from .runs import Row
from .seeds import Entry


@dataclass(frozen=True)
class Spread:
    """One line of the table over seeds.

    Attributes:
        label: what its runs have in common.
        color: its colour in the figures.
        runs: label and seed of each.
        cells: mean with lowest and highest of entropy at the end, entropy kept, avg@k, pass@k and
            mean reward; empty where a run does not say.
    """

    label: str
    color: str
    runs: tuple[tuple[str, str], ...]
    cells: tuple[str, ...]


def spread_of(entry: Entry, rows: Sequence[Row], runs: Sequence[Run]) -> Spread:
    """The line of an entry of several seeds."""
    some = [rows[i] for i in entry.members]
    columns = (
        ([row.entropy_after for row in some], 3),
        ([row.entropy_kept for row in some], 1),
        ([row.avg_after for row in some], 3),
        ([row.pass_after for row in some], 3),
        ([row.reward_last for row in some], 3),
    )
    return Spread(
        entry.label,
        entry.color,
        tuple((rows[i].label, str(runs[i].config.get("seed", "—"))) for i in entry.members),
        tuple(_cell(values, digits) for values, digits in columns),
    )


def _cell(values: Sequence[float | None], digits: int) -> str:
    """A figure that one run lacks would speak for fewer seeds: then there is none."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return ""
    mean = sum(known) / len(known)
    return f"{mean:.{digits}f} [{min(known):.{digits}f}, {max(known):.{digits}f}]"
