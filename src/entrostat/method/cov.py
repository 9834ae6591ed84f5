"""COV: the entropy mechanism of RL for reasoning models (arXiv 2505.22617): Clip-Cov and KL-Cov."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from ..core.batch import Terms, TokenBatch
from ..core.distributed import GlobalBatch
from ..core.loss import clipped
from .base import Method, Rng, within
from .rounding import rounded_share


def covariance(
    logp: Tensor, advantage: Tensor, mask: Tensor, whole: GlobalBatch | None = None
) -> Tensor:
    """(lp - mean lp)(A - mean A) of each token (COV Eq. 8); all [B, T], 0 at mask 0.

    The means are over `whole`; None: over the mask. The mean of the result over the same tokens is
    the covariance of log-prob and advantage.
    """
    mean_lp, mean_A = (whole or GlobalBatch(mask)).mean(logp, advantage)
    return (logp - mean_lp) * (advantage - mean_A) * mask


@dataclass(frozen=True)
class ClipCov(Method):
    """Clip-Cov: a few random tokens of high covariance give no gradient.

    cov = (lp - mean lp)(A - mean A), means over the minibatch. Among the tokens with cov in
    [low, high] that PPO has not clipped already, ratio N are chosen uniformly with the run's
    generator; their policy loss counts in the value but not in the gradient. ratio N is rounded up
    or down at random, so that its mean is ratio N. If no token qualifies, none is chosen (COV 4.1,
    Alg. 1). The PPO clip stays wide, (1, 1), as in the authors' scripts. The share of
    chosen tokens is logged as `terms/frozen`.

    Parameters:
        ratio: share of the minibatch's tokens whose gradient is removed.
        low, high: range of covariances that qualify.
        at_least: 0, or k for max(k, floor(ratio N)) tokens. 1 is the authors' code; on minibatches
            below 1/ratio tokens it chooses many times the share.

    Deviations: the public code selects in each micro-batch, where the first update's means are
    those of a few rollouts; here the selection is over the whole minibatch. Alg. 1 rounds down, so
    that it would never select a token in a minibatch below 1/ratio tokens.
    """

    ratio: float = within(2e-4, 0, 1, above=True)
    low: float = 1.0
    high: float = 5.0
    at_least: int = within(0, 0)

    paper: ClassVar[str] = "COV 4.1, Alg. 1"
    base: ClassVar[str] = "clip_wide"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low <= self.high:
            raise ValueError(f"clip_cov: needs low <= high, got [{self.low}, {self.high}]")

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        cov = covariance(batch.logp, terms.advantage, batch.mask, batch.whole)
        candidates = (cov >= self.low) & (cov <= self.high) & batch.mask & ~clipped(batch, terms)
        count = rounded_share(self.ratio, int(terms.count), self.at_least, generator)
        return terms.freeze(batch.whole.pick(candidates, count, generator))


@dataclass(frozen=True)
class KlCov(Method):
    """KL-Cov: the tokens of highest covariance are penalised for leaving the old policy.

    The frac N tokens of largest cov = (lp - mean lp)(A - mean A) over the minibatch get
    + coef |lp - lp0|; no PPO clip at all (COV 4.1, Alg. 1). frac N is rounded up or down at random,
    with the run's generator, so that its mean is frac N. The absolute log-ratio is exactly flat at
    lp = lp0, so the first update of a rollout batch (and every one of a strictly on-policy run) is
    plain policy gradient. The share of penalised tokens is logged as `terms/penalised`.

    Parameters:
        frac: share of the minibatch's tokens that is penalised; the authors' 32B run used 2e-4.
        coef: coefficient of the penalty.
        penalty: "abs" is Alg. 1's |lp - lp0|; "k3" is the smooth exp(lp - lp0) - (lp - lp0) - 1.
            Over all tokens sampled from the old policy, k3 and its gradient are unbiased estimates
            for KL(pi_old || pi), the KL of Eq. 12.
        at_least: 0, or k for max(k, floor(frac N)) tokens; 1 is the authors' code.

    Deviations: the public code selects in each micro-batch; here over the whole minibatch. Alg. 1
    rounds down. A token with cov <= 0 is never chosen, which matters only if the tokens with
    cov > 0 are fewer than the share.
    """

    frac: float = within(2e-3, 0, 1, above=True)
    coef: float = within(1.0, 0)
    penalty: Literal["abs", "k3"] = "abs"
    at_least: int = within(0, 0)

    paper: ClassVar[str] = "COV 4.1, Alg. 1"
    base: ClassVar[str] = "clip_free"
    idle_on_policy: ClassVar[str] = "its penalty is flat"
    contradicts: ClassVar[dict[str, str]] = {"ipo": "both set the distance to the old policy"}

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        cov = covariance(batch.logp, terms.advantage, batch.mask, batch.whole)
        count = rounded_share(self.frac, int(terms.count), self.at_least, generator)
        chosen = batch.whole.largest(cov, batch.mask & (cov > 0), count, generator)
        return terms.replace(abs_kl=self.coef * chosen.to(cov.dtype), abs_kl_form=self.penalty)
