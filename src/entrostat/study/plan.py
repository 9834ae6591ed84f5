"""Directories of studies' runs: a store by content address, and a name for each use of a run.

    OUTPUT/.store/ADDRESS         a training, once (`content_hash.py`)
    OUTPUT/.store/ADDRESS.toml    its settings; ADDRESS.log is its output
    OUTPUT/.store/ADDRESS.failed  why it failed, until it is resumed
    OUTPUT/NAME                   a link to it, for one study file
    OUTPUT/EXPERIMENT/NAME        the same, for several

A changed setting gives another address, so rerunning a study trains only missing or changed runs.
Trainings that no name links to any more stay in the store. A directory made by hand under a run's
name counts as that run if its settings are equal.
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
    """One training of a plan; several names may link to it."""

    address: str
    config: TrainConfig  # its settings, `output` empty
    path: Path  # its directory: the first of its names, or one made by hand
    store: Path  # the directory of its settings and log
    after: str | None  # the address of the training whose policy it starts from
    start: Literal["final", "best"]  # which policy of that training
    share: float  # share of this machine's processors: 1 / jobs of its file
    experiment: str  # the file's stem
    # hashes of the code that its settings name, as used in the address
    code: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def settings(self) -> Path:
        return self.store / f"{self.address}.toml"

    @property
    def log(self) -> Path:
        return self.store / f"{self.address}.log"

    @property
    def failure(self) -> Path:
        """File with one line on why it failed; absent if it succeeded or has not ended."""
        return self.store / f"{self.address}.failed"


@dataclass(frozen=True)
class Named:
    """A run by the name that a study file gives it."""

    experiment: str  # the file's stem
    name: str
    group: str  # the name without the seed
    seed: int
    path: Path  # OUTPUT/NAME or OUTPUT/EXPERIMENT/NAME
    address: str  # address of the training


@dataclass(frozen=True)
class Plan:
    """The goal of a study: trainings by address, in start order."""

    output: Path
    titles: dict[str, str]
    trainings: dict[str, Training]
    named: tuple[Named, ...]

    def of(self, experiment: str) -> list[Named]:
        return [each for each in self.named if each.experiment == experiment]

    def name_of(self, address: str) -> str:
        """Display name of a training: its first name, with the experiment if there are several."""
        first = next(each for each in self.named if each.address == address)
        return first.name if len(self.titles) == 1 else f"{first.experiment}/{first.name}"


def plan_of(studies: Mapping[str, Study], output: Path, jobs: int | None = None) -> Plan:
    """Find the trainings of studies, by experiment; nothing is written.

    The names of a single study are directly in `output`. `jobs` trainings run in parallel; None
    uses each file's setting.
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
    """Make the store, the links to it or to runs made by hand, and the indices."""
    for experiment, title in plan.titles.items():
        folder = plan.of(experiment)[0].path.parent
        if folder.is_symlink():  # a run of this name, from an earlier call
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
    """Make the plan's paths absolute, for processes that start elsewhere; addresses stay."""
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
    """Make the paths of the model's directory and of task files absolute."""
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
    """Raise if a directory left by other settings would pass for this study's result."""
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
    """Whether a path exists that no study created."""
    return path.exists() and not path.is_symlink()


def _link(path: Path, target: Path) -> None:
    """Create or replace a link atomically."""
    if path.is_symlink() and path.readlink() == target:
        return
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    part.symlink_to(target)
    os.replace(part, path)
