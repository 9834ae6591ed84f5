"""Evaluated models (a model, or a run at a checkpoint), problem sets, and batches of problems."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from .._names import unknown
from ..config import TrainConfig, check_model, from_dict, load
from ..logs.lines import read_json
from ..logs.run import called
from ..tasks import Example, Task, make_task, task_class
from ..tasks.rows import SUFFIXES
from .settings import ENDLESS, Decoding

FINAL = "final"
KEPT = {FINAL: "final model yet", "best": "best checkpoint (`save.best` keeps one)"}


@dataclass(frozen=True)
class EvaluatedModel:
    spec: str  # as given on the command line
    name: str  # name of its output directory, unique in an evaluation
    model: str  # directory or name to load
    run: Path | None = None  # its run
    # of the run; None without a run, or if a final model does not record it
    iteration: int | None = None
    # checkpoint whose weights replace those of `model`; None for the model unchanged
    checkpoint: Path | None = None
    config: TrainConfig | None = None  # the run's

    def facts(self) -> dict[str, str | int | None]:
        own = {"run": str(self.run), "iteration": self.iteration} if self.run is not None else {}
        return {"model": self.spec, **own}


def evaluated_models(specs: Sequence[str], checkpoints: bool = False) -> list[EvaluatedModel]:
    """Models named on the command line: MODEL, RUN or RUN@CHECKPOINT (`entrostat eval --help`).

    With `checkpoints`, each RUN stands for all its models, from the initial to the final one.
    """
    found: dict[str, EvaluatedModel] = {}
    for one in (one for spec in specs for one in _of(spec, checkpoints)):
        names = chain([one.name], (f"{one.name}-{i}" for i in count(2)))
        name = next(name for name in names if name not in found)
        found[name] = replace(one, name=name)
    return list(found.values())


def iterations(run: Path) -> list[int]:
    """Iterations of a run's checkpoints, ascending."""
    stems = [p.stem for p in (run / "checkpoints").glob("*.json")]
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdecimal())


def _of(spec: str, checkpoints: bool) -> list[EvaluatedModel]:
    head, at, which = spec.rpartition("@")
    if at and _is_run(Path(head)) and not Path(spec).exists():
        return [_at(Path(head), which, spec)]
    if not _is_run(Path(spec)):
        check_model(spec)
        return [EvaluatedModel(spec, _safe(spec), spec)]
    run = Path(spec)
    if not checkpoints:
        return [_at(run, FINAL, spec)]
    kept = iterations(run)  # empty for TRL and veRL, whose checkpoints have another format
    found = [_at(run, str(i), f"{spec}@{i}") for i in (0, *kept)]
    last = _iteration(run / FINAL)
    return (
        found if last is None or last in kept else [*found, _at(run, str(last), f"{spec}@{last}")]
    )


def _is_run(path: Path) -> bool:
    return (path / "config.toml").is_file()


def _at(run: Path, which: str, spec: str) -> EvaluatedModel:
    config = from_dict(load(run / "config.toml"))
    name = _safe(called(run)) + ("" if which == FINAL else f"@{_safe(which)}")
    here = EvaluatedModel(spec, name, config.model, run, config=config)
    if which in KEPT:
        directory = run / which
        if not (directory / "config.json").is_file():
            raise ValueError(f"{spec!r}: the run has no {KEPT[which]}{_instead(run)}")
        return replace(here, model=str(directory), iteration=_iteration(directory))
    if not (which.isascii() and which.isdecimal()):
        raise ValueError(f"{spec!r}: what follows @ is an iteration or `best`{_instead(run)}")
    iteration = int(which)
    if iteration in iterations(run):
        manifest = run / "checkpoints" / f"{iteration:06d}.json"
        return replace(here, iteration=iteration, checkpoint=manifest)
    if iteration and _iteration(run / FINAL) == iteration:
        return replace(here, model=str(run / FINAL), iteration=iteration)
    if iteration:
        raise ValueError(f"{spec!r}: the run keeps no checkpoint {iteration}{_instead(run)}")
    check_model(config.model)
    return replace(here, iteration=0)


