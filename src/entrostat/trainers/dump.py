"""Convert an iteration's rollouts to the stored form: without padding, with their texts.

Shapes: B rollouts, T completion tokens at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..logs.rollouts import Rollouts
from ..models.policy import token_pieces


def without_padding(
    iteration: int, tokenizer: Any, ids: Tensor, there: Tensor, own: Tensor,
    figures: Mapping[str, Tensor | None], **rows: Any,
) -> Rollouts:  # fmt: skip
    """Build the `Rollouts` of an iteration; rollouts of a prompt are adjacent.

    `ids` [B, T] are token ids. `there` [B, T] bool marks a rollout's tokens, observation tokens
    included; `own` [B, T] bool marks sampled ones. `figures` [B, T] are named after fields of
    `Rollouts`; they are NaN at observation tokens. `rows` are the per-rollout fields.
    """
    tokens, sampled = ids[there].cpu(), own[there].cpu()
    columns: dict[str, Any] = {
        name: values[there].cpu().float().masked_fill(~sampled, torch.nan)
        for name, values in figures.items()
        if values is not None
    }
    columns |= {name: x.cpu() if isinstance(x, Tensor) else x for name, x in rows.items()}
    return Rollouts(
        iteration=iteration,
        start=pad(there.sum(-1).cumsum(0), (1, 0)).cpu(),
        tokens=tokens.int(),
        pieces=token_pieces(tokenizer, tokens),
        sampled=None if bool(sampled.all()) else sampled,
        **columns,
    )
