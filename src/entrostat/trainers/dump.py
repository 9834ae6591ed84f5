"""An iteration's rollouts as they are written down: without padding, with their texts.

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
    """The rollouts of an iteration, those of a prompt side by side.

    Of the token `ids` [B, T] a rollout has those `there`, an environment's too, and the policy
    sampled its `own`, both [B, T] bool. `figures` [B, T] go by the fields of `Rollouts`; where an
    environment spoke they are written as NaN. `rows` are the fields that have a value a rollout.
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
