"""Checkpoints, verified before a run resumes from them.

`checkpoints/000012.safetensors` has the trained weights and AdamW's moments (also those of a second
trained model). `000012.json`, the manifest, has the rest: the state as plain data, the SHA-256 of
that file, the run's configuration, and the position of each log. It is written last, when logs,
rollouts and weights are on disk, and has its own SHA-256. A checkpoint is complete if its manifest
exists, and intact if all hashes agree. Random numbers need no state: every stream is seeded from
(seed, iteration, purpose).
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..config import Save
from ..errors import RunStopped
from ..logs.files import in_bytes, replace_text, replacing
from ..logs.lines import Mark

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
CHEAP = 64_000_000  # bytes: smaller ones are written after every iteration by default


@dataclass(frozen=True)
class Checkpoint:
    iteration: int  # the last finished iteration
    updates: int  # optimizer steps made
    # "weight/NAME", "exp_avg/NAME", ... on the CPU; with a prefix for a second model
    tensors: Mapping[str, torch.Tensor]
    state: dict[str, Any]  # the objective's and the loss scaler's, plain data
    config: str = ""  # of the run, as TOML
    logs: Mapping[str, Mark] = field(default_factory=dict)  # position of each log, by its name
    passed_over: tuple[str, ...] = ()  # reasons why newer ones are not resumed from


class Schedule:
    """The iterations after which a checkpoint is written, always including the last."""

    def __init__(self, save: Save, size: int, start: int) -> None:
        self.every = save.checkpoint_every or (1 if size < CHEAP else 0)
        self.seconds, self.size, self.keep = 60 * save.checkpoint_minutes, size, save.checkpoints
        self.newest, self._at = start, time.monotonic()

    def words(self) -> str:
        when = f"every {self.seconds / 60:g} minutes"
        if self.every:
            when = "every iteration" if self.every == 1 else f"every {self.every} iterations"
        kept = f"the newest {self.keep} kept" if self.keep else "none kept after it"
        return f"checkpoints of {in_bytes(self.size)}: {when} and at the end, {kept}"

    def due(self, iteration: int) -> bool:
        if self.every:
            return iteration % self.every == 0
        return time.monotonic() - self._at >= self.seconds

    def written(self, iteration: int) -> None:
        self.newest, self._at = iteration, time.monotonic()


def size_of(*models: Mapping[str, Tensor]) -> int:
    """Bytes of a checkpoint: each model's trained weights and AdamW's two moments."""
    return 3 * sum(p.numel() * p.element_size() for model in models for p in model.values())


def tensors_of(
    trained: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer, prefix: str = ""
) -> dict[str, torch.Tensor]:
    tensors = {}
    for name, parameter in trained.items():
        tensors[f"{prefix}weight/{name}"] = parameter.detach().contiguous()
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{prefix}{moment}/{name}"] = value.contiguous()
    return tensors


def write(directory: Path, saved: Checkpoint, keep: int) -> None:
    """Write a checkpoint, then remove all but the newest `keep` (or one).

    Raises:
        RunStopped: writing fails, as on a full disk; the previous checkpoint is intact.
    """
    data = directory / f"{saved.iteration:06d}.safetensors"
    with replacing(data) as part:
        save_file(dict(saved.tensors), part, metadata={"entrostat": "checkpoint"})
    body = {
        "iteration": saved.iteration,
        "updates": saved.updates,
        "state": saved.state,
        "config": saved.config,
        "logs": {name: asdict(mark) for name, mark in saved.logs.items()},
        "files": {data.name: _sha256(data)},
    }
    manifest = {"sha256": _digest(body), "checkpoint": body}
    replace_text(data.with_suffix(".json"), json.dumps(manifest, indent=1))
    for old in manifests(directory)[: -max(1, keep)]:
        _remove(old)


def remove(directory: Path, after: int = 0) -> None:
    """Remove the checkpoints after an iteration, and files without a manifest."""
    for path in manifests(directory):
        if int(path.stem) > after:
            _remove(path)
    for path in directory.glob("*.safetensors"):
        if not path.with_suffix(".json").exists():
            path.unlink()


def _remove(manifest: Path) -> None:
    manifest.unlink()
    manifest.with_suffix(".safetensors").unlink(missing_ok=True)


def manifests(directory: Path) -> list[Path]:
    found = [p for p in directory.glob("*.json") if p.stem.isascii() and p.stem.isdecimal()]
    return sorted(found, key=lambda path: int(path.stem))


def bound_to(directory: Path) -> str | None:
    """The configuration, as TOML, of the newest checkpoint whose manifest can be read."""
    for path in reversed(manifests(directory)):
        with suppress(DamagedError):
            return _body(path)["config"]
    return None


Check = Callable[[Checkpoint], str | None]  # why no run resumes from it, or None


def newest(directory: Path, check: Check | None = None) -> Checkpoint | None:
    """The newest intact checkpoint; None if none was written."""
    found = {f"checkpoint {int(path.stem)}": path for path in manifests(directory)}
    return newest_of(directory, found, _read, check)


def newest_of(
    directory: Path, found: dict[str, Path], read: Callable[[Path], Checkpoint],
    check: Check | None = None,
) -> Checkpoint | None:  # fmt: skip
    """`newest` among those in `found`, oldest first; `read` raises a `DamagedError`."""
    reasons: list[str] = []
    for name, path in reversed(found.items()):
        try:
            saved = read(path)
            reason = None if check is None else check(saved)
            if reason is None:
                return replace(saved, passed_over=tuple(reasons))
        except DamagedError as error:
            reason = str(error)
        reasons.append(f"{name}: {reason}")
    if reasons:
        raise RunStopped(
            f"no checkpoint in {directory} can be gone on from; nothing was changed ("
            f"{'; '.join(reasons)})"
        )
    return None


def read(manifest: Path) -> Checkpoint:
    try:
        return _read(manifest)
    except DamagedError as error:
        raise RunStopped(f"checkpoint {manifest}: {error}") from None


class DamagedError(Exception):
    """A checkpoint's content differs from what was written."""


