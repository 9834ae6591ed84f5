"""TRL's batches as ours: added fields, conversion, and metrics without an objective.

TRL holds a batch as a dictionary of tensors. Fields added to a generation batch survive its shuffle
and its split into micro-batches.

Shapes: B rollouts of a micro-batch, or of all ranks; T completion tokens at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from trl.trainer.utils import (
    split_pixel_values_by_grid,
    split_tensor_dict,
    unsplit_pixel_values_by_grid,
)

from ...core.batch import TokenBatch
from ...core.process_ranks import sum_over_ranks
from ...data.seeds import shuffled
from ...dynamics import online

OLD_LOGP, OLD_ENTROPY = "entrostat_old_logp", "entrostat_old_entropy"
GROUP, ROLLOUT = "entrostat_group", "entrostat_rollout"
# fields of a graded and prepared batch; the last exists only if a method edits advantages
_ADDED = {
    "advantages": "entrostat_advantage", "idle": "entrostat_idle", "rewards": "entrostat_reward",
    "group": GROUP, "rollout": ROLLOUT, "edited": "entrostat_edited",
}  # fmt: skip
IMAGES = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes",
    "num_tiles", "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip


class Scored(NamedTuple):
    """A scored rollout of this process."""

    row: Mapping[str, Any]  # row of the data set
    ids: list[int]  # its tokens, before masking
    text: str  # decoded tokens
    finished: bool  # whether it ended by eos or a stop


def loss_mask(inputs: dict[str, Any]) -> Tensor:
    """Sampled tokens that TRL trains on, [B, T] bool."""
    mask = inputs["completion_mask"]
    return (mask * inputs["tool_mask"] if "tool_mask" in inputs else mask).bool()


def cut_anew(pieces: list[dict[str, Any]], whole_groups: bool) -> list[dict[str, Any]]:
    """Shuffle rollouts into the same number of micro-batches, with torch's generator."""
    pieces = [split_pixel_values_by_grid(piece) for piece in pieces]  # a row a rollout
    group = torch.cat([piece[GROUP] for piece in pieces])
    order = shuffled(group, whole_groups, torch.default_generator)

    def joined(parts: list[Any]) -> Any:
        if isinstance(parts[0], Tensor) and parts[0].ndim:
            return torch.cat(parts)[order]
        if isinstance(parts[0], list):
            rows = [row for part in parts for row in part]
            return [rows[i] for i in order]
        return parts[0]  # None, or a value of the whole batch

    whole = {key: joined([piece[key] for piece in pieces]) for key in pieces[0]}
    return [unsplit_pixel_values_by_grid(piece) for piece in split_tensor_dict(whole, len(pieces))]


def addition(ready: TokenBatch) -> dict[str, Tensor]:
    """Fields that a graded and prepared batch adds to TRL's; `token_batch` reads them."""
    found = {key: getattr(ready, name) for name, key in _ADDED.items()}
    return {key: value for key, value in found.items() if value is not None}


def token_batch(pieces: list[dict[str, Any]]) -> TokenBatch:
    """Join micro-batches under the sampling policy, which also gives `logp` and `entropy`."""

    def joined(name: str) -> Tensor | None:
        parts = [piece[name] for piece in pieces if name in piece]
        return torch.cat(parts) if parts else None

    mask = torch.cat([loss_mask(piece) for piece in pieces])
    logp, entropy = joined(OLD_LOGP), joined(OLD_ENTROPY)
    assert logp is not None
    added: dict[str, Any] = {name: joined(key) for name, key in _ADDED.items()}
    correction = joined("importance_sampling_ratio")  # [B, T] or [B, 1], if vLLM sampled
    return TokenBatch(
        logp, logp, mask, entropy=entropy, old_entropy=entropy,
        ref_logp=joined("ref_per_token_logps"),
        correction=None if correction is None else correction.expand(mask.shape),
        **added,
    )  # fmt: skip


def micro_batches(pieces: list[dict[str, Any]]) -> Tensor:
    """Micro-batch index of each rollout, [B] int64."""
    sizes = torch.tensor([len(piece["completion_ids"]) for piece in pieces])
    return torch.arange(len(pieces)).repeat_interleave(sizes).to(pieces[0]["completion_ids"].device)


def shares(
    trainer: Any, pieces: list[dict[str, Any]], kind: str, constant: int
) -> tuple[Tensor, Tensor]:
    """Weight of each token in TRL's own loss, [B, T]: in the policy term, and in the bonus.

    `pieces` are this rank's micro-batches of an optimizer step, or of part of it. `kind` is the
    loss type that sets the denominators, `constant` the divisor of a sum over tokens.
    """
    world, args, micro = trainer.accelerator.num_processes, trainer.args, len(pieces)
    scale, mean = [], []
    for piece in pieces:
        m = loss_mask(piece).to(piece[OLD_LOGP].dtype)
        if kind in ("dapo", "cispo", "vespo"):  # equal weight for the generation batch's tokens
            total = piece["num_items_in_batch"].clamp(min=1.0)
            each = m / (total / world * micro / args.steps_per_generation)
        elif kind == "bnpo":
            each = m / m.sum().clamp(min=1) / micro
        else:
            lengths = m.sum(-1, keepdim=True).clamp(min=1)
            each = m / (lengths if kind in ("grpo", "sapo") else constant) / len(m) / micro
        scale.append(each / world)
        mean.append(m / m.sum().clamp(min=1) / micro / world)
    return torch.cat(scale), torch.cat(mean)


def watched(batch: TokenBatch, outcome: Tensor, exact: bool) -> dict[str, float]:
    """Entropy dynamics of a generation batch that is trained without an objective.

    `outcome` [B] are the trainer's advantages. Update metrics are added only if `exact`: the update
    is the only one on the batch, so its policy is the one that sampled.
    """
    figures = online.of_rollouts(batch, outcome, batch.need("rewards"))
    if not (exact and figures):
        return figures
    mask = batch.policy_mask
    sums = online.token_sums(batch.old_logp, batch.need("advantages"), mask, batch.old_entropy)
    return online.figures(sum_over_ranks(sums)) | figures
