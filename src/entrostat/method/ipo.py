"""IPO of prime-rl: a symmetric trust region in probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.batch import Terms, TokenBatch, at_least_float32
from .base import Rng, Surrogate, within


@dataclass(frozen=True)
class Ipo(Surrogate):
    """IPO of prime-rl: masks tokens whose probability moved by more than a threshold.

    -r M A + kl (lp - lp0)^2 with M = 1 where |p - p0| <= threshold, whatever the advantage's sign.
    Source: prime-rl's loss type "ipo" (August 2026); not the preference loss IPO of Azar et al.
    Deviation: the quadratic term is left out where A = 0, so that a zero-advantage group gives no
    gradient.

    Parameters:
        threshold: largest change of a token's probability.
        kl: coefficient of the quadratic term.
    """

    threshold: float = within(0.1, 0, 1)
    kl: float = within(1e-3, 0)

    paper: ClassVar[str] = "prime-rl"

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        """Add the quadratic term, which is twice the k2 form."""
        if not self.kl:
            return terms
        each = torch.where(terms.advantage != 0, 2 * self.kl, terms.weight.new_zeros(()))
        return terms.replace(abs_kl=each, abs_kl_form="k2")

    def local(self, batch: TokenBatch, terms: Terms, state: Any) -> Terms:
        moved = at_least_float32(batch.logp.detach()).exp() - at_least_float32(batch.old_logp).exp()
        return terms.replace(weight=torch.where(moved.abs() > self.threshold, 0, terms.weight))
