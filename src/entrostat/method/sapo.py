"""SAPO: a soft gate on the ratio (arXiv 2511.20347)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.batch import Terms, TokenBatch
from .base import Rng, Surrogate, in_range
from .surrogates import clip_bounds


@dataclass(frozen=True)
class Sapo(Surrogate):
    """SAPO: a soft gate on the ratio in place of the clip.

    -A 4/tau sigmoid(tau (r - 1)), tau by the advantage's sign (arXiv 2511.20347). At r = 1 the
    gradient is REINFORCE's; it fades on both sides, faster for a larger tau.

    Parameters:
        tau_pos: temperature where A > 0.
        tau_neg: temperature where A <= 0; larger, since such tokens are less stable.
    """

    tau_pos: float = 1.0
    tau_neg: float = 1.05

    paper: ClassVar[str] = "arXiv 2511.20347"
    base: ClassVar[str] = "grpo"

    def __post_init__(self) -> None:
        in_range("sapo", "tau_pos", self.tau_pos, 0, open_low=True)
        in_range("sapo", "tau_neg", self.tau_neg, 0, open_low=True)

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        """The gate's temperature."""
        one = torch.ones_like(terms.advantage)
        soft = torch.where(terms.advantage > 0, self.tau_pos * one, self.tau_neg * one)
        return clip_bounds(terms, None, None).replace(ratio="token", soft=soft)
