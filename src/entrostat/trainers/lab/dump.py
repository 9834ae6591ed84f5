"""An iteration's rollouts as they are written down: without padding, with their texts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.batch import TokenBatch
from ...logs.rollouts import Rollouts
from ...models.policy import token_pieces
from .experience import Sampled, Selection


def rollouts_of(
    sampled: Sampled,
    batch: TokenBatch,
    selection: Selection,
    tokenizer: Any,
    change: Tensor | None = None,
    influence: Tensor | None = None,
) -> Rollouts:
    """The rollouts of `batch` [B, T], with the advantages that those trained on have.

    `change` and `influence` [B, T] are an analysis's, where there is one. Rollouts at a second
    temperature, which come last, are left out: they are not what the policy says.
    """
    sequences, kept = sampled.sequences, selection.kept
    assert selection.batch.advantages is not None
    advantage = torch.zeros_like(batch.old_logp)
    if len(kept):
        advantage[kept] = selection.batch.advantages.to(advantage.dtype)
    assert selection.graded.idle is not None
    trained, texts = ~selection.graded.idle, sampled.answers.texts
    if batch.tempered is not None:
        B = int((~batch.tempered).sum())
        rows = torch.arange(B, device=batch.mask.device)
        sequences, batch, texts = sequences[rows], batch[rows], texts[:B]
        advantage, trained = advantage[rows], trained[rows]
        change, influence = (None if x is None else x[rows] for x in (change, influence))
    assert batch.rewards is not None
    assert batch.group is not None
    assert batch.old_entropy is not None
    own = batch.mask[there := sequences.completed].cpu()  # [n]
    start = torch.cat([batch.lengths.new_zeros(1), there.sum(-1).cumsum(0)])
    tokens = sequences.completions[there].cpu()

    def of_tokens(values: Tensor) -> Tensor:
        """[B, T] -> [n]; NaN where an environment spoke."""
        return values[there].cpu().masked_fill(~own, torch.nan)

    return Rollouts(
        iteration=sampled.iteration,
        prompts=[sampled.examples[g].prompt for g in batch.group.tolist()],
        completions=texts,
        rewards=batch.rewards.cpu(),
        group=batch.group.int().cpu(),
        finished=sequences.finished.cpu(),
        trained=trained.cpu(),
        start=start.cpu(),
        tokens=tokens.int(),
        logp=of_tokens(batch.old_logp),
        sampler_logp=of_tokens(sequences.sampler_logp),
        entropy=of_tokens(batch.old_entropy),
        advantage=of_tokens(advantage),
        pieces=token_pieces(tokenizer, tokens),
        change=None if change is None else of_tokens(change),
        influence=None if influence is None else of_tokens(influence),
        sampled=None if bool(own.all()) else own,
    )
