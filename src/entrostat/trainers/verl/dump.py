"""An iteration's rollouts as they are written down, from the batch that the driver holds. No veRL.

Shapes: B rows of the batch, T completion tokens at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...logs.rollouts import Rollouts
from ..dump import without_padding


def rollouts_of(
    iteration: int, prompts: Sequence[Tensor], notes: Sequence[Mapping[str, Any]],
    batch: Mapping[str, Tensor], tokenizer: Any,
) -> Rollouts:  # fmt: skip
    """The rollouts of an iteration; those of a prompt side by side.

    `prompts` are B times token ids, `notes` B times what the agent loop noted (`completion`,
    `finished`). `batch` has [B, T] responses, mask (1 where the policy spoke), logp, entropy,
    advantages, sampler_logp (may be absent); [B] lengths (tokens of a response, the environment's
    too), rewards, group, idle.
    """
    order = torch.argsort(batch["group"], stable=True)
    rows = {name: values[order] for name, values in batch.items()}
    places, idle, mask = order.tolist(), rows["idle"].bool(), rows["mask"].bool()
    figures = {
        "logp": rows["logp"], "entropy": rows["entropy"],
        "sampler_logp": rows.get("sampler_logp", torch.full_like(rows["logp"], torch.nan)),
        "advantage": rows["advantages"].masked_fill(idle[:, None], 0),
    }  # fmt: skip
    return without_padding(
        iteration, tokenizer, rows["responses"],
        torch.arange(mask.shape[1]) < rows["lengths"][:, None], mask, figures,
        prompts=tokenizer.batch_decode([prompts[i].tolist() for i in places]),
        completions=[notes[i]["completion"] for i in places],
        rewards=rows["rewards"].float(),
        group=torch.unique(rows["group"], return_inverse=True)[1].int(),
        finished=torch.tensor([bool(notes[i]["finished"]) for i in places]), trained=~idle,
    )  # fmt: skip
