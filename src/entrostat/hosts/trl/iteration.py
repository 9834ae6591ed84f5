"""TRL's batches as ours: what is added to them, read from them, and watched without an objective.

TRL holds a batch as a dictionary of tensors. What we add to a generation batch survives its shuffle
and its split into micro-batches.

Shapes: B rollouts of a micro-batch, or of all ranks; T completion tokens at most.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...advantage import with_signal
from ...batch import TokenBatch
from ...dynamics import online

OLD_LOGP, OLD_ENTROPY = "entrostat_old_logp", "entrostat_old_entropy"
ADVANTAGE, IDLE, REWARD, GROUP = (
    "entrostat_advantage", "entrostat_idle", "entrostat_reward", "entrostat_group",
)  # fmt: skip
EDITED = "entrostat_edited"  # only where a method edits advantages
IMAGES = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes",
    "num_tiles", "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip


def loss_mask(inputs: dict[str, Any]) -> Tensor:
    """[B, T] bool: the tokens that the policy sampled and TRL trains on."""
    mask = inputs["completion_mask"]
    return (mask * inputs["tool_mask"] if "tool_mask" in inputs else mask).bool()


def addition(ready: TokenBatch) -> dict[str, Tensor]:
    """What a graded and prepared batch adds to TRL's: `token_batch` reads it again."""
    fields = {
        ADVANTAGE: ready.advantages, IDLE: ready.idle, REWARD: ready.rewards, GROUP: ready.group,
        EDITED: ready.edited,
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value is not None}


def token_batch(pieces: list[dict[str, Any]]) -> TokenBatch:
    """Micro-batches as one batch under the policy that sampled; `logp` and `entropy` are its."""

    def joined(name: str) -> Tensor | None:
        parts = [piece[name] for piece in pieces if name in piece]
        return torch.cat(parts) if parts else None

    mask = torch.cat([loss_mask(piece) for piece in pieces])
    logp, entropy = joined(OLD_LOGP), joined(OLD_ENTROPY)
    assert logp is not None
    correction = joined("importance_sampling_ratio")  # [B, T] or [B, 1], where vLLM sampled
    return TokenBatch(
        logp, logp, mask, joined(ADVANTAGE), rewards=joined(REWARD), group=joined(GROUP),
        entropy=entropy, old_entropy=entropy, ref_logp=joined("ref_per_token_logps"),
        correction=None if correction is None else correction.expand(mask.shape),
        edited=joined(EDITED), idle=joined(IDLE),
    )  # fmt: skip


def watched(whole: TokenBatch, exact: bool) -> dict[str, float]:
    """Entropy dynamics of a generation batch that no objective trains on.

    Args:
        whole: all rollouts, `advantages` [B] the trainer's own.
        exact: one update is made on the batch, so that its policy is the one that sampled; the
            figures of an update are left out where it is not.
    """
    assert whole.rewards is not None
    assert whole.group is not None
    assert whole.advantages is not None
    signal = with_signal(whole.advantages, whole.group)
    if not bool(signal.any()):
        return {}
    trained = whole[signal]
    outcome, mask = whole.advantages[signal], trained.mask
    A = outcome[:, None].expand(mask.shape)
    figures = online.of_rollouts(trained.replace(advantages=A), outcome, whole.rewards[signal])
    if not exact:
        return figures
    sums = online.token_sums(trained.old_logp, A, mask, trained.old_entropy)
    return online.figures({key: float(value) for key, value in sums.items()}) | figures
