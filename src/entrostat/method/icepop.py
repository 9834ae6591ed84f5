"""IcePop: masks tokens whose ratio is outside a band (arXiv 2510.18855)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.batch import Terms, TokenBatch
from .base import Rng, Surrogate, within
from .ratios import ratio_of
from .surrogates import clip_bounds


@dataclass(frozen=True)
class Icepop(Surrogate):
    """IcePop: log-probs weighted by the ratio; tokens whose ratio is outside a band are masked.

    -sg(r 1[low <= r <= high]) A lp; Ring-1T (arXiv 2510.18855), with the ratio of the trainer's to
    the sampler's probability. This method equals it if the old log-probs are the sampler's. If the
    trainer recomputes them, use the trainer's own sampler correction instead: in TRL
    vllm_importance_sampling_mode="token_mask", in veRL rollout_is_threshold="0.5_5.0".

    Parameters:
        low, high: the band; .5 and 5 in the paper.
    """

    low: float = within(0.5, 0, 1)
    high: float = within(5.0, 1)

    paper: ClassVar[str] = "arXiv 2510.18855"

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        return clip_bounds(terms, 1 - self.low, self.high - 1).replace(ratio="none")

    def local(self, batch: TokenBatch, terms: Terms, state: Any) -> Terms:
        r = ratio_of(batch)
        inside = (r >= terms.ratio_min) & (r <= terms.ratio_max)
        return terms.replace(weight=terms.weight * torch.where(inside, r, 0))
