"""GMPO: the geometric mean of clipped ratios (arXiv 2507.20673)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.batch import Terms, TokenBatch
from ..core.loss import MAX_LOG_RATIO
from .base import Surrogate, within
from .ratios import log_ratio, ratio_of, row_mean


@dataclass(frozen=True)
class Gmpo(Surrogate):
    """GMPO: one ratio per sequence, the geometric mean of its tokens' clipped ratios.

    -s A at every token, s = exp(mean over tokens of c), where c = lp - lp0 is clipped to at most
    `high` if A > 0 and to at least -`low` if A < 0; a clipped token has no gradient (arXiv
    2507.20673). The bounds apply to the log ratio. Deviation: advantages per token are allowed.

    Parameters:
        low, high: bounds of the log ratio; .4 in the paper. None for no clip.
    """

    low: float | None = within(0.4, 0)
    high: float | None = within(0.4, 0)

    paper: ClassVar[str] = "arXiv 2507.20673"
    base: ClassVar[str] = "grpo"

    def local(self, batch: TokenBatch, terms: Terms, state: Any) -> Terms:
        """Replace the token's ratio by the sequence's; clipped tokens get no gradient."""
        d, A = log_ratio(batch), terms.advantage
        low = math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        cut = ((A > 0) & (d > high)) | ((A < 0) & (d < -low))
        kept = torch.where(cut, d.clamp(-low, high), d)
        s = row_mean(kept, batch)[:, None].clamp(max=MAX_LOG_RATIO).exp()
        own = ratio_of(batch).clamp(min=math.exp(-MAX_LOG_RATIO))
        return terms.replace(weight=terms.weight * s / own).freeze(cut & batch.policy_mask)
