"""DeepSeek-V3.2's mask of rollouts that have drifted (arXiv 2512.02556)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.batch import Terms, TokenBatch
from ..core.deterministic import row_sums
from .base import Method, within
from .ratios import log_ratio


@dataclass(frozen=True)
class OffPolicyMask(Method):
    """Off-policy sequence mask: rollouts of negative advantage that have drifted are left out.

    Weight 0 where A < 0 and the rollout's mean of lp0 - lp is above delta; DeepSeek-V3.2 (arXiv
    2512.02556), Eq. 9; TRL's `off_policy_mask_threshold`. TRL takes vLLM's log-probs for lp0 where
    vLLM samples; here lp0 is the old policy's.

    Parameters:
        delta: largest mean drift, nats per token.
    """

    delta: float = within(0.5, 0, above=True)

    paper: ClassVar[str] = "arXiv 2512.02556"
    reads_current: ClassVar[bool] = False
    idle_on_policy: ClassVar[str] = "no rollout has drifted"

    def local(self, batch: TokenBatch, terms: Terms, state: Any) -> Terms:
        x, most = log_ratio(batch), -self.delta * batch.lengths
        # the exact sums are dear: of the rollouts alone that may have drifted, whatever a plain sum
        # is off by (at most T eps times the sum of magnitudes)
        off = x.shape[1] * torch.finfo(x.dtype).eps * x.abs().sum(-1)
        near = (x.sum(-1) - off < most).nonzero()[:, 0]
        if not len(near):
            return terms
        drifted = torch.zeros_like(batch.mask[:, :1])
        drifted[near, 0] = row_sums(x[near]) < most[near]
        return terms.replace(weight=terms.weight.masked_fill((terms.advantage < 0) & drifted, 0))
