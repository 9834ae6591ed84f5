"""STEER: rethinking entropy interventions from the entropy change (arXiv 2510.10150)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..core.batch import Terms, TokenBatch, at_least_float32
from ..core.distributed import GlobalBatch
from ..core.loss import clipped
from .base import Method, Rng, in_range, unread, within
from .rounding import rounded_share

Mapping = Literal["exp", "linear", "binary"]
Quadrants = Literal["I", "II", "III", "IV"]


def omega(
    advantage: Tensor, logp: Tensor, old_logp: Tensor, entropy: Tensor, clipped: Tensor
) -> Tensor:
    """I (A/p0) p (1 - p)(lp + H) of each token: -Omega (STEER Eq. 2, as estimated in their code).

    Omega is the entropy change, here without the step eta/L. All [B, T]; `clipped` bool, where
    I = 0.
    """
    ratio = (logp - old_logp).clamp(max=60).exp()
    value = advantage * ratio * -logp.expm1() * (logp + entropy)
    return torch.where(clipped, 0, value)


@dataclass(frozen=True)
class Steer(Method):
    """STEER: the larger a token's entropy change, up or down, the smaller its weight.

    Om = -I (A/p0) p (1 - p)(lp + H), a token's entropy change (Eq. 2), I = 0 where PPO clips;
    x = |Om| over the minibatch. A weight w multiplies the clipped PPO loss (STEER 5, App. E.3):

        exp      w = exp(ln(lambda_min) x / max x), from 1 down to lambda_min
        linear   w = lambda_max - (lambda_max - lambda_min)(x - min x)/(max x - min x)
        binary   w = lambda_min above the `quantile` of x, else 1

    If all x are equal, w = 1 under "linear"; if all are 0, w = 1 under every mapping.

    Parameters:
        lambda_min: smallest weight.
        mapping: "exp", "linear" or "binary".
        lambda_max: largest weight of "linear".
        quantile: threshold of "binary".
        signed: x = Om in "linear" and "binary", as App. E.3 prints them: the token that lowers
            entropy most then weighs lambda_max or 1, the one that raises it most lambda_min.

    The authors' public code differs from the paper: it has no I in Om, keeps weights at .02 or
    more, takes max x over each call of the loss (a micro-batch), and adds a dual clip. STEER's
    Eq. 1 divides by the tokens of a group, its recipes here by those of the minibatch; add
    `group_mean` for Eq. 1.

    Deviations: |Om| in "linear" and "binary", as in Eq. 3, because "large entropy increases may
    also be sub-optimal"; App. E.3 prints Om. The paper prints lambda_min = exp(-alpha) with
    alpha < 0; its own range [lambda_min, 1] needs exp(alpha).
    """

    lambda_min: float = within(0.7, 0, 1, above=True)
    mapping: Mapping = "exp"
    lambda_max: float = 1.2
    quantile: float = within(0.8, 0, 1)
    signed: bool = False

    paper: ClassVar[str] = "STEER 5, App. E.3"
    needs: ClassVar[tuple[str, ...]] = ("entropy",)
    base: ClassVar[str] = "clip_higher"

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("steer", "lambda_max", self.lambda_max, self.lambda_min)
        read = {"linear": "lambda_max", "binary": "quantile"}.get(self.mapping)
        ignored = tuple(p for p in ("lambda_max", "quantile") if p != read)
        if self.mapping == "exp":
            ignored = (*ignored, "signed")
        unread(self, f"mapping={self.mapping!r}", ignored)

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        old, entropy = at_least_float32(batch.old_logp), batch.need("entropy")
        fall = omega(terms.advantage, batch.logp, old, entropy, clipped(batch, terms))
        signed = self.signed and self.mapping != "exp"
        size = -fall if signed else fall.abs()
        return terms.replace(weight=terms.weight * self._weight(size, batch.whole))

    def _weight(self, size: Tensor, whole: GlobalBatch) -> Tensor:
        one, least = torch.ones_like(size), self.lambda_min
        if self.mapping == "binary":
            return torch.where(size > whole.quantile(size, self.quantile), least, one)
        top, bottom = whole.max(size)[0], 0.0
        if self.mapping == "linear":
            bottom = whole.min(size)[0]
        if not top > bottom:
            return one
        x = (size - bottom) / (size.new_tensor(top) - bottom)
        if self.mapping == "exp":
            return (math.log(least) * x).exp()
        return self.lambda_max - (self.lambda_max - least) * x


def in_quadrant(which: Quadrants, advantage: Tensor, p: Tensor) -> Tensor:
    """[B, T] bool: the tokens of a quadrant, as defined in `Quadrant` (STEER Fig. 2)."""
    sign = advantage > 0 if which in ("I", "II") else advantage < 0
    return sign & (p > 0.8 if which in ("I", "IV") else p < 0.2)


@dataclass(frozen=True)
class Quadrant(Method):
    """Mask or double a random share of the tokens of one quadrant of (advantage, probability).

    I: A > 0, p > .8 · II: A > 0, p < .2 · III: A < 0, p < .2 · IV: A < 0, p > .8, p the current
    probability. I and III lower entropy, II and IV raise it. Of a quadrant's n tokens in the
    minibatch share n, rounded as in `clip_cov`, are chosen uniformly with the run's generator and
    weighted 0 ("mask") or 2 ("double"). To raise entropy, STEER App. C.3 masks in I and III and
    doubles in II and IV; to lower it, the reverse.

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
