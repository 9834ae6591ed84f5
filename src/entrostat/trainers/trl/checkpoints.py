"""TRL's checkpoints in a run directory, sealed so that a run resumes only from complete ones.

`checkpoints/checkpoint-480/` is transformers' own: weights, AdamW, schedule, trainer state with the
controllers. `entrostat.json` is written last, after the rest is on the disk: the iteration, the
configuration, the position of each log, and the size of each file.

Every checkpoint of an `EntropyGRPOTrainer` has the controllers' state (`EntropyControl`).
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
    """Sync a checkpoint that TRL has written, then mark it as complete."""
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
    """Remove checkpoints newer than the newest complete one up to iteration `after`."""
    for path in reversed(_directories(directory)):
        with suppress(DamagedError):
            if _read(path).iteration <= after:
                return
        shutil.rmtree(path)


def newest(directory: Path, check: Check | None = None) -> Checkpoint | None:
    """The newest complete checkpoint, without its tensors; its directory name gives `updates`."""
    sealed = {path.name: path for path in _directories(directory) if (path / _SEAL).exists()}
    return newest_of(directory, sealed, _read, check)


def bound_to(directory: Path) -> str | None:
    """The configuration of the newest complete checkpoint, as TOML."""
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
    """Checkpoint directories, oldest first."""
    found = [p for p in directory.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", p.name)]
    return sorted(found, key=_updates)


def _updates(path: Path) -> int:
    return int(path.name.removeprefix("checkpoint-"))


class EntropyControl(TrainerCallback, ExportableState):
    """Stores the controllers' state in every checkpoint's `trainer_state.json`."""

    def __init__(self, objective: Objective | None = None) -> None:
        self.objective = objective
        self.saved: dict[str, Any] | None = None

    def state(self) -> dict[str, Any]:
        saved = self.saved if self.objective is None else self.objective.state_dict()
        return {"args": {}, "attributes": {"saved": saved}}


class Begin(TrainerCallback):
    """Restores the objective's state, whether or not transformers restores callbacks.

    transformers does so only with restore_callback_states_from_checkpoint, and into a new object.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # the checkpoint's trainer state has been read
        self.trainer.begin(state)
