"""The policy with the highest score so far: `best/` of a run directory.

`best/` is a model like `final/`; its `entrostat.json` has the iteration, the metric (`save.best`)
and the evaluation's row. It is not pruned with the checkpoints. Of equal scores the earliest is
kept.

A killed run resumes from its newest checkpoint, and `best/` must then be the best policy up to that
checkpoint. So a better policy is kept in `best.next/` until the next checkpoint is written, and
then replaces `best/` (`settle`). A resume drops the best policies after its checkpoint (`go_back`).
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
        if not scores or len(scores) < len(found):  # this evaluation does not cover all sets
            return
        score, row = fmean(scores), by_set[self._parts[0][0]]
        if not all(score > before for before in self._scores()):
            return
        seal = {"iteration": row["iteration"], "figure": self._figure, "value": score}
        write_model(self._run / NEXT, save, json.dumps(seal | {"row": dict(row)}, indent=1))

    def settle(self) -> None:
        """Promote the best policy, after a checkpoint was written."""
        _promote(self._run)

    def _scores(self) -> list[float]:
        kept = [best_of(self._run / name) for name in (BEST, NEXT)]
        return [one["value"] for one in kept if one is not None and one["figure"] == self._figure]


def figures_of(figure: str) -> list[str]:
    return [one.strip() for one in figure.split(",") if one.strip()]


def go_back(run: Path, iteration: int) -> None:
    """Remove best policies found after an iteration; 0 removes all."""
    for name in (BEST, NEXT):
        found = best_of(run / name)
        if found is not None and (iteration == 0 or found["iteration"] > iteration):
            _remove(run / name)
    _promote(run)  # in case of a kill between a checkpoint and `settle`


def rewrite(run: Path, save: Callable[[Path], None]) -> None:
    """Rewrite the best policy in another format, with the same seal."""
    write_model(run / BEST, save, (run / BEST / SEAL).read_text(encoding="utf-8"))


def write_model(place: Path, save: Callable[[Path], None], seal: str) -> None:
    """Write a model and its seal atomically, replacing another."""

    def write(directory: Path) -> None:
        save(directory)
        (directory / SEAL).write_text(seal, encoding="utf-8")

    _replace(place, write)


def link_tree(source: Path, target: Path, *left_out: str) -> None:
    """Hard-link a directory's files into another; copy them if links are not supported."""
    ignored = shutil.ignore_patterns(*left_out)
    shutil.copytree(source, target, copy_function=_link, ignore=ignored, dirs_exist_ok=True)


def _promote(run: Path) -> None:
    if best_of(run / NEXT) is None:
        return
    # links, not a move: the old name must stay until the new one is on disk
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
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _remove(directory: Path) -> None:
    """Rename, then remove: a partly removed directory must not look like a policy."""
    with writing(directory):
        draft = directory.rename(_draft(directory.parent))
    shutil.rmtree(draft, ignore_errors=True)


def _draft(parent: Path) -> Path:
    """An unpredictable name; leftovers under such names are removed on resume."""
    return parent / f".{secrets.token_hex(8)}.part"
