"""TRL's checkpoints in a run directory, sealed, so that a run goes on from whole ones only.

`checkpoints/checkpoint-480/` is transformers' own: weights, AdamW, schedule, trainer state (the
controllers with it). `entrostat.json` is written into it last, when all of it is on the disk: the
iteration, the configuration, how far each log had come, and the size of each file.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..._text import Say
from ...config import TrainConfig
from ...errors import RunStopped
from ...logs.files import replacing, sync, writing
from ...logs.lines import Mark
from ...runs.resume import rewind
from ...runs.run_directory import RunDirectory, check_not_back

_SEAL = "entrostat.json"


@dataclass(frozen=True)
class Sealed:
    """A checkpoint that is whole.

    Attributes:
        path: its directory.
        iteration: the last one finished.
        config: of the run, as TOML.
        logs: how far each log had come.
    """

    path: Path
    iteration: int
    config: str
    logs: Mapping[str, Mark]


def seal(path: Path, iteration: int, config: TrainConfig, logs: Mapping[str, Mark]) -> None:
    """Have a checkpoint that TRL has written on the disk, and say that it is whole.

    Raises:
        RunStopped: the disk is full or refuses.
    """
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
    with replacing(path / _SEAL) as part:
        part.write_text(json.dumps(body, indent=1), encoding="utf-8")


def keep(directory: Path, count: int) -> None:
    """Remove all checkpoints but the newest `count`."""
    for path in _directories(directory)[:-count]:
        shutil.rmtree(path)


def go_on(run: RunDirectory, config: TrainConfig, resume: bool, say: Say) -> Sealed | None:
    """The newest whole checkpoint that agrees with the logs; what came after it is forgotten.

    None where a run begins, or was stopped before its first checkpoint.

    Raises:
        RunStopped: there are checkpoints, but none to go on from; nothing was changed.
    """
    saved = _newest(run.checkpoints, run.check_logs, say)
    if saved is None and resume:
        run.check_unsaved()
    start = 0 if saved is None else saved.iteration
    check_not_back(run.path, config.iterations, start)
    for path in _directories(run.checkpoints):
        if saved is None or _step(path) > _step(saved.path):
            shutil.rmtree(path)
    rewind(run, start, {} if saved is None else saved.logs, say)
    return saved


def bound_to(directory: Path) -> str | None:
    """The configuration, as TOML, of the newest whole checkpoint."""
    saved = _newest(directory, lambda logs: None, lambda text: None)
    return None if saved is None else saved.config


def _newest(
    directory: Path, check: Callable[[Mapping[str, Mark]], str | None], say: Say
) -> Sealed | None:
    reasons: list[str] = []
    for path in reversed(_directories(directory)):
        if not (path / _SEAL).exists():
            continue  # of a process that was killed while it wrote
        saved = _read(path)
        reason = saved if isinstance(saved, str) else check(saved.logs)
        if reason is None:
            assert isinstance(saved, Sealed)
            for text in reasons:
                say(f"warning: {text}; going on from {path.name}")
            return saved
        reasons.append(f"{path.name}: {reason}")
    if reasons:
        raise RunStopped(
            f"no checkpoint in {directory} can be gone on from; nothing was changed ("
            f"{'; '.join(reasons)})"
        )
    return None


def _read(path: Path) -> Sealed | str:
    """A sealed checkpoint, or why it is none."""
    try:
        body: dict[str, Any] = json.loads((path / _SEAL).read_text(encoding="utf-8"))
        logs = {name: Mark(**mark) for name, mark in body["logs"].items()}
        saved = Sealed(path, int(body["iteration"]), str(body["config"]), logs)
        sizes = {str(name): int(size) for name, size in body["files"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return f"{_SEAL} is damaged"
    for name, size in sizes.items():
        file = path / name
        if not file.is_file() or file.stat().st_size != size:
            return f"{name} is not what was written"
    return saved


def _directories(directory: Path) -> list[Path]:
    """Those of checkpoints, the oldest first."""
    found = [p for p in directory.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", p.name)]
    return sorted(found, key=_step)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("checkpoint-"))
