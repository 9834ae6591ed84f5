"""Group runs with equal settings except the seed, and summarize each group."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..logs.run import Run
from .figures import COLORS, DASHES
from .runs import Row, numbered

_OWN = ("seed", "output")  # settings in which the runs of one group may differ
# field of a row, digits shown
MEASURES = (
    ("entropy_after", 3), ("entropy_kept", 1), ("avg_after", 3), ("pass_after", 3),
    ("reward_last", 3),
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One item of a comparison: a run as a line, or seeds as a mean with a band."""

    label: str
    members: tuple[int, ...]  # indices of its runs in the comparison, in order
    color: str
    dash: Any

    @property
    def is_band(self) -> bool:
        return len(self.members) > 1

    def of(self, runs: Sequence[Run]) -> list[Run]:
        return [runs[i] for i in self.members]


def by_settings(settings: Sequence[Mapping[str, Any]]) -> list[tuple[int, ...]]:
    """Group the indices of runs whose settings are equal except `seed` and `output`, in order.

    Example:
        >>> by_settings([{"lr": 1, "seed": 0}, {"lr": 2}, {"lr": 1, "seed": 3}])
        [(0, 2), (1,)]
    """
    together: dict[str, list[int]] = {}
    for place, values in enumerate(settings):
        rest = {key: value for key, value in values.items() if key not in _OWN}
        key = json.dumps(rest, sort_keys=True, default=str)
        together.setdefault(key, []).append(place)
    return list(map(tuple, together.values()))


def common_name(names: Sequence[str]) -> str:
    """The common prefix of names, without a trailing separator, "-s" or "-seed"."""
    first, last = min(names), max(names)
    size = next(
        (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first)
    )
    return first[:size].rstrip("-_+.").removesuffix("-s").removesuffix("-seed") or first


def entries_of(runs: Sequence[Run], labels: Sequence[str]) -> list[Entry]:
    """The entries of a comparison.

    Runs are grouped only if each has settings and a seed of its own: repetitions with the same seed
    say nothing about the variation between seeds.
    """
    # runs that start from other runs' policies have another model for each seed: only their study
    # knows that they belong together
    settings = [
        {"group": run.group, "source": run.source}
        | ({"alone": i} if not run.config else {} if run.group is not None else run.config)
        for i, run in enumerate(runs)
    ]
    groups = []
    for members in by_settings(settings):
        seeds = {str(runs[i].config.get("seed")) for i in members}
        groups += [members] if len(seeds) == len(members) else [(i,) for i in members]
    groups.sort()
    methods = Counter(runs[members[0]].methods for members in groups)
    found = []
    for members in groups:
        first = runs[members[0]]
        if len(members) == 1:
            found.append(labels[members[0]])
        elif first.methods and methods[first.methods] == 1:
            found.append(first.methods)
        else:
            found.append(first.group or common_name([labels[i] for i in members]))
    return [
        Entry(label, members, *style_of(i))
        for i, (label, members) in enumerate(zip(numbered(found), groups, strict=True))
    ]


def style_of(i: int) -> tuple[str, Any]:
    return COLORS[i % len(COLORS)], DASHES[i // len(COLORS) % len(DASHES)]


@dataclass(frozen=True)
class Spread:
    label: str  # common part of its runs' names
    color: str  # its color in the figures
    runs: tuple[tuple[str, str], ...]  # label and seed of each
    # mean, minimum and maximum of each of `MEASURES`; None if a run lacks it
    ranges: tuple[tuple[float, float, float] | None, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(
            "" if some is None else "{:.{d}f} [{:.{d}f}, {:.{d}f}]".format(*some, d=digits)
            for some, (_, digits) in zip(self.ranges, MEASURES, strict=True)
        )


def spreads_of(entries: Sequence[Entry], rows: Sequence[Row], runs: Sequence[Run]) -> list[Spread]:
    return [
        Spread(
            entry.label,
            entry.color,
            tuple((rows[i].label, str(runs[i].config.get("seed", "—"))) for i in entry.members),
            tuple(_range([getattr(rows[i], name) for i in entry.members]) for name, _ in MEASURES),
        )
        for entry in entries
        if entry.is_band
    ]


def _range(values: Sequence[float | None]) -> tuple[float, float, float] | None:
    """Mean, minimum and maximum; None if a run lacks the value, which would hide a missing seed."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return sum(known) / len(known), min(known), max(known)
