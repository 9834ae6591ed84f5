"""DPPO: a trust region in probability, not in the ratio (arXiv 2602.04879)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from ..core.batch import Ratio, Terms, TokenBatch, at_least_float32
from .base import Surrogate, within
from .ratios import ratio_of


@dataclass(frozen=True)
class Dppo(Surrogate):
    """DPPO: masks tokens by the divergence of their probabilities, not by the ratio.

    -sg(min(r, cap)) M A lp. M = 0 if the token's probability p rose (A > 0) or fell (A <= 0) by
    more than the bound (arXiv 2602.04879). With p0 the old probability the distance is |p - p0|
    ("tv") or the KL of the two-outcome distributions (p0, 1 - p0) and (p, 1 - p) ("kl"). The
    paper's public code, which is veRL's, agrees.

    Parameters:
        divergence: "tv" or "kl".
        low: bound where A <= 0.
        high: bound where A > 0. The paper uses .15 to .2 for "tv" and .05 for "kl".
        cap: upper bound of the ratio; the paper's 20.
    """

    divergence: Literal["tv", "kl"] = "tv"
    low: float = within(0.2, 0)
    high: float = within(0.2, 0)
    cap: float = within(20.0, 1)

    paper: ClassVar[str] = "arXiv 2602.04879"
    ratio_kind: ClassVar[Ratio] = "none"

    def local(self, batch: TokenBatch, terms: Terms, state: Any) -> Terms:
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
