"""The gradient of the mean entropy in veRL, for the thermostat's multiplier.

The driver's controllers observe the entropy. The workers choose the multiplier before each update,
identically on all ranks. Their metrics return its state to the driver, which checkpoints it.

Shapes: n rollouts of this rank's minibatch, T completion tokens at most.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import Replicate
from verl.utils import tensordict_utils as tu

from ...core.batch import TokenBatch
from ...core.process_ranks import shared_generator
from ..hold import Hold, response, sample
from .loss import ROW, responses

HELD = "held/"  # prefix of metrics that carry the multiplier's state


def look(engine: Any, hold: Hold, data: Any, batch: TokenBatch, stream: tuple[Any, ...]) -> None:
    """Take the gradient of the mean entropy before an update, on a sample of its rollouts.

    `engine` is veRL's (FSDP2), in training mode, with gradients cleared; `data` is this rank's
    minibatch for it, `batch` [n, T] the same minibatch; `stream` (seed, step) seeds the sample.
    """
    whole = 1 if tu.get(data, "use_dynamic_bsz") else tu.get(data, "micro_batch_size_per_gpu")
    mass, world = batch.need("old_entropy").sum(1), batch.ranks.world
    rows, weights = sample(mass, shared_generator(*stream), world, whole)
    mask = batch.mask[rows.to(batch.mask.device)]
    weights = weights.to(mass) / max(1, batch.whole.tokens)
    view = tu.index_select_tensor_dict(data, rows)
    view[ROW] = torch.arange(len(rows))
    engine.optimizer_zero_grad()
    engine.forward_backward_batch(view, partial(_mean_entropy, mask=mask, weights=weights))
    parameters = [p for p in engine.module.parameters() if p.requires_grad]
    gradient = [p.grad for p in parameters]
    found = response(engine.optimizer, parameters, gradient, _over_shards(parameters))
    engine.optimizer_zero_grad()
    hold.look(engine.optimizer, found)


def _mean_entropy(
    model_output: dict[str, Any], data: Any, dp_group: Any = None, *, mask: Tensor, weights: Tensor
) -> tuple[Tensor, dict[str, Any]]:
    """A micro-batch's part of the mean entropy, with the signature of veRL's losses.

    `mask` [n, T] and `weights` [n] (in the minibatch's mean) belong to the sampled rollouts.
    """
    rows = data[ROW].to(mask.device)
    H = responses(model_output["entropy"], data, mask.shape[1])
    total = torch.where(mask[rows], H, 0).sum(1) @ weights[rows]
    return total * data["dp_size"], {}


def _over_shards(parameters: list[Any]) -> Any:
    """Return a function that sums [3] over processes and counts each shard once."""
    copies = 1
    for p in parameters:
        if hasattr(p, "device_mesh"):
            sizes = zip(p.device_mesh.shape, p.placements, strict=True)
            copies = math.prod(n for n, where in sizes if isinstance(where, Replicate))
            copies *= dist.get_world_size() // p.device_mesh.size()
            break

    def total(sums: Tensor) -> Tensor:
        held = sums.to(parameters[0].device)
        dist.all_reduce(held)
        return held.cpu() / copies

    return total
