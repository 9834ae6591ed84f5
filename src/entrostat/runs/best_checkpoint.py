"""The policy with the highest score so far, beside the newest one: `best/` of a run directory.

`best/` is a model as `final/` is; its `entrostat.json` says after which iteration, by which figure
(`save.best`), and holds the evaluation's row. It is not pruned with the checkpoints. Of equal
scores the earliest is kept.

A run that is killed goes on from its newest checkpoint, and what is best must then be what was best
at that one. So a better policy waits in `best.next/` until a checkpoint knows of it, and takes its
place then (`settle`); what was found after the checkpoint that a run goes on from is found again
(`go_back`).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from ..logs.files import atomic_directory, writing
from ..logs.lines import number
from ..logs.run import best_of

BEST, NEXT, SEAL = "best", "best.next", "entrostat.json"


class BestCheckpoint:
    def __init__(self, run: Path, figure: str) -> None:
        self._run, self._figure = run, figure
        self._parts = [one.rpartition("/")[::2] for one in figures_of(figure)]

    def consider(self, rows: Iterable[Mapping[str, Any]], save: Callable[[Path], None]) -> None:
        """Keep the policy if an evaluation's row has a higher score than any before."""
        by_set = {row["set"]: row for row in rows}
        found = [number(by_set.get(name, {}).get(key)) for name, key in self._parts]
        scores = [one for one in found if one is not None]
        if not scores or len(scores) < len(found):  # not all sets are evaluated now
            return
        score, row = fmean(scores), by_set[self._parts[0][0]]
        if not all(score > before for before in self._scores()):
            return
        seal = {"iteration": row["iteration"], "figure": self._figure, "value": score}
        write_model(self._run / NEXT, save, json.dumps(seal | {"row": dict(row)}, indent=1))

    def settle(self) -> None:
        """A checkpoint is written, which knows of what is the best now."""
        _promote(self._run)

    def _scores(self) -> list[float]:
        kept = [best_of(self._run / name) for name in (BEST, NEXT)]
        return [one["value"] for one in kept if one is not None and one["figure"] == self._figure]


def figures_of(figure: str) -> list[str]:
    return [one.strip() for one in figure.split(",") if one.strip()]


def go_back(run: Path, iteration: int) -> None:
    """Have in `best/` what was there after an iteration; before the first, nothing."""
    for name in (BEST, NEXT):
        found = best_of(run / name)
        if found is not None and (iteration == 0 or found["iteration"] > iteration):
            _remove(run / name)
    _promote(run)  # of a kill between a checkpoint and `settle`


def rewrite(run: Path, save: Callable[[Path], None]) -> None:
    """The best policy in another form, under the seal that it has."""
    write_model(run / BEST, save, (run / BEST / SEAL).read_text(encoding="utf-8"))


def write_model(place: Path, save: Callable[[Path], None], seal: str) -> None:
    """Write a model and what is known of it, whole or not at all, in the place of another."""

    def write(directory: Path) -> None:
        save(directory)
        (directory / SEAL).write_text(seal, encoding="utf-8")

    _replace(place, write)


def link_tree(source: Path, target: Path, *left_out: str) -> None:
    """A directory's files in another, without their bytes where the file system has links."""
    ignored = shutil.ignore_patterns(*left_out)
    shutil.copytree(source, target, copy_function=_link, ignore=ignored, dirs_exist_ok=True)


def _promote(run: Path) -> None:
    if best_of(run / NEXT) is None:
        return
    # links, not a move: until the disk has the new name the old one must not go
    _replace(run / BEST, lambda part: link_tree(run / NEXT, part))
    _remove(run / NEXT)


def _replace(place: Path, write: Callable[[Path], None]) -> None:
    aside = _draft(place.parent)
    with writing(place), atomic_directory(place, aside) as part:
        write(part)
    shutil.rmtree(aside, ignore_errors=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _remove(directory: Path) -> None:
    """At once, as far as anyone can see: what is half removed must not pass for a policy."""
    with writing(directory):
        draft = directory.rename(_draft(directory.parent))
    shutil.rmtree(draft, ignore_errors=True)


def _draft(parent: Path) -> Path:
    """A name that nobody can guess; what is left under such a one is removed on resume."""
    return parent / f".{secrets.token_hex(8)}.part"
