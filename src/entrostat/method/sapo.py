"""SAPO: a soft gate on the ratio (arXiv 2511.20347)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.batch import Terms, TokenBatch
from .base import Rng, Surrogate, within


@dataclass(frozen=True)
class Sapo(Surrogate):
    """SAPO: a soft gate on the ratio in place of the clip.

    -A 4/tau sigmoid(tau (r - 1)), tau by the advantage's sign (arXiv 2511.20347). At r = 1 the
    gradient is REINFORCE's; it fades on both sides, faster for a larger tau.

    Parameters:
        tau_pos: temperature where A > 0.
        tau_neg: temperature where A <= 0; larger, because such tokens are less stable.
    """

    tau_pos: float = within(1.0, 0, above=True)
    tau_neg: float = within(1.05, 0, above=True)

    paper: ClassVar[str] = "arXiv 2511.20347"
    base: ClassVar[str] = "grpo"

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        one = torch.ones_like(terms.advantage)
        soft = torch.where(terms.advantage > 0, self.tau_pos * one, self.tau_neg * one)
        return terms.replace(soft=soft)
