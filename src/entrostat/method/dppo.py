"""DPPO: a trust region in probability, not in the ratio (arXiv 2602.04879)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from ..core.batch import Terms, TokenBatch, at_least_float32
from .base import Rng, Surrogate, in_range, one_of
from .ratios import ratio_of


@dataclass(frozen=True)
class Dppo(Surrogate):
    """DPPO: tokens that moved too far away are left out, judged by a divergence, not by the ratio.

    -sg(min(r, cap)) M A lp, where M = 0 for A > 0 if the token's probability p rose, for A <= 0 if
    it fell, by more than the bound (arXiv 2602.04879). With p0 the old probability the distance is
    |p - p0| ("tv") or the KL of the two-outcome distributions (p0, 1 - p0) and (p, 1 - p) ("kl").
    The paper's public code, which is veRL's, agrees.

    Parameters:
        divergence: "tv" or "kl".
        low: bound where A <= 0.
        high: bound where A > 0. The paper uses .15 to .2 for "tv" and .05 for "kl".
        cap: the ratio is at most this; the paper's 20.
    """

    divergence: Literal["tv", "kl"] = "tv"
    low: float = 0.2
    high: float = 0.2
    cap: float = 20.0

    paper: ClassVar[str] = "arXiv 2602.04879"

    def __post_init__(self) -> None:
        one_of("dppo", "divergence", self.divergence, ("tv", "kl"))
        in_range("dppo", "low", self.low, 0)
        in_range("dppo", "high", self.high, 0)
        in_range("dppo", "cap", self.cap, 1)

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        """No ratio with a gradient."""
        return terms.replace(ratio="none")

    def local(self, batch: TokenBatch, terms: Terms, state: Any) -> Terms:
        """Weight by the truncated ratio, 0 beyond the bound."""
        lp, lp0 = at_least_float32(batch.logp.detach()), at_least_float32(batch.old_logp)
        p, p0 = lp.exp(), lp0.exp()
        distance = (p - p0).abs()
        if self.divergence == "kl":
            others = ((1 - p0 + 1e-8) / (1 - p + 1e-8)).log()
            distance = p0 * (lp0 - lp) + (1 - p0) * others
        rises = terms.advantage > 0
        bound = torch.where(rises, self.high, self.low)
        away = torch.where(rises, p > p0, p < p0)
        weight = torch.where(away & (distance > bound), 0, ratio_of(batch).clamp(max=self.cap))
        return terms.replace(weight=terms.weight * weight)
