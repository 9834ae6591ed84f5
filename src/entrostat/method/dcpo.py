"""DCPO: dynamic clipping policy optimization (arXiv 2509.02333; STEER Tab. 6): its clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ..core.batch import Terms, TokenBatch, at_least_float32
from .base import Rng, Surrogate, within


def dynamic_bounds(old_logp: Tensor, low: float, high: float, cap: float) -> tuple[Tensor, Tensor]:
    """(r_min, r_max) of `Dcpo`, both [B, T], from lp0 [B, T].

    |r - 1| r p0 is at most its bound where r^2 - r <= high/p0 (r > 1), r - r^2 <= low/p0 (r < 1).
    r - r^2 is small again near 0; r_min is the root nearer 1. If p0 <= 4 low, every r below 1
    satisfies the bound, and the paper's r_min is 1/2.
    """
    surprise = (-old_logp).clamp(max=60).exp()  # 1/p0, finite
    lower = (1 + (1 - 4 * low * surprise).clamp(min=0).sqrt()) / 2
    upper = (1 + (1 + 4 * high * surprise).sqrt()) / 2
    return lower, upper.clamp(max=cap)


@dataclass(frozen=True)
class Dcpo(Surrogate):
    """DCPO's clip: tokens of low old probability have wider ratio bounds.

    -min(r A, clip(r, r_min, r_max) A), r = exp(lp - lp0). Each token's bounds follow from its old
    probability p0 and keep |r - 1| p, with p = r p0 the new one, at most `low` and `high`:

        r_max = min((1 + sqrt(1 + 4 high/p0))/2, cap)
        r_min = (1 + sqrt(max(1 - 4 low/p0, 0)))/2

    Where A < 0 the loss is also capped at -cap A, PPO's dual clip. DCPO is a surrogate: it replaces
    `ppo`. Yang et al. (arXiv 2509.02333), "dynamic-adaptive clipping"; STEER Tab. 6 has DAPO and
    DCPO in one row, as clips.

    Parameters:
        low, high: the paper's .16 and .2. (Its public script leaves them at DAPO's .2 and .28.)
        cap: largest ratio, 10 in the authors' code.

    Left out, so that it differs from `grpo` in the clip alone: DCPO's smooth advantage
    standardisation, which mixes a prompt's rewards of all earlier steps into its advantages, and
    its only-token-mean loss, the sum over responses of their token means, which is the aggregation
    seq_mean_token_mean up to a constant factor.
    """

    low: float = within(0.16, 0)
    high: float = within(0.2, 0)
    cap: float = within(10.0, 1, above=True)

    paper: ClassVar[str] = "STEER Tab. 6"
    base: ClassVar[str] = "grpo"

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        old = at_least_float32(batch.old_logp.detach()).to(terms.weight.dtype)
        lower, upper = dynamic_bounds(old, self.low, self.high, self.cap)
        return terms.replace(ratio="token", ratio_min=lower, ratio_max=upper, dual=self.cap)
