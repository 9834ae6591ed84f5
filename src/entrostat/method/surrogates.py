"""Surrogates: the importance ratio and its clip bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.batch import Ratio, Terms, TokenBatch
from .base import Rng, Surrogate, within


@dataclass(frozen=True)
class Reinforce(Surrogate):
    """REINFORCE: the plain policy gradient, one update per rollout batch.

    Loss -A lp, Williams (1992). No ratio is used, so with several updates per rollout batch the
    later ones would be off-policy without correction; trainers raise on that. Pass
    --optim.epochs 1 --optim.minibatches 1.
    """

    paper: ClassVar[str] = "OPEFO 3"
    on_policy: ClassVar[bool] = True
    ratio_kind: ClassVar[Ratio] = "none"


@dataclass(frozen=True)
class Ppo(Surrogate):
    """PPO: a ratio per token, clipped.

    -min(r A, clip(r, 1 - low, 1 + high) A), r = exp(lp - lp0); Schulman et al. (arXiv 1707.06347).
    With `dual` = c > 1 and A < 0 the loss is also capped at -c A (dual clip, arXiv 1912.09729).
    `low=None` or `high=None` does not clip on that side.
    """

    low: float | None = within(0.2, 0)
    high: float | None = within(0.2, 0)
    dual: float | None = within(None, 1, above=True)

    paper: ClassVar[str] = "REPO 2, PAR 6"

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        terms = clip_bounds(terms, self.low, self.high)
        return terms.replace(ratio=self.ratio_kind, dual=self.dual)


@dataclass(frozen=True)
class Gspo(Ppo):
    """GSPO: one ratio per sequence, clipped as PPO's.

    s = exp(masked mean of lp - lp0), Zheng et al. (arXiv 2507.18071). Per-token advantages stay
    usable through s_t = sg(s) exp(lp - sg(lp)): the same value, a token-level gradient. `dual` is
    PPO's. The bare name has REPO's settings: leave-one-out advantage, mean over sequences.
    """

    low: float | None = within(3e-4, 0)
    high: float | None = within(4e-4, 0)

    paper: ClassVar[str] = "REPO 2 (GSPO)"
    base: ClassVar[str] = "loop"
    ratio_kind: ClassVar[Ratio] = "sequence"
    alone: ClassVar[str] = (
        "gspo's ratio is one per sequence and leaves 1 by some 1e-4, so the clip of a token's "
        "ratio would never act on it"
    )


def clip_bounds(terms: Terms, low: float | None, high: float | None) -> Terms:
    """The terms with every token's ratio clipped to [1 - low, 1 + high]; None for no clip."""

    def fill(value: float) -> torch.Tensor:
        return terms.weight.new_full((), value).expand_as(terms.weight)

    return terms.replace(
        ratio_min=fill(-math.inf if low is None else 1 - low),
        ratio_max=fill(math.inf if high is None else 1 + high),
    )
