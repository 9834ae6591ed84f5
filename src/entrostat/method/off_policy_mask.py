"""DeepSeek-V3.2's mask of off-policy rollouts (arXiv 2512.02556)."""

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
    """Off-policy sequence mask: masks rollouts with A < 0 that have become unlikely.

    Weight 0 where A < 0 and the rollout's mean of lp0 - lp is above delta; DeepSeek-V3.2 (arXiv
    2512.02556), Eq. 9; TRL's `off_policy_mask_threshold`. If vLLM samples, TRL takes vLLM's
    log-probs for lp0; here lp0 is the old policy's.

    Parameters:
        delta: largest mean of lp0 - lp, nats per token.
    """

    delta: float = within(0.5, 0, above=True)

    paper: ClassVar[str] = "arXiv 2512.02556"
    reads_current: ClassVar[bool] = False
    idle_on_policy: ClassVar[str] = "no rollout has drifted"

    def local(self, batch: TokenBatch, terms: Terms, state: Any) -> Terms:
        x, most = log_ratio(batch), -self.delta * batch.lengths
        # exact sums are slow: compute them only where the plain sum, within its error (at most
        # T eps times the sum of magnitudes), may be below `most`
        off = x.shape[1] * torch.finfo(x.dtype).eps * x.abs().sum(-1)
        near = (x.sum(-1) - off < most).nonzero()[:, 0]
        if not len(near):
            return terms
        drifted = torch.zeros_like(batch.mask[:, :1])
        drifted[near, 0] = row_sums(x[near]) < most[near]
        return terms.replace(weight=terms.weight.masked_fill((terms.advantage < 0) & drifted, 0))
