"""STEER's interventions on the quadrants of advantage and probability (arXiv 2510.10150, C.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..core.batch import Terms, TokenBatch
from .base import Method, Rng, within
from .rounding import rounded_share

Quadrants = Literal["I", "II", "III", "IV"]


def in_quadrant(which: Quadrants, advantage: Tensor, p: Tensor) -> Tensor:
    """[B, T] bool: the tokens of a quadrant, as `Quadrant` has them (STEER Fig. 2)."""
    sign = advantage > 0 if which in ("I", "II") else advantage < 0
    return sign & (p > 0.8 if which in ("I", "IV") else p < 0.2)


@dataclass(frozen=True)
class Quadrant(Method):
    """Mask or double a random share of the tokens of one quadrant of (advantage, probability).

    I: A > 0, p > .8 · II: A > 0, p < .2 · III: A < 0, p < .2 · IV: A < 0, p > .8, p the current
    probability. I and III lower entropy, II and IV raise it. Of a quadrant's n tokens in the
    minibatch share n, rounded as by `clip_cov`, are chosen uniformly with the run's generator and
    weighted 0 ("mask") or 2 ("double"). STEER App. C.3 masks in I and III, doubles in II and IV to
    raise entropy, and the other way round to lower it.

    Parameters:
        which: "I", "II", "III" or "IV".
        action: "mask" or "double".
        share: of the quadrant's tokens.
    """

    which: Quadrants = "I"
    action: Literal["mask", "double"] = "mask"
    share: float = within(0.1, 0, 1, above=True)

    paper: ClassVar[str] = "STEER App. C.3"

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        inside = in_quadrant(self.which, terms.advantage, batch.logp.exp()) & batch.mask
        count = rounded_share(self.share, batch.whole.count(inside), 0, generator)
        chosen = batch.whole.pick(inside, count, generator)
        factor = 0.0 if self.action == "mask" else 2.0
        return terms.replace(weight=torch.where(chosen, factor * terms.weight, terms.weight))
