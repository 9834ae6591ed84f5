"""The gradient of the mean entropy in TRL, for the thermostat's multiplier.

Shapes: n rollouts of an optimizer step on this rank, T completion tokens at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from accelerate import DistributedType
from torch import Tensor, nn

from ...core.batch import TokenBatch
from ...core.process_ranks import shared_generator
from ..hold import Hold, response, sample
from .iteration import IMAGES, loss_mask, token_batch

# each process has all parameters
_WHOLE = {name for name in DistributedType.__members__ if name == "NO" or name.startswith("MULTI_")}


def check_whole(hold: Hold, kind: Any) -> None:
    """Raise a ValueError where parameters are sharded, or the exact form is asked for."""
    if hold.exact:
        raise ValueError("thermostat: solve='exact' is for the lab; TRL takes 'sample'")
    if str(getattr(kind, "value", kind)) not in _WHOLE:
        raise ValueError(
            f"thermostat: the multiplier is solved for with whole parameters, and {kind} shards "
            "them; use DDP, or the method {'name': 'thermostat', 'target': ..., 'knob': "
            "'entropy_coef'}"
        )


def look(trainer: Any, hold: Hold, model: nn.Module, pieces: list[dict[str, Any]]) -> None:
    """Take the gradient of the mean entropy before an optimizer step, from some of its rollouts.

    `pieces` are this rank's micro-batches of the step of the GRPOTrainer, `model` as TRL runs it.
    """
    batch = token_batch(pieces).replace(ranks=trainer.ranks)
    tokens = max(1, batch.whole.tokens)
    parameters = [p for p in model.parameters() if p.requires_grad]
    kept = [p.grad for p in parameters]
    # DDP would wait for a backward pass of the loss; the model's own module is not wrapped
    quiet: Any = getattr(model, "no_sync", nullcontext)()
    with quiet, torch.enable_grad():
        for p in parameters:
            p.grad = None
        for part, weights in _sample(pieces, batch, trainer):
            entropy = trainer.extra_pass(model, part)[1]
            of_rollouts = torch.where(loss_mask(part), entropy, 0).sum(1)
            (of_rollouts @ weights.to(of_rollouts) / tokens).backward()
    gradient = [p.grad for p in parameters]
    for p, old in zip(parameters, kept, strict=True):
        p.grad = old
    if trainer.ranks.world > 1:
        for p, h in zip(parameters, gradient, strict=True):
            dist.all_reduce(torch.zeros_like(p) if h is None else h)
    hold.look(trainer.optimizer, response(trainer.optimizer, parameters, gradient))


def _sample(
    pieces: list[dict[str, Any]], batch: TokenBatch, trainer: Any
) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """Some of the rollouts of a step, micro-batch by micro-batch, and their weights [n]."""
    assert batch.old_entropy is not None
    chance = shared_generator(trainer.args.seed, "hold", trainer.state.global_step)
    sizes, world = [len(piece["completion_ids"]) for piece in pieces], trainer.ranks.world
    mass = batch.old_entropy.sum(1)
    if any(pieces[0].get(key) is not None for key in IMAGES):  # they belong to the micro-batch
        whole = torch.stack([part.sum() for part in mass.split(sizes)])
        places, weights = sample(whole, chance, world, size=sizes[0])
        for place, weight in zip(places.tolist(), weights, strict=True):
            yield pieces[place], weight.expand(sizes[place])
        return
    rows, weights = sample(mass, chance, world)
    first = 0
    for piece, size in zip(pieces, sizes, strict=True):
        own = (first <= rows) & (rows < first + size)
        if own.any():
            yield _of_rows(piece, rows[own] - first, size), weights[own]
        first += size


def _of_rows(piece: dict[str, Any], rows: Tensor, size: int) -> dict[str, Any]:
    return {
        key: value[rows.to(value.device)]
        if isinstance(value, Tensor) and value.ndim and len(value) == size else value
        for key, value in piece.items()
    }  # fmt: skip
