"""An iteration's rollouts as they are written down: without padding, with their texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...batch import TokenBatch
from ...logs.rollouts import Rollouts
from ...tasks import Example
from .policy import Policy
from .rollout import Sequences


def rollouts_of(
    iteration: int,
    policy: Policy,
    sequences: Sequences,
    batch: TokenBatch,
    train_batch: TokenBatch,
    kept: Tensor,
    examples: Sequence[Example],
    texts: list[str],
    change: Tensor | None = None,
    influence: Tensor | None = None,
) -> Rollouts:
    """The rollouts of `batch`, with the advantages that `train_batch`, its rows `kept`, has.

    `change` and `influence` [B, T] are an analysis's, where there is one.
    """
    assert batch.rewards is not None
    assert batch.group is not None
    assert batch.old_entropy is not None
    assert train_batch.advantages is not None
    advantage = torch.zeros_like(batch.old_logp)
    if len(kept):
        advantage[kept] = train_batch.advantages.to(advantage.dtype)
    trained = torch.zeros_like(sequences.finished)
    trained[kept] = True
    start = torch.cat([batch.lengths.new_zeros(1), batch.lengths.cumsum(0)])
    tokens = flatten(sequences.completions, batch.mask)
    return Rollouts(
        iteration=iteration,
        prompts=[examples[g].prompt for g in batch.group.tolist()],
        completions=texts,
        rewards=batch.rewards.cpu(),
        group=batch.group.int().cpu(),
        finished=sequences.finished.cpu(),
        trained=trained.cpu(),
        start=start.cpu(),
        tokens=tokens.int(),
        logp=flatten(batch.old_logp, batch.mask),
        sampler_logp=flatten(sequences.sampler_logp, batch.mask),
        entropy=flatten(batch.old_entropy, batch.mask),
        advantage=flatten(advantage, batch.mask),
        pieces=token_pieces(policy.tokenizer, tokens),
        change=None if change is None else flatten(change, batch.mask),
        influence=None if influence is None else flatten(influence, batch.mask),
    )


def flatten(values: Tensor, mask: Tensor) -> Tensor:
    """[B, T] -> [n]: the entries at mask 1, row after row, on the CPU."""
    return values[mask].cpu()


def token_pieces(tokenizer: Any, tokens: Tensor) -> dict[int, str]:
    """Text of each id among `tokens` [n]."""
    ids = torch.unique(tokens).tolist()
    return dict(zip(ids, tokenizer.batch_decode([[i] for i in ids]), strict=True))