def _instead(run: Path) -> str:
    kept = ", ".join(f"{run}@{i}" for i in iterations(run))
    return f"; it has {kept}, and {run}@0, which it began with" if kept else f"; it has {run}@0"


def _iteration(directory: Path) -> int | None:
    """Iteration after which a model was saved; None if it is not recorded."""
    about = read_json(directory / "entrostat.json")
    done = about.get("iteration", about.get("iterations"))
    return done if type(done) is int and done >= 0 else None


def _safe(text: str) -> str:
    return re.sub(r"[^\w.+=-]+", "_", text.strip("/")).strip("._") or "model"


@dataclass(frozen=True)
class ProblemSet:
    name: str  # NAME/SPLIT, used in results; for a bare file, the file's name
    task: Task
    split: str
    options: Mapping[str, Any] = field(default_factory=dict)  # the task's parameters, as given

    @property
    def task_name(self) -> str:
        return self.name.removesuffix(f"/{self.split}")

    @property
    def file(self) -> str:
        return re.sub(r"[^\w.+=-]+", "_", self.name) + ".jsonl"

    def count(self, most: int | None) -> int:
        """Number of problems: all, or the first `most`; `ENDLESS` if neither ends."""
        size = self.task.size(self.split)
        if size is None:
            return ENDLESS if most is None else most
        return size if most is None else min(size, most)


@dataclass(frozen=True)
class Asked:
    """A batch of problems of a set; `problems` are their indices in it."""

    set: ProblemSet
    decoding: Decoding
    problems: Sequence[int]
    examples: Sequence[Example]
    seed: int


@dataclass(frozen=True)
class Answered:
    """A policy's k responses to one problem; each list is in their order."""

    responses: list[str]
    tokens: list[int]  # length of each response
    finished: list[bool]  # whether each response ended before the length limit
    # mean log-prob per token, nats; None if the engine does not report it
    logp: list[float] | None = None
    # mean exact entropy per token, nats; None if not measured
    entropy: list[float] | None = None
    clusters: list[int] | None = None  # cluster label of each response; None if not measured
    # mean over the prompt's own tokens, nats; None if not measured
    prompt_entropy: float | None = None
    base_prompt_entropy: float | None = None  # the same for the base model
    # scores given by an environment; None if the task's scorer gives them
    scores: list[float] | None = None
    failed: int = 0  # number of responses without a score


def problem_sets(names: Iterable[str], options: Mapping[str, Any]) -> list[ProblemSet]:
    """The sets for names of tasks; `options` are the tasks' parameters.

    NAME means every split but the first, the training split, or the only split. NAME/SPLIT means
    that split. A bare file means all of it; `FILE.jsonl/test` is what training holds out.
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
            raise ValueError(unknown(f"split of task {called!r}:", split, task.splits))
        for one in (split,) if split else task.splits[1:] or task.splits:
            whole = _is_file(name) and not split and len(task.splits) == 1
            sets.append(ProblemSet(called if whole else f"{called}/{one}", task, one, given))
    _check(sets)
    return sets


def _is_file(name: str) -> bool:
    """Whether a name is a data file or NAME:PATH, PATH existing: its "/" separates no split."""
    place = name.partition(":")[2]
    return name.endswith(SUFFIXES) or (bool(place) and Path(place).exists())


def of_task(settings: Mapping[str, Any]) -> list[ProblemSet]:
    """The sets of a run's own task: every split except the first."""
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
        other = files.get(one.file.lower())
        if other == one.name:
            raise ValueError(f"set {other!r} is named twice")
        if other is not None:
            raise ValueError(f"sets {other!r} and {one.name!r} would share the file {one.file!r}")
        files[one.file.lower()] = one.name
