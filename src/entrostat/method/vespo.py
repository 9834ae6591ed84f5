"""VESPO: a smooth weight from the sequence's ratio (arXiv 2602.10693)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.batch import Ratio, Terms, TokenBatch
from ..core.deterministic import row_sums
from .base import Surrogate, within
from .ratios import log_ratio


@dataclass(frozen=True)
class Vespo(Surrogate):
    """VESPO: log-probs weighted by a smooth function of the whole sequence's ratio.

    -phi(w) A lp with w = exp(sum over tokens of lp - lp0) and phi(w) = e^lam w^k e^(-lam w), which
    is 1 at w = 1; k and lam depend on the advantage's sign (arXiv 2602.10693). As in TRL, a token's
    log ratio is clamped to [-20, 20] and the sequence's to [log 1e-8, 20].

    Parameters:
        k_pos, lam_pos: where A >= 0.
        k_neg, lam_neg: where A < 0.
    """

    k_pos: float = within(2.0, 0)
    lam_pos: float = within(3.0, 0)
    k_neg: float = within(3.0, 0)
    lam_neg: float = within(2.0, 0)

    paper: ClassVar[str] = "arXiv 2602.10693"
    ratio_kind: ClassVar[Ratio] = "none"

    def local(self, batch: TokenBatch, terms: Terms, state: Any) -> Terms:
        total = row_sums(log_ratio(batch).clamp(-20, 20)).unsqueeze(-1)
        log_w = total.to(terms.weight.dtype).clamp(math.log(1e-8), 20)
        up = terms.advantage >= 0
        k = torch.where(up, self.k_pos, self.k_neg)
        lam = torch.where(up, self.lam_pos, self.lam_neg).clamp(min=1e-4)
        phi = (lam + k * log_w - lam * log_w.exp()).exp()
        return terms.replace(weight=terms.weight * phi.to(terms.weight.dtype))
