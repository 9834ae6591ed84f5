"""What a policy is asked: a task's split by name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._names import unknown
from ..tasks import Task, make_task, task_class
from ..tasks.rows import SUFFIXES
from .settings import ENDLESS


@dataclass(frozen=True)
class ProblemSet:
    """Problems of one split of a task."""

    name: str  # NAME/SPLIT, as results call it; of a bare file, all of which is asked, its own
    task: Task
    split: str
    options: Mapping[str, Any] = field(default_factory=dict)  # the task's own parameters, as given

    @property
    def task_name(self) -> str:
        return self.name.removesuffix(f"/{self.split}")

    @property
    def file(self) -> str:
        return re.sub(r"[^\w.+=-]+", "_", self.name) + ".jsonl"

    def count(self, most: int | None) -> int:
        """Problems to ask: all, or the first `most`; `ENDLESS` where there is no end."""
        size = self.task.size(self.split)
        if size is None:
            return ENDLESS if most is None else most
        return size if most is None else min(size, most)


def problem_sets(names: Iterable[str], options: Mapping[str, Any]) -> list[ProblemSet]:
    """The sets that names of tasks mean; `options` are parameters of the tasks.

    NAME is every split of a task but the first, which is trained on, or its only one. NAME/SPLIT is
    that split. A bare file is all of it: `FILE.jsonl/test` is the part that training holds out.
    """
    sets: list[ProblemSet] = []
    for name in names:
        called, split = name, ""
        if "/" in name and not _is_file(name):
            called, _, split = name.rpartition("/")
        given = dict(options)
        if _is_file(name) and "test" in inspect.signature(task_class(name)).parameters:
            given.setdefault("test", 0.0)
        task = make_task(called, **given)
        if split and split not in task.splits:
            raise ValueError(unknown(f"split of task {called!r}", split, task.splits))
        for one in (split,) if split else task.splits[1:] or task.splits:
            whole = _is_file(name) and not split and len(task.splits) == 1
            sets.append(ProblemSet(called if whole else f"{called}/{one}", task, one, given))
    _check(sets)
    return sets


def _is_file(name: str) -> bool:
    """Whether it is a data file, alone or as NAME:PATH, or a directory as NAME:PATH: no split."""
    place = name.partition(":")[2]
    return name.endswith(SUFFIXES) or (bool(place) and Path(place).exists())


def of_task(settings: Mapping[str, Any]) -> list[ProblemSet]:
    """The sets of a run's own task: every split but the first."""
    given = dict(settings)
    task = make_task(**given)
    name = given.pop("name")
    if len(task.splits) < 2:
        raise ValueError(
            f"task {name!r} has no split but the one that is trained on ({task.splits[0]!r}); name "
            "what to evaluate on: --on NAME"
        )
    sets = [ProblemSet(f"{name}/{split}", task, split, given) for split in task.splits[1:]]
    _check(sets)
    return sets


def _check(sets: list[ProblemSet]) -> None:
    files: dict[str, str] = {}
    for one in sets:
        size = one.task.size(one.split)
        if size is not None and size < 1:
            raise ValueError(f"set {one.name!r}: it has no problems")
        if (other := files.setdefault(one.file.lower(), one.name)) != one.name:
            raise ValueError(f"sets {other!r} and {one.name!r} would share the file {one.file!r}")
    names = [one.name for one in sets]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"set {name!r} is named twice")
