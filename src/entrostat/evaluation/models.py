"""What is evaluated: a model, or a run as it began, ended, or stood at one of its checkpoints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

from ..config import TrainConfig, check_model, from_dict, load
from ..logs.lines import read_json
from ..logs.run import called
from ..runs.checkpoint import manifests
from .sets import ProblemSet
from .settings import EvalConfig

FINAL = "final"
KEPT = {FINAL: "final model yet", "best": "best checkpoint (`save.best` keeps one)"}


@dataclass(frozen=True)
class EvaluatedModel:
    """One policy to evaluate."""

    spec: str  # as it was named
    name: str  # of its directory; no two of an evaluation share it
    model: str  # a directory or a name to load
    run: Path | None = None  # the run it is of
    # of the run; None for its final model where the run does not say, or no run
    iteration: int | None = None
    # weights over `model`'s, as a checkpoint has them; None for the model as it is
    checkpoint: Path | None = None
    config: TrainConfig | None = None  # the run's

    def facts(self) -> dict[str, str | int | None]:
        own = {"run": str(self.run), "iteration": self.iteration} if self.run is not None else {}
        return {"model": self.spec, **own}


def ends(
    subject: EvaluatedModel | None, one: ProblemSet, new: int | None, config: EvalConfig
) -> tuple[int | None, tuple[str, ...] | None]:
    """What ends a response to a set: so many tokens, and texts; None for the task's.

    As was given, else on a run's own task as it trained.
    """
    run = None if subject is None else subject.config
    run = run or TrainConfig()
    own = (run if one.task_name == run.task["name"] else TrainConfig()).sampling
    stop = own.stop if config.stop is None else config.stop
    return (own.max_new_tokens if new is None else new), stop


def evaluated_models(specs: Sequence[str], checkpoints: bool = False) -> list[EvaluatedModel]:
    """What words of the command line name.

    MODEL is a directory, a name of `entrostat model` or of the hub. RUN is a run's directory, which
    stands for its final model; RUN@ITERATION for one of its checkpoints, RUN@0 for the model that
    it began with, RUN@best for the best checkpoint that it kept. With `checkpoints` each RUN stands
    for all of its checkpoints, the model it began with first.
    """
    found: dict[str, EvaluatedModel] = {}
    for one in (one for spec in specs for one in _of(spec, checkpoints)):
        names = chain([one.name], (f"{one.name}-{i}" for i in count(2)))
        name = next(name for name in names if name not in found)
        found[name] = replace(one, name=name)
    return list(found.values())


def iterations(run: Path) -> list[int]:
    """Of the checkpoints that a run keeps, the first first."""
    return [int(path.stem) for path in manifests(run / "checkpoints")]


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
    return [_at(run, str(i), f"{spec}@{i}") for i in (0, *iterations(run))]


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
    """After which a model was written; None where it does not say."""
    about = read_json(directory / "entrostat.json")
    done = about.get("iteration", about.get("iterations"))
    return done if type(done) is int and done >= 0 else None


def _safe(text: str) -> str:
    return re.sub(r"[^\w.+=-]+", "_", text.strip("/")).strip("._") or "model"
