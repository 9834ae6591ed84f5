"""What an analysis asks of a policy: statistics of its tokens, some sequences at a time.

Shapes: B sequences, T completion tokens at most.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.stats import TokenStats
from .policy import Policy
from .rollout import Sequences

_STATISTICS = ("logp", "entropy", "sum_p2", "sum_p2_logp")


@dataclass(frozen=True)
class PolicyEvaluator:
    """A policy, and how it is measured; any host's.

    Attributes:
        policy: in plain float32, by operations that forward mode knows.
        temperature: that of sampling.
        size: sequences that fit in memory at once.
    """

    policy: Policy
    temperature: float
    size: int

    def pieces(self, sequences: Sequences) -> tuple[Tensor, ...]:
        """The rows in parts that fit in memory."""
        rows = torch.arange(len(sequences.tokens), device=sequences.tokens.device)
        return rows.split(self.size)

    def stats(self, sequences: Sequences) -> TokenStats:
        """Log-probs and entropies [B, T], with gradient."""
        return self.policy.token_stats(sequences, self.temperature)

    def measure(self, sequences: Sequences) -> TokenStats:
        """Log-probs and entropies [B, T] of the policy as it stands, in parts, without gradient."""
        return self.policy.measure(sequences, self.temperature, self.size)

    @torch.no_grad()
    def statistics(self, sequences: Sequences) -> dict[str, Tensor]:
        """`logp`, `entropy`, `sum_p2`, `sum_p2_logp` as the policy stands: [B, T] float32."""
        found = [
            self.policy.token_stats(sequences[rows], self.temperature, moments=True)
            for rows in self.pieces(sequences)
        ]
        return {name: torch.cat([getattr(stats, name) for stats in found]) for name in _STATISTICS}
