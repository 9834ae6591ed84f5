"""Where the runs of studies go: a store by content address, and a name for each use of a run.

    OUTPUT/.store/ADDRESS         a training, once (`address.py`)
    OUTPUT/.store/ADDRESS.toml    what it was asked, ADDRESS.log what it printed
    OUTPUT/.store/ADDRESS.failed  why it did not end well, until it is taken up again
    OUTPUT/NAME                   a link to it, for one study file
    OUTPUT/EXPERIMENT/NAME        the same, for several

A setting that changes is another address, so a study that is run again does only what is missing or
changed; what no name leads to any more stays in the store. A directory that is there under a run's
name, and was made by hand, is taken for that run if its settings are the same.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ..config import TrainConfig, from_dict, load
from ..logs.files import atomic, make_directory
from ..logs.run import INDEX
from ..model_files import is_ours
from ..tasks.sources import from_anywhere
from .content_hash import address_of, code_of
from .file import Study

STORE = ".store"


@dataclass(frozen=True)
class Training:
    """One training of a plan, which several names may lead to."""

    address: str
    config: TrainConfig  # its settings, `output` empty
    path: Path  # where it is written: the first of its names, or one made by hand
    store: Path  # the directory of its settings and of what it prints
    after: str | None  # the address of the training whose policy it begins with
    start: Literal["final", "best"]  # which of that one's policies
    share: float  # of this machine's processors: 1 / jobs of its file
    experiment: str  # the file's stem
    # hashes of the code that its settings name, as the address has them
    code: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def settings(self) -> Path:
        return self.store / f"{self.address}.toml"

    @property
    def log(self) -> Path:
        return self.store / f"{self.address}.log"

    @property
    def failure(self) -> Path:
        """Why it did not end well, a line; no such file where it did, or has not ended."""
        return self.store / f"{self.address}.failed"


@dataclass(frozen=True)
class Named:
    """A run by the name that a study file gives it."""

    experiment: str  # the file's stem
    name: str
    group: str  # the name without the seed
    seed: int
    path: Path  # OUTPUT/NAME or OUTPUT/EXPERIMENT/NAME
    address: str  # of the training


@dataclass(frozen=True)
class Plan:
    """What is to be there in the end: trainings by address, in the order of their start."""

    output: Path
    titles: dict[str, str]
    trainings: dict[str, Training]
    named: tuple[Named, ...]

    def of(self, experiment: str) -> list[Named]:
        return [each for each in self.named if each.experiment == experiment]

    def name_of(self, address: str) -> str:
        """What to call a training: its first name, with the experiment if there are more."""
        first = next(each for each in self.named if each.address == address)
        return first.name if len(self.titles) == 1 else f"{first.experiment}/{first.name}"


def plan_of(studies: Mapping[str, Study], output: Path, jobs: int | None = None) -> Plan:
    """Find the trainings that studies mean, by experiment; nothing is written.

    One study alone has its names in `output` itself. `jobs` trainings go at once; None takes each
    file's.
    """
    trainings: dict[str, Training] = {}
    named: list[Named] = []
    for experiment, study in studies.items():
        directory = output if len(studies) == 1 else output / experiment
        addresses: dict[str, str] = {}
        for name, config in study.runs.items():
            origin = study.origins[name]
            after = None if origin.after is None else addresses[origin.after]
            address = addresses[name] = address_of(config, after, origin.start)
            path = directory / name
            check_same(path, config)
            named.append(Named(experiment, name, origin.group, config.seed, path, address))
            if address not in trainings or _own(path):
                share = 1 / (jobs or study.jobs)
                trainings[address] = Training(
                    address, config, path, output / STORE, after, origin.start, share,
                    experiment, code_of(config),
                )  # fmt: skip
    titles = {experiment: study.title for experiment, study in studies.items()}
    return Plan(output, titles, trainings, tuple(named))


def make_places(plan: Plan) -> None:
    """Make the store, the names that lead to it or to a run made by hand, and their indices."""
    for experiment, title in plan.titles.items():
        folder = plan.of(experiment)[0].path.parent
        if folder.is_symlink():  # of an earlier call, a run of this name
            folder.unlink()
        runs = {
            each.name: {"group": each.group, "seed": each.seed, "address": each.address}
            for each in plan.of(experiment)
        }
        with atomic(folder / INDEX) as part:
            part.write_text(json.dumps({"title": title, "runs": runs}, indent=1), encoding="utf-8")
    for each in plan.named:
        if not _own(each.path):
            made = plan.trainings[each.address].path
            place = made if _own(made) else plan.output / STORE / each.address
            make_directory(place)
            make_directory(each.path.parent)
            _link(each.path, Path(os.path.relpath(place, each.path.parent)))


def anywhere(plan: Plan) -> Plan:
    """The plan for processes that start elsewhere: paths absolute, addresses as they were."""
    trainings = {
        address: replace(
            each, config=_anywhere(each.config), path=each.path.absolute(),
            store=each.store.absolute(),
        )
        for address, each in plan.trainings.items()
    }  # fmt: skip
    named = tuple(replace(each, path=each.path.absolute()) for each in plan.named)
    return replace(plan, output=plan.output.absolute(), trainings=trainings, named=named)


def _anywhere(config: TrainConfig) -> TrainConfig:
    """Settings with the model's directory and the tasks' files as absolute paths."""
    model = config.model
    if not is_ours(model) and Path(model).is_dir():
        model = str(Path(model).absolute())
    sets = [
        one if one.task is None else replace(one, task=from_anywhere(one.task))
        for one in config.eval.sets
    ]
    task = from_anywhere(config.task)
    return replace(config, model=model, task=task, eval=replace(config.eval, sets=sets))


def check_same(path: Path, config: TrainConfig) -> None:
    """A directory left by other settings must not pass for this study's result."""
    if _own(path) and (path / INDEX).exists():
        raise ValueError(
            f"{path} holds the runs of a study file of that name; choose another --output"
        )
    if not _own(path) or not (path / "config.toml").exists():
        return
    there = from_dict(load(path / "config.toml"))
    there.output = config.output
    there.forget_choices(config)
    if there != config:
        raise ValueError(
            f"{path} holds a run with other settings than the study now has; remove it or choose "
            "another --output"
        )


def _own(path: Path) -> bool:
    """Whether a name is taken by what no study put there."""
    return path.exists() and not path.is_symlink()


def _link(path: Path, target: Path) -> None:
    """Have a name lead somewhere, in one step; a link that was there leads there no more."""
    if path.is_symlink() and path.readlink() == target:
        return
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    part.symlink_to(target)
    os.replace(part, path)
