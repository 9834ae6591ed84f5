"""Prompts as vectors: the mean over a prompt's tokens of a model's last layer."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from .policy import Policy
from .rollout import positions


@torch.no_grad()
def embed(policy: Policy, prompts: list[list[int]], batch: int = 32) -> NDArray[np.float64]:
    """PAR App. D.3's representation of prompts.

    Args:
        policy: the model.
        prompts: token ids, none empty.
        batch: prompts at once, of like length.

    Returns:
        [len(prompts), D]: the mean of the hidden states of the prompt's own tokens after the last
        layer (and the model's last norm).
    """
    rows: dict[int, NDArray[np.float64]] = {}
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for start in range(0, len(order), batch):
        places = order[start : start + batch]
        width = max(len(prompts[i]) for i in places)
        tokens = [[policy.pad] * (width - len(prompts[i])) + prompts[i] for i in places]
        ids = torch.tensor(tokens, device=policy.device)
        lengths = torch.tensor([len(prompts[i]) for i in places], device=policy.device)
        real = torch.arange(width, device=policy.device) >= width - lengths[:, None]
        with policy.autocast():
            hidden = policy.model(
                input_ids=ids, attention_mask=real.long(), position_ids=positions(real.long()),
                use_cache=False, output_hidden_states=True, logits_to_keep=1,
            ).hidden_states[-1]  # fmt: skip
        total = (hidden.double() * real[..., None]).sum(1)  # [b, D]
        means = (total / lengths[:, None]).cpu().numpy()
        rows |= dict(zip(places, means, strict=True))
    return np.stack([rows[i] for i in range(len(prompts))])
