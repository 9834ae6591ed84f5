"""TRL's checkpoints in a run directory, sealed, so that a run goes on from whole ones only.

`checkpoints/checkpoint-480/` is transformers' own: weights, AdamW, schedule, trainer state (the
controllers with it). `entrostat.json` is written into it last, when all of it is on the disk: the
iteration, the configuration, how far each log had come, and the size of each file.

The controllers' state is in every checkpoint of an `EntropyGRPOTrainer` (`EntropyControl`).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from ...config import TrainConfig
from ...core.objective import Objective
from ...logs.files import replace_text, sync, writing
from ...logs.lines import Mark
from ...runs.checkpoint import Check, Checkpoint, DamagedError, newest_of

_SEAL = "entrostat.json"


def seal(path: Path, iteration: int, config: TrainConfig, logs: Mapping[str, Mark]) -> None:
    """Have a checkpoint that TRL has written on the disk, and say that it is whole."""
    files = [file for file in path.rglob("*") if file.is_file()]
    with writing(path):
        for file in (*files, path, path.parent):
            sync(file)
    body = {
        "iteration": iteration,
        "config": config.to_toml(),
        "logs": {name: asdict(mark) for name, mark in logs.items()},
        "files": {str(file.relative_to(path)): file.stat().st_size for file in files},
    }
    replace_text(path / _SEAL, json.dumps(body, indent=1))


def keep(directory: Path, count: int) -> None:
    for path in _directories(directory)[:-count]:
        shutil.rmtree(path)


def remove(directory: Path, after: int) -> None:
    """Remove what is newer than the newest whole checkpoint up to an iteration."""
    for path in reversed(_directories(directory)):
        with suppress(DamagedError):
            if _read(path).iteration <= after:
                return
        shutil.rmtree(path)


def newest(directory: Path, check: Check | None = None) -> Checkpoint | None:
    """The newest whole checkpoint, without its tensors; its directory's name has `updates`."""
    sealed = {path.name: path for path in _directories(directory) if (path / _SEAL).exists()}
    return newest_of(directory, sealed, _read, check)


def bound_to(directory: Path) -> str | None:
    """The configuration, as TOML, of the newest whole checkpoint."""
    saved = newest(directory)
    return None if saved is None else saved.config


def _read(path: Path) -> Checkpoint:
    try:
        body: dict[str, Any] = json.loads((path / _SEAL).read_text(encoding="utf-8"))
        logs = {name: Mark(**mark) for name, mark in body["logs"].items()}
        saved = Checkpoint(
            int(body["iteration"]), _updates(path), {}, {}, str(body["config"]), logs
        )
        sizes = {str(name): int(size) for name, size in body["files"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise DamagedError(f"{_SEAL} is damaged") from None
    for name, size in sizes.items():
        file = path / name
        if not file.is_file() or file.stat().st_size != size:
            raise DamagedError(f"{name} is not what was written")
    return saved


def _directories(directory: Path) -> list[Path]:
    """The oldest first."""
    found = [p for p in directory.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", p.name)]
    return sorted(found, key=_updates)


def _updates(path: Path) -> int:
    return int(path.name.removeprefix("checkpoint-"))


class EntropyControl(TrainerCallback, ExportableState):
    """The controllers' state, in every checkpoint's `trainer_state.json`."""

    def __init__(self, objective: Objective | None = None) -> None:
        self.objective = objective
        self.saved: dict[str, Any] | None = None

    def state(self) -> dict[str, Any]:
        saved = self.saved if self.objective is None else self.objective.state_dict()
        return {"args": {}, "attributes": {"saved": saved}}


class Begin(TrainerCallback):
    """Hands a checkpoint's state to the objective, whether or not transformers restores callbacks.

    It does so only with restore_callback_states_from_checkpoint, and then with a new object.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # the checkpoint's trainer state has been read
        self.trainer.begin(state)
