"""The ratio of rounded log-probs, on purpose: what a cast of the model's outputs does to the clip.

FSDP2 casts what a module returns to `MixedPrecisionPolicy.output_dtype`, bfloat16 under
accelerate's defaults for bf16 (REPO, arXiv 2603.11682, App. A.1). What is emulated is REPO's case:

- The head and the softmax are inside the module (their cut cross-entropy; TRL's fused head), so
  what leaves it, and is rounded, is the log-prob of the sampled token, one number per token,
  computed in float32 before. A model that returns logits has those rounded instead, before the
  softmax; that is another error, and not this one.
- Both passes go through the module: the one that is trained on, and the one that measured the old
  policy ("recalculated on the training node", App. D.2). So both log-probs are rounded there,
  `round_logp` and `round_old_logp`. One alone says which side does what.
- The cast's backward pass is the identity: the gradient is that of the exact log-prob.

Nothing else is rounded. Methods decide (`Objective.plan`) on exact log-probs and entropies, so what
differs is the log-ratio lp - lp0 alone: the ratio, its clip, and a penalty on |lp - lp0|.

Shapes: B sequences, T completion tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import Numerics
from ..core.batch import TokenBatch, at_least_float32
from ..core.loss import LossOutput, clip_sides, clipped_by, loss_metrics, surrogate

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def rounds(numerics: Numerics) -> bool:
    return numerics.round_logp is not None or numerics.round_old_logp is not None


def rounded(values: Tensor, to: str | None) -> Tensor:
    """After a cast to "bf16" or "fp16" and back: the nearest, ties to even. None: as they are."""
    return values if to is None else values.to(_DTYPES[to]).to(values.dtype)


def with_rounded_ratio(batch: TokenBatch, numerics: Numerics) -> TokenBatch:
    """The batch whose log-ratio lp - lp0 is that of the rounded log-probs.

    `logp` and its gradient stay; `old_logp` becomes lp - (round(lp) - round(lp0)), detached. The
    difference is what a loss reads, and it is exact to float32's rounding of lp, 5e-7 at |lp| = 8;
    two values that round alike give exactly 0.
    """
    lp = at_least_float32(batch.logp.detach())
    old = at_least_float32(batch.old_logp)
    log_ratio = rounded(lp, numerics.round_logp) - rounded(old, numerics.round_old_logp)
    return batch.replace(old_logp=lp - log_ratio)


@torch.no_grad()
def exact_figures(exact: TokenBatch, out: LossOutput) -> dict[str, Tensor]:
    """What the exact ratio would have shown, beside the figures of a loss; they add up alike.

    Returns:
        [] each. `numerics/clip_high_exact` and `numerics/clip_low_exact`, the shares of tokens that
        the exact ratio clips above and below (`clip/high` and `clip/low` are those of the rounded
        one); `numerics/clip_changed`, the share clipped by one of the two alone; and `kl/old_new`,
        a figure of the policy and not of the loss, without rounding. Empty where there is no ratio.
    """
    terms = out.terms
    _, policy, ratio = surrogate(exact, terms)
    if ratio is None:
        return {}
    clip = clip_sides(terms, ratio)
    figures = loss_metrics(exact, terms, policy, ratio, clip)
    changed = clipped_by(clip, exact, terms) ^ out.clipped
    return {
        "kl/old_new": figures["kl/old_new"],
        "numerics/clip_high_exact": figures["clip/high"],
        "numerics/clip_low_exact": figures["clip/low"],
        "numerics/clip_changed": changed.sum() / terms.count,
    }
