"""The gradient of the mean entropy in TRL, for the thermostat's multiplier.

Shapes: n rollouts of an optimizer step on this rank, T completion tokens at most.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from accelerate import DistributedType
from torch import Tensor, nn

from ...core.process_ranks import shared_generator
from ..hold import LEAST, SAMPLE, Hold, response
from .iteration import IMAGES, token_batch

if TYPE_CHECKING:
    from .trainer import EntropyGRPOTrainer

# each process has all parameters
_WHOLE = {name for name in DistributedType.__members__ if name == "NO" or name.startswith("MULTI_")}


def check_whole(hold: Hold, kind: Any) -> None:
    """Refuse what the multiplier cannot be solved for with.

    Raises:
        ValueError: parameters are sharded, or the exact form is asked for.
    """
    if hold.exact:
        raise ValueError(
            "thermostat: solve='exact' is for the lab; TRL takes 'sample', which holds as well"
        )
    if str(getattr(kind, "value", kind)) not in _WHOLE:
        raise ValueError(
            f"thermostat: the multiplier is solved for with whole parameters, and {kind} shards "
            "them; use DDP, or the method {'name': 'thermostat', 'target': ..., 'knob': "
            "'entropy_coef'}"
        )


def look(
    trainer: EntropyGRPOTrainer, hold: Hold, model: nn.Module, pieces: list[dict[str, Any]]
) -> None:
    """Take the gradient of the mean entropy before an optimizer step, from some of its rollouts.

    Args:
        trainer: whose step it is.
        hold: takes note of it.
        model: as TRL runs it.
        pieces: this rank's micro-batches.
    """
    parts = _sample(pieces, trainer)
    tokens = token_batch(parts).replace(ranks=trainer.ranks).whole.tokens
    optimizer = trainer.optimizer
    assert optimizer is not None
    parameters = [p for p in model.parameters() if p.requires_grad]
    kept = [p.grad for p in parameters]
    # DDP would wait for a backward pass of the loss; the model's own module is not wrapped
    quiet: Any = getattr(model, "no_sync", nullcontext)()
    with quiet, torch.enable_grad():
        for p in parameters:
            p.grad = None
        for part in parts:
            entropy = trainer.extra_pass(model, part)[1]
            assert entropy is not None
            mine = token_batch([part]).replace(entropy=entropy)
            assert mine.entropy is not None
            (mine.entropy.sum() / max(1, tokens)).backward()
    gradient = [p.grad for p in parameters]
    for p, old in zip(parameters, kept, strict=True):
        p.grad = old
    if trainer.ranks.world > 1:
        for p, h in zip(parameters, gradient, strict=True):
            dist.all_reduce(torch.zeros_like(p) if h is None else h)
    found = response(optimizer, parameters, gradient)
    hold.look(optimizer, found)


def _sample(pieces: list[dict[str, Any]], trainer: EntropyGRPOTrainer) -> list[dict[str, Any]]:
    """About a fourth of the rollouts of a step, as micro-batches."""
    ranks, step = trainer.ranks.world, trainer.state.global_step
    size = len(pieces[0]["completion_ids"])
    wanted = max(math.ceil(len(pieces) * size / SAMPLE), math.ceil(LEAST / ranks))
    chance = shared_generator(trainer.args.seed, "hold", step)
    places = torch.randperm(len(pieces), generator=chance)[: math.ceil(wanted / size)].tolist()
    chosen = [pieces[place] for place in sorted(places)]
    if len(chosen) > 1 or any(chosen[0].get(key) is not None for key in IMAGES):
        return chosen
    rows = torch.randperm(size, generator=chance)[:wanted].sort().values
    return [
        {
            key: value[rows.to(value.device)]
            if isinstance(value, Tensor) and value.ndim and len(value) == size else value
            for key, value in chosen[0].items()
        }
    ]  # fmt: skip
