"""CE-GPPO: clipped tokens keep a bounded gradient (arXiv 2509.20712)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.batch import Terms, TokenBatch
from ..core.loss import MAX_LOG_RATIO, importance_ratio
from .base import Method, Rng, within


@dataclass(frozen=True)
class CeGppo(Method):
    """CE-GPPO: tokens outside the clip keep a gradient whose size does not grow with r.

    With the surrogate's bounds 1 - low and 1 + high, and sg the stop-gradient, the policy loss is

        -beta1 (1 - low)/sg(r) r A     where A < 0 and r < 1 - low: unlikely, and pushed further
        -beta2 (1 + high)/sg(r) r A    where A > 0 and r > 1 + high: rare, and pulled up
        -r A                           elsewhere

    so that the gradient of log p is that at the bound times beta. The authors report that a larger
    beta2 keeps entropy up and a larger beta1 takes it down.

    Parameters:
        beta1: size below the clip; .25, .5 and .75 in the authors' runs.
        beta2: size above the clip; 1 in all of them.

    Source: the text and its public code, which agree. Left out: the code's dual clip at 10. Below
    r = e^-60 the gradient goes to 0 with r, so that 1/r does not overflow.
    """

    beta1: float = within(0.5, 0)
    beta2: float = within(1.0, 0)

    paper: ClassVar[str] = "arXiv 2509.20712"
    idle_on_policy: ClassVar[str] = "no ratio leaves its clip"

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        """Remove the clip on clipped tokens and weight them by beta times the bound over r."""
        ratio = importance_ratio(batch, terms)
        if ratio is None:
            return terms
        ratio = ratio.to(terms.weight.dtype)
        below = (terms.advantage < 0) & (ratio < terms.ratio_min)
        above = (terms.advantage > 0) & (ratio > terms.ratio_max)
        divisor = ratio.clamp(min=math.exp(-MAX_LOG_RATIO))
        size = torch.where(below, self.beta1 * terms.ratio_min / divisor, terms.weight.new_ones(()))
        size = torch.where(above, self.beta2 * terms.ratio_max / divisor, size)
        return terms.replace(
            weight=terms.weight * size,
            ratio_min=torch.where(below, -torch.inf, terms.ratio_min),
            ratio_max=torch.where(above, torch.inf, terms.ratio_max),
        )
