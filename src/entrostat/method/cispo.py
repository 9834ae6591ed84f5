"""CISPO: the ratio truncated, as a weight (arXiv 2506.13585)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..core.batch import Terms, TokenBatch
from .base import Rng, Surrogate, within
from .ratios import ratio_of
from .surrogates import clip_bounds


@dataclass(frozen=True)
class Cispo(Surrogate):
    """CISPO: log-probs weighted by the truncated ratio; no token is clipped out.

    -sg(clip(r, 1 - low, 1 + high)) A lp; MiniMax-M1 (arXiv 2506.13585), ScaleRL (arXiv 2510.13786).
    TRL's `epsilon_high` of this loss is the bound itself, 1 + high.

    Parameters:
        low: the ratio is at least 1 - low; None for no such bound, as in both papers.
        high: the ratio is at most 1 + high; ScaleRL recommends a bound of 5.
    """

    low: float | None = within(None, 0)
    high: float | None = within(4.0, -1)

    paper: ClassVar[str] = "arXiv 2506.13585"

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        return clip_bounds(terms, self.low, self.high).replace(ratio="none")

    def local(self, batch: TokenBatch, terms: Terms, state: Any) -> Terms:
        weight = ratio_of(batch).clamp(terms.ratio_min, terms.ratio_max)
        return terms.replace(weight=terms.weight * weight)
