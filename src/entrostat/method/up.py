"""UP: no clip for positive advantages, PPO's for negative ones (arXiv 2607.06987)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.batch import Terms, TokenBatch
from ..core.loss import MAX_LOG_RATIO
from .base import Rng, Surrogate, within
from .ratios import ratio_of
from .surrogates import clip_bounds


@dataclass(frozen=True)
class Up(Surrogate):
    """UP: tokens of positive advantage are reinforced without ratio or clip; others are clipped.

    -sg(1/r) r A where A > 0, with value -A and REINFORCE's gradient; PPO's clipped ratio with its
    dual clip elsewhere (arXiv 2607.06987, Eq. 15). Below r = e^-60 the gradient goes to 0.

    Parameters:
        low: clip below, where A < 0.
        dual: dual clip where A < 0, or None; 3 in veRL.
    """

    low: float | None = within(0.2, 0)
    dual: float | None = within(3.0, 1, above=True)

    paper: ClassVar[str] = "arXiv 2607.06987"

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        return clip_bounds(terms, self.low, None).replace(ratio="token", dual=self.dual)

    def local(self, batch: TokenBatch, terms: Terms, state: Any) -> Terms:
        own = ratio_of(batch).clamp(min=math.exp(-MAX_LOG_RATIO))
        return terms.replace(
            weight=torch.where(terms.advantage > 0, terms.weight / own, terms.weight)
        )
