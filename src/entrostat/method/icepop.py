"""IcePop: tokens outside of a band of the ratio are left out (arXiv 2510.18855)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.batch import Terms, TokenBatch
from .base import Rng, Surrogate, in_range
from .ratios import ratio_of
from .surrogates import clip_bounds


@dataclass(frozen=True)
class IcePop(Surrogate):
    """IcePop: log-probs weighted by the ratio, tokens outside of a band left out on both sides.

    -sg(r 1[low <= r <= high]) A lp; Ring-1T (arXiv 2510.18855), which takes the ratio of the
    trainer's to the sampler's probability. That is this method where the old log-probs are the
    sampler's. Where a trainer recomputes them, its own correction of the sampler does the same: in
    TRL vllm_importance_sampling_mode="token_mask", in veRL rollout_is_threshold="0.5_5.0".

    Parameters:
        low, high: the band; .5 and 5 in the paper.
    """

    low: float = 0.5
    high: float = 5.0

    paper: ClassVar[str] = "arXiv 2510.18855"

    def __post_init__(self) -> None:
        in_range("icepop", "low", self.low, 0, 1)
        in_range("icepop", "high", self.high, 1)

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        """No ratio with a gradient."""
        return clip_bounds(terms, 1 - self.low, self.high - 1).replace(ratio="none")

    def local(self, batch: TokenBatch, terms: Terms, state: Any) -> Terms:
        """Weight by the ratio, 0 outside of the band."""
        r = ratio_of(batch)
        inside = (r >= terms.ratio_min) & (r <= terms.ratio_max)
        return terms.replace(weight=terms.weight * torch.where(inside, r, 0))
