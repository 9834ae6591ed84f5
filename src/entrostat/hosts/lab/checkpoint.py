"""Checkpoints: one safetensors file each, complete or absent.

`checkpoints/000012.safetensors` holds the trained weights, AdamW's moments (those of a second model
that is trained, too) and, in its header, the rest of the state as JSON. It is written under another
name, flushed to the disk and renamed, so a run killed while writing leaves the one before. Random
numbers need no state: every stream is seeded from (seed, iteration, purpose).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ...config import Save
from ...errors import RunStopped
from ...logs.files import in_bytes, replacing

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
CHEAP = 64_000_000  # bytes: written after every iteration, unless told otherwise


@dataclass
class Checkpoint:
    """A state to go on from.

    Attributes:
        iteration: the last iteration finished.
        updates: optimizer steps made.
        tensors: "weight/NAME", "exp_avg/NAME", ... on the CPU; a second model's with a prefix.
        state: the objective's and the loss scaler's, plain data.
    """

    iteration: int
    updates: int
    tensors: dict[str, torch.Tensor]
    state: dict[str, Any]


class Schedule:
    """After which iterations a checkpoint is written; the last one's always is.

    Args:
        save: what the user wants.
        size: bytes of a checkpoint.
        start: the iteration that the run goes on after, of which there is one.
    """

    def __init__(self, save: Save, size: int, start: int) -> None:
        self.every = save.checkpoint_every or (1 if size < CHEAP else 0)
        self.seconds, self.size, self.keep = 60 * save.checkpoint_minutes, size, save.checkpoints
        self.newest, self._at = start, time.monotonic()

    def words(self) -> str:
        """For the terminal."""
        when = f"every {self.seconds / 60:g} minutes"
        if self.every:
            when = "every iteration" if self.every == 1 else f"every {self.every} iterations"
        kept = f"the newest {self.keep} kept" if self.keep else "none kept after it"
        return f"checkpoints of {in_bytes(self.size)}: {when} and at the end, {kept}"

    def due(self, iteration: int) -> bool:
        """Whether one is, now that an iteration is over."""
        if self.every:
            return iteration % self.every == 0
        return time.monotonic() - self._at >= self.seconds

    def written(self, iteration: int) -> None:
        """One was."""
        self.newest, self._at = iteration, time.monotonic()


def tensors_of(
    trained: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer, prefix: str = ""
) -> dict[str, torch.Tensor]:
    """Weights and moments as a checkpoint names them."""
    tensors = {}
    for name, parameter in trained.items():
        tensors[f"{prefix}weight/{name}"] = parameter.detach().contiguous()
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{prefix}{moment}/{name}"] = value.contiguous()
    return tensors


def write(
    directory: Path,
    checkpoint_iteration: int,
    updates: int,
    trained: dict[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    keep: int,
    more: Mapping[str, torch.Tensor],
) -> None:
    """Write a checkpoint, `more` tensors in it, then remove all but the newest `keep` (or one)."""
    tensors = tensors_of(trained, optimizer) | dict(more)
    header = {"iteration": checkpoint_iteration, "updates": updates, "state": state}
    with replacing(directory / f"{checkpoint_iteration:06d}.safetensors") as part:
        save_file(tensors, part, metadata={"entrostat": json.dumps(header)})
    for old in _files(directory)[: -max(1, keep)]:
        old.unlink()


def remove(directory: Path) -> None:
    """Remove all checkpoints of a run that is over."""
    for path in _files(directory):
        path.unlink()


def _files(directory: Path) -> list[Path]:
    return sorted(p for p in directory.glob("*.safetensors") if p.stem.isdigit())


def newest(directory: Path) -> Checkpoint | None:
    """The newest checkpoint that can be read whole; None where no checkpoint was written.

    Raises:
        RunStopped: there are checkpoints, but none can be read.
    """
    files = _files(directory)
    for path in reversed(files):
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {})["entrostat"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, json.JSONDecodeError):
            continue
        return Checkpoint(header["iteration"], header["updates"], tensors, header["state"])
    if files:
        raise RunStopped(f"no checkpoint in {directory} can be read; nothing was changed")
    return None


def restore(
    checkpoint: Checkpoint,
    trained: dict[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    prefix: str = "",
) -> None:
    """Put weights and moments back, exactly: those that `tensors_of` named with `prefix`.

    Raises:
        RunStopped: the checkpoint is of a model with other parameters.
    """
    own = f"{prefix}weight/"
    saved = {key.removeprefix(own) for key in checkpoint.tensors if key.startswith(own)}
    if saved != set(trained):
        differing = sorted(saved ^ set(trained))[:3]
        raise RunStopped(
            f"the checkpoint belongs to another model: its parameters differ in {differing}"
        )
    for name, parameter in trained.items():
        with torch.no_grad():
            parameter.copy_(checkpoint.tensors[own + name])
        moments = {}
        for moment in _MOMENTS:
            value = checkpoint.tensors.get(f"{prefix}{moment}/{name}")
            if value is not None:
                moments[moment] = value.to(parameter.device)
        if moments:
            optimizer.state[parameter] = moments
