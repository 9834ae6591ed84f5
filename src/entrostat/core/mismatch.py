"""Mismatch between the sampler's and the trainer's log-probs: `mismatch/...`, every iteration.

Both have the same weights. Their arithmetic differs (REPO, arXiv 2603.11682, App. A.2, Fig. 6):
other kernels, other batches, another precision.

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
    """Mismatch metrics of a rollout batch before any update.

    With d = lp_trainer - lp_sampler of a token, both under the sampling policy's weights:

        mismatch/logp_abs_mean, logp_abs_max    |d|, nats
        mismatch/kl                             mean of exp(d) - d - 1: KL(sampler || trainer), nats
        mismatch/prob_abs_mean                  mean of |p_trainer - p_sampler|     Fig. 6, left
        mismatch/ratio_min, ratio_max           p_trainer / p_sampler, over tokens  middle and right

    The ratio is the importance ratio, trainer over sampler. Fig. 6 does not define its direction;
    the inverse ratio has the range (1 / ratio_max, 1 / ratio_min).

    Args:
        old_logp: [B, T] float. The trainer's log-probs.
        sampler_logp: [B, T] float. The sampler's, at the same temperature; NaN where the sampler
            returned none, which leaves the token out.
        mask: [B, T] bool. Tokens that the policy sampled.
        whole: the global batch that these rows are part of; None: they are all of it.

    Computed in float64; empty if no token is left.
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
