"""Detached importance ratios to the old policy, for weights and masks.

Shapes: B rollouts, T completion tokens.
"""

from __future__ import annotations

from torch import Tensor

from ..core.batch import TokenBatch, at_least_float32
from ..core.deterministic import row_sums
from ..core.loss import MAX_LOG_RATIO


def log_ratio(batch: TokenBatch) -> Tensor:
    """[B, T]: lp - lp0, without gradient."""
    return at_least_float32(batch.logp.detach()) - at_least_float32(batch.old_logp)


def ratio_of(batch: TokenBatch) -> Tensor:
    """[B, T]: exp(lp - lp0), without gradient."""
    return log_ratio(batch).clamp(max=MAX_LOG_RATIO).exp()


def row_mean(values: Tensor, batch: TokenBatch) -> Tensor:
    """[B]: mean of `values` [B, T] (0 at mask 0) over each rollout's tokens; 0 without tokens."""
    return (row_sums(values) / batch.lengths.clamp(min=1)).to(values.dtype)
