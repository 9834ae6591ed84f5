"""An iteration of the lab as it is written down."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.batch import TokenBatch
from ...logs.rollouts import Rollouts
from ..dump import without_padding
from .experience import Sampled, Selection


def rollouts_of(
    sampled: Sampled, batch: TokenBatch, selection: Selection, tokenizer: Any,
    change: Tensor | None = None, influence: Tensor | None = None,
) -> Rollouts:  # fmt: skip
    """The rollouts of `batch` [B, T], with the advantages that those trained on have.

    `change` and `influence` [B, T] are an analysis's, where there is one. Rollouts at a second
    temperature, which come last, are left out: they are not what the policy says.
    """
    sequences, graded = sampled.sequences, selection.graded
    assert selection.batch.advantages is not None
    assert graded.idle is not None
    advantage = torch.zeros_like(batch.old_logp)
    advantage[selection.kept] = selection.batch.advantages.to(advantage.dtype)
    B = len(batch) if batch.tempered is None else int((~batch.tempered).sum())
    figures = {
        "logp": batch.old_logp, "sampler_logp": sequences.sampler_logp,
        "entropy": batch.old_entropy, "advantage": advantage,
        "change": change, "influence": influence,
    }  # fmt: skip
    assert batch.rewards is not None
    assert batch.group is not None
    return without_padding(
        sampled.iteration, tokenizer, sequences.completions[:B], sequences.completed[:B],
        batch.mask[:B], {k: None if x is None else x[:B] for k, x in figures.items()},
        prompts=[sampled.examples[g].prompt for g in batch.group[:B].tolist()],
        completions=sampled.answers.texts[:B], rewards=batch.rewards[:B],
        group=batch.group[:B].int(), finished=sequences.finished[:B], trained=~graded.idle[:B],
    )  # fmt: skip
