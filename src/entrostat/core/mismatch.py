"""How far the policy that sampled is from the one that is trained: `mismatch/...`, every iteration.

The weights are the same. What differs is the arithmetic of two programs (REPO, arXiv 2603.11682,
App. A.2, Fig. 6): other kernels, other batches, another precision.

Shapes: B sequences, T completion tokens at most.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .distributed import GlobalBatch
from .loss import MAX_LOG_RATIO


@torch.no_grad()
def mismatch(
    old_logp: Tensor, sampler_logp: Tensor, mask: Tensor, whole: GlobalBatch | None = None
) -> dict[str, float]:
    """Figures of a rollout batch before any update.

    With d = lp_trainer - lp_sampler of a token, both under the policy that sampled:

        mismatch/logp_abs_mean, logp_abs_max    |d|, nats
        mismatch/kl                             mean of exp(d) - d - 1: KL(sampler || trainer), nats
        mismatch/prob_abs_mean                  mean of |p_trainer - p_sampler|     Fig. 6, left
        mismatch/ratio_min, ratio_max           p_trainer / p_sampler, over tokens  middle and right

    The ratio is the importance ratio, trainer over sampler; Fig. 6 does not say which way round
    its own is, and the other way is (1 / ratio_max, 1 / ratio_min).

    Args:
        old_logp: [B, T] float. The trainer's.
        sampler_logp: [B, T] float. As sampled, at the same temperature; NaN where the sampler did
            not say, which leaves the token out.
        mask: [B, T] bool. Tokens that the policy sampled.
        whole: the rollouts that these rows are among; None: they are all.

    The figures are computed in float64; there are none where no token is left.
    """
    tokens = mask.bool() & ~sampler_logp.isnan()
    whole = (whole or GlobalBatch(tokens)).over(tokens)
    if not whole.tokens:
        return {}
    trainer, sampler = old_logp.double(), sampler_logp.double()
    d = trainer - sampler
    held = d.clamp(max=MAX_LOG_RATIO)
    size, kl, gap = whole.mean(d.abs(), held.expm1() - held, (trainer.exp() - sampler.exp()).abs())
    largest, high, low = whole.max(d.abs(), held, -held)
    return {
        "mismatch/logp_abs_mean": size,
        "mismatch/logp_abs_max": largest,
        "mismatch/kl": kl,
        "mismatch/prob_abs_mean": gap,
        "mismatch/ratio_min": math.exp(-low),
        "mismatch/ratio_max": math.exp(high),
    }