def _body(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        body = manifest["checkpoint"]
        if manifest["sha256"] == _digest(body) and body["iteration"] == int(path.stem):
            return body
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass
    raise DamagedError(f"{path.name} is damaged")


def _read(path: Path) -> Checkpoint:
    body = _body(path)
    for name, digest in body["files"].items():
        try:
            found = _sha256(path.with_name(name))
        except OSError as error:
            raise DamagedError(f"{name}: {error.strerror}") from None
        if found != digest:
            raise DamagedError(f"{name} is damaged (its SHA-256 is not what was written)")
    with safe_open(path.with_suffix(".safetensors"), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    logs = {name: Mark(**mark) for name, mark in body["logs"].items()}
    return Checkpoint(
        body["iteration"], body["updates"], tensors, body["state"], body["config"], logs
    )


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def restore_weights(
    checkpoint: Checkpoint, trained: dict[str, torch.nn.Parameter], prefix: str = ""
) -> None:
    """Restore exactly the weights that `tensors_of` named with `prefix`."""
    own = f"{prefix}weight/"
    saved = {key.removeprefix(own) for key in checkpoint.tensors if key.startswith(own)}
    if saved != set(trained):
        differing = sorted(saved ^ set(trained))[:3]
        raise RunStopped(
            f"the checkpoint belongs to another model: its parameters differ in {differing}"
        )
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(checkpoint.tensors[own + name])


def restore(
    checkpoint: Checkpoint, trained: dict[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer, prefix: str = "",
) -> None:  # fmt: skip
    """Restore weights and moments exactly; as `restore_weights`."""
    restore_weights(checkpoint, trained, prefix)
    for name, parameter in trained.items():
        kept = {moment: checkpoint.tensors.get(f"{prefix}{moment}/{name}") for moment in _MOMENTS}
        moments = {k: value.to(parameter.device) for k, value in kept.items() if value is not None}
        if moments:
            optimizer.state[parameter] = moments


def check_weights(trained: Mapping[str, Tensor], iteration: int) -> None:
    """Check that a run can resume from a checkpoint of these weights."""
    sizes = torch.stack([_size(weight) for weight in trained.values()])
    for name, size in zip(trained, sizes.tolist(), strict=True):
        if not math.isfinite(size):
            raise RunStopped(
                f"iteration {iteration}: after its updates {name} is not finite. The checkpoint "
                "before it is good; lower optim.lr"
            )


def _size(weight: Tensor) -> Tensor:
    """The norm [] of a weight that may be sharded over processes (FSDP2 in TRL)."""
    size: Any = weight.detach().norm()
    return size.full_tensor() if hasattr(size, "full_tensor") else size
