"""A policy's token statistics, in micro-batches, and prompt embeddings, for analyses.

Shapes: B sequences, T completion tokens at most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.stats import TokenStats
from .policy import Policy
from .rollout import Sequences, positions


@dataclass(frozen=True)
class PolicyEvaluator:
    policy: Policy  # in plain float32, by operations with a forward-mode derivative
    temperature: float  # of sampling
    size: int  # sequences that fit in memory at once

    def pieces(self, sequences: Sequences) -> tuple[Tensor, ...]:
        rows = torch.arange(len(sequences.tokens), device=sequences.tokens.device)
        return rows.split(self.size)

    def stats(self, sequences: Sequences) -> TokenStats:
        """Log-probs and entropies [B, T], with gradient."""
        return self.policy.token_stats(sequences, self.temperature)

    def measure(self, sequences: Sequences) -> TokenStats:
        """Log-probs and entropies [B, T] of the current policy, in parts, without gradient."""
        return self.policy.measure(sequences, self.temperature, self.size)

    @torch.no_grad()
    def statistics(self, sequences: Sequences) -> dict[str, Tensor]:
        """`logp`, `entropy`, `sum_p2`, `sum_p2_logp` of the current policy: [B, T] float32."""
        found = [
            self.policy.token_stats(sequences[rows], self.temperature, moments=True)
            for rows in self.pieces(sequences)
        ]
        names = ("logp", "entropy", "sum_p2", "sum_p2_logp")
        return {name: torch.cat([getattr(stats, name) for stats in found]) for name in names}


@torch.no_grad()
def embed(policy: Policy, prompts: list[list[int]], batch: int = 32) -> NDArray[np.float64]:
    """PAR App. D.3's embeddings of prompts, given as token ids: [len(prompts), D].

    The mean of the hidden states of a prompt's own tokens after the last layer (and the last norm).
    """
    rows: dict[int, NDArray[np.float64]] = {}
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for start in range(0, len(order), batch):
        places = order[start : start + batch]
        asked, nothing = [prompts[i] for i in places], [[] for _ in places]
        padded = Sequences.ragged(asked, nothing, places, policy.pad, policy.device)
        real = padded.attention  # [b, P]
        with policy.autocast():
            hidden = policy.model(
                input_ids=padded.tokens, attention_mask=real, position_ids=positions(real),
                use_cache=False, output_hidden_states=True, logits_to_keep=1,
            ).hidden_states[-1]  # fmt: skip
        total = (hidden.double() * real[..., None]).sum(1)  # [b, D]
        means = (total / real.sum(1, keepdim=True)).cpu().numpy()
        rows |= dict(zip(places, means, strict=True))
    return np.stack([rows[i] for i in range(len(prompts))])
