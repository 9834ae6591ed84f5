"""An iteration's rollouts as they are written down, from the batch that the driver holds. No veRL.

Shapes: B rows of the batch, T completion tokens at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...logs.rollouts import Rollouts
from ...models.policy import token_pieces


def rollouts_of(
    iteration: int,
    prompts: Sequence[Tensor],
    notes: Sequence[Mapping[str, Any]],
    batch: Mapping[str, Tensor],
    tokenizer: Any,
) -> Rollouts:
    """The rollouts of an iteration; those of a prompt side by side.

    Args:
        iteration: which one.
        prompts: B times token ids.
        notes: B, what the agent loop noted: `completion`, `finished`.
        batch: [B, T] responses, mask (1 where the policy spoke), logp, entropy, advantages,
            sampler_logp (may be absent); [B] lengths (tokens of a response, the environment's too),
            rewards, group, idle.
        tokenizer: the model's.
    """
    order = torch.argsort(batch["group"], stable=True)
    rows = {name: values[order] for name, values in batch.items()}
    places = order.tolist()
    _, group = torch.unique(rows["group"], return_inverse=True)
    lengths = rows["lengths"]
    there = torch.arange(rows["mask"].shape[1]) < lengths[:, None]
    own = rows["mask"].bool()[there]
    tokens = rows["responses"][there].cpu()
    idle = rows["idle"].bool()
    nothing = torch.full_like(rows["logp"], torch.nan)

    def of_tokens(values: Tensor) -> Tensor:
        """[B, T] -> [n]; NaN where an environment spoke."""
        return values[there].cpu().float().masked_fill(~own, torch.nan)

    return Rollouts(
        iteration=iteration,
        prompts=tokenizer.batch_decode([prompts[i].tolist() for i in places]),
        completions=[notes[i]["completion"] for i in places],
        rewards=rows["rewards"].float(),
        group=group.int(),
        finished=torch.tensor([bool(notes[i]["finished"]) for i in places]),
        trained=~idle,
        start=torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]),
        tokens=tokens.int(),
        logp=of_tokens(rows["logp"]),
        sampler_logp=of_tokens(rows.get("sampler_logp", nothing)),
        entropy=of_tokens(rows["entropy"]),
        advantage=of_tokens(rows["advantages"].masked_fill(idle[:, None], 0)),
        pieces=token_pieces(tokenizer, tokens),
        sampled=None if bool(own.all()) else own,
    )
