"""Assign log lines to runs: decreasing steps begin another run unless a checkpoint explains them.

A file is cut into pieces of increasing steps. A piece that begins like a run (step 0, 1 or the
first logged step) and has other values at the same steps is another run. A piece that begins later
was resumed from a checkpoint: it belongs to the same run, and its values win at shared steps. Files
of one directory are joined by the same rule. Files of different directories belong to one run only
if a tracker gives them one name, or if their values agree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from .names import bare
from .source import finite, number, step_of

SAME, ROUNDED = 1e-3, 6e-5  # relative or absolute: consoles print fewer digits than a file has
COPIED = 1e-6  # relative: the values of a copy differ by less
DIFFERS = 0.5  # share of a metric's values that may differ; above it, the pieces belong to two runs
ENOUGH = 6  # equal values that files of two directories need to be one run
_COMPARED, _COPIES = 40, 4  # steps
_TELLS = (re.compile("entropy|reward|score", re.I), re.compile("loss|grad|length", re.I))


class Row(NamedTuple):
    """One step as a source logged it; `line` counts from 1 if the source has lines."""

    path: Path
    line: int | None
    step: Any
    values: Mapping[str, Any]
    settings: Mapping[str, str] = {}
    run: str = ""  # the source's name of the run
    fresh: bool = False  # the source marks the beginning of a run


def averaged(rows: Sequence[Row], step: int) -> Row:
    """Merge several rows of a step: the mean of finite numbers for shared metrics."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.values.items():
            found.setdefault(name, []).append(value)
    values = {
        name: math.fsum(known) / len(known) if (known := finite(map(number, each))) else each[-1]
        for name, each in found.items()
    }
    return rows[-1]._replace(step=step, values=values)


@dataclass
class Group:
    """Rows of one run: one piece of a file, and the pieces joined to it."""

    home: Path  # the directory that stands for the run's place
    run: str
    sources: list[Path] = field(default_factory=list)
    order: tuple[Any, ...] = ()  # among several files
    rows: list[Row] = field(default_factory=list)
    known: dict[int, list[Row]] = field(default_factory=dict)  # rows by step

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.rows.append(row)
            if row.path not in self.sources:
                self.sources.append(row.path)
            if (step := step_of(row.step)) is not None:
                self.known.setdefault(step, []).append(row)

    @property
    def begins(self) -> bool:
        """Whether a run begins here: the first step is at most 1, or at most the smallest gap."""
        gaps = [b - a for a, b in pairwise(sorted(self.known))]
        return bool(self.known) and min(self.known) <= max(1, min(gaps, default=1))

    def takes(self, piece: Group) -> bool:
        if piece.home != self.home and not (piece.run and piece.run == self.run):
            shared, apart = self._compared(piece, COPIED, 0.0, _COPIES)
            return shared >= ENOUGH and not apart
        return not piece.begins or not self._compared(piece, SAME, ROUNDED, _COMPARED)[1]

    def _compared(self, piece: Group, near: float, least: float, most: int) -> tuple[int, bool]:
        """Count values at shared steps, and tell whether they belong to two runs.

        Equal means within `near` of the larger, or `least`; at most `most` steps are compared.
        """
        rows = [row for row in piece.rows if step_of(row.step) in self.known]
        counts: dict[str, list[bool]] = {}
        for row in rows[:: -(-len(rows) // most) or 1]:
            mine: dict[str, float] = {}
            for other in self.known[step_of(row.step) or 0]:
                mine |= _figures(other)
            for name, value in _figures(row).items():
                if name in mine:
                    far = abs(mine[name] - value)
                    far = far > max(least, near * max(abs(mine[name]), abs(value)))
                    counts.setdefault(name, []).append(far)
        apart = any(sum(far) > DIFFERS * len(far) for far in counts.values())
        return sum(map(len, counts.values())), apart


def _figures(row: Row) -> dict[str, float]:
    """Values that distinguish two runs: entropy, reward, score; else loss, gradient, length."""
    for words in _TELLS:
        told = {k: v for name, v in row.values.items() if words.search(k := bare(name))}
        found = {name: number(value) for name, value in told.items()}
        if known := {k: v for k, v in found.items() if v is not None and math.isfinite(v)}:
            return known
    return {}


def _counted_on(rows: Iterable[Row]) -> Iterator[Row]:
    """Make steps increase across epochs if the source restarts its count in each epoch."""
    latest: dict[str, tuple[int, float, int, int]] = {}  # last step and epoch of each run
    for row in rows:
        last, before, added, gap = latest.get(row.run, (-1, math.nan, 0, 1))
        epoch = next((number(v) for k, v in row.values.items() if k.lower() == "epoch"), None)
        if (step := step_of(row.step)) is not None:
            if step < last:
                added = added + last + gap - step if epoch == before + 1 else 0
            elif -1 < last < step:
                gap = step - last
            latest[row.run] = step, before if epoch is None else epoch, added, gap
            row = row._replace(step=step + added) if added else row
        yield row


def pieces_of(rows: Iterable[Row], home: Path, order: tuple[Any, ...] = ()) -> list[Group]:
    """Cut a file's rows where steps decrease or where the source marks a new run."""
    open_: dict[str, tuple[Group, int]] = {}  # latest piece of each run, and its last step
    found: list[Group] = []
    for row in _counted_on(rows):
        piece, last = open_.get(row.run, (None, -1))
        step = step_of(row.step)
        if piece is None or row.fresh or (step is not None and step < last):
            piece, last = Group(home, row.run, order=(*order, len(found))), -1
            found.append(piece)
        piece.add([row])
        open_[row.run] = piece, last if step is None else step
    return found


def groups_of(pieces: Iterable[Group]) -> list[Group]:
    groups: list[Group] = []
    for piece in sorted(pieces, key=lambda piece: piece.order):
        same = [g for g in groups if g.run == piece.run and piece.sources[0] in g.sources]
        fits = same[-1:] or [g for g in groups if g.run == piece.run or not (g.run and piece.run)]
        fits = [group for group in fits if group.takes(piece)]
        if len(fits) == 1:  # with several candidates, the resumed run is unknown
            fits[0].add(piece.rows)
        else:
            groups.append(piece)
    return groups
