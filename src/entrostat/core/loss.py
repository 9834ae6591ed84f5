"""From terms to a loss: the surrogate, its ratio and clip, and the aggregation over tokens.

Pure functions. Shapes: B sequences, T completion tokens; N = number of tokens at mask 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .batch import Terms, TokenBatch, at_least_float32
from .distributed import GlobalBatch, row_sums

MAX_LOG_RATIO = 60.0

Aggregation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"]


def aggregation_scale(
    mask: Tensor,
    aggregation: Aggregation,
    dtype: torch.dtype,
    max_length: int | None = None,
    whole: GlobalBatch | None = None,
) -> Tensor:
    """[B, T]: the weight of one token's loss; the aggregated loss is sum(scale * per_token).

    token_mean: 1/N (DAPO). seq_mean_token_mean: 1/(B' len_i), the mean over sequences of their
    means (GRPO, GSPO). seq_mean_token_sum_norm: 1/(B' max_length), Dr. GRPO, where max_length is a
    constant (the mask's width T when None). B' counts the sequences that have a token. N, B' and T
    are those of `whole`, the global minibatch.
    """
    whole = GlobalBatch(mask) if whole is None else whole
    m = mask.to(dtype)
    if aggregation == "token_mean":
        return m / max(1, whole.tokens)
    sequences = max(1, whole.sequences)
    if aggregation == "seq_mean_token_mean":
        return m / m.sum(-1, keepdim=True).clamp(min=1) / sequences
    return m / (max_length or whole.width) / sequences


def importance_ratio(batch: TokenBatch, terms: Terms, lp: Tensor | None = None) -> Tensor | None:
    """The importance ratio [B, T] with the gradient of lp; None if the terms use no ratio.

    `lp` is `batch.logp` in float32 or better, if the caller has it already.

    token: r = exp(lp - lp0). sequence: s_t = sg(s) exp(lp - sg(lp)), s = exp(masked mean of
    lp - lp0), the same value at each token of a sequence with a token-level gradient (GSPO).
    """
    if terms.ratio == "none":
        return None
    lp = at_least_float32(batch.logp) if lp is None else lp
    delta = lp - at_least_float32(batch.old_logp).detach()
    if terms.ratio == "sequence":
        mean = row_sums(delta.detach()) / batch.lengths.clamp(min=1)
        mean = mean.to(delta.dtype).unsqueeze(-1)
        return mean.clamp(max=MAX_LOG_RATIO).exp() * (lp - lp.detach()).exp()
    # exp overflows above 88; e^60 is finite and as useless
    return delta.clamp(max=MAX_LOG_RATIO).exp()


class Clip(NamedTuple):
    """[B, T] bool each: tokens whose gradient the surrogate's clip removes."""

    high: Tensor  # A > 0 and the ratio above `ratio_max`
    low: Tensor  # A < 0 and the ratio below `ratio_min`
    dual: Tensor | None  # A < 0 and the ratio above the dual clip; None without one


def clip_sides(terms: Terms, ratio: Tensor) -> Clip:
    """The tokens clipped on each side at these ratios [B, T] or [B, 1]."""
    A = terms.advantage
    dual = None if terms.dual is None else (A < 0) & (ratio > terms.dual)
    return Clip((A > 0) & (ratio > terms.ratio_max), (A < 0) & (ratio < terms.ratio_min), dual)


def clipped_by(clip: Clip | None, batch: TokenBatch, terms: Terms) -> Tensor:
    """[B, T] bool: tokens of the policy term whose gradient a clip removes."""
    if clip is None or terms.ratio == "none" or terms.soft is not None:
        return torch.zeros_like(batch.mask)
    cut = clip.high | clip.low
    return (cut if clip.dual is None else cut | clip.dual) & batch.policy_mask


def clipped(batch: TokenBatch, terms: Terms) -> Tensor:
    """[B, T] bool: `clipped_by` at the ratio of the batch's log-probs."""
    ratio = importance_ratio(batch, terms)
    return clipped_by(None if ratio is None else clip_sides(terms, ratio), batch, terms)


def surrogate(batch: TokenBatch, terms: Terms) -> tuple[Tensor, Tensor, Tensor | None]:
    """The loss per token [B, T], its policy part [B, T] (detached), and the ratio or None.

    Both losses are 0 at mask 0.

    per_token = weight * clipped policy loss + abs_kl KL(lp0, lp) - entropy H + ref_kl KL(lp, ref);
    `frozen` detaches the policy loss and `batch.correction` multiplies it; `soft` gates its ratio
    instead of the clip. Tokens of idle rollouts have the last two terms only.
    Gradients flow into `batch.logp` and `batch.entropy` only.
    """
    live = batch.policy_mask
    lp = at_least_float32(batch.logp)  # once: gradients meet in this precision
    A = terms.advantage
    ratio = importance_ratio(batch, terms, lp)
    if ratio is None:
        policy = -A * lp
    elif terms.soft is not None:
        policy = -A * (4 / terms.soft) * torch.sigmoid(terms.soft * (ratio - 1))
    else:
        policy = -torch.minimum(ratio * A, ratio.clamp(terms.ratio_min, terms.ratio_max) * A)
        if terms.dual is not None:
            policy = torch.where(A < 0, policy.clamp(max=-terms.dual * A), policy)
    per_token = terms.weight * policy
    if batch.correction is not None:
        per_token = per_token * batch.correction.detach()
    if terms.frozen is not None:
        per_token = torch.where(terms.frozen, per_token.detach(), per_token)
    policy = torch.where(live, per_token.detach(), 0)
    if terms.abs_kl is not None:
        # the old policy sampled the tokens, so KL(old || pi) needs log pi - log old
        log_ratio = lp - at_least_float32(batch.old_logp).detach()
        per_token = per_token + terms.abs_kl * _kl(log_ratio, terms.abs_kl_form)
    if batch.idle is not None:
        per_token = torch.where(live, per_token, 0)
    if terms.entropy is not None:
        entropy = batch.need("entropy", "the entropy bonus")
        per_token = per_token - terms.entropy * at_least_float32(entropy)
    if terms.ref_kl is not None:
        ref = at_least_float32(batch.need("ref_logp", "the reference KL")).detach()
        kl = _kl(ref - lp, terms.ref_kl_form)
        if terms.ref_kl_ratio:
            own = ratio if terms.ratio == "token" else None
            kl = kl * (_kl_ratio(batch, terms, lp) if own is None else own)
        per_token = per_token + terms.ref_kl * kl
    return torch.where(batch.mask, per_token, 0), policy, ratio


def _kl_ratio(batch: TokenBatch, terms: Terms, lp: Tensor) -> Tensor:
    """[B, T] or [B, 1]: the token's ratio, or the sequence's with the gradient of the mean."""
    delta = lp - at_least_float32(batch.old_logp).detach()
    if terms.ratio == "sequence":
        delta = (delta * batch.mask).sum(-1, keepdim=True) / batch.lengths.clamp(min=1)[:, None]
    return delta.clamp(max=MAX_LOG_RATIO).exp()


def _kl(log_ratio: Tensor, form: Literal["abs", "k1", "k2", "k3"]) -> Tensor:
    """Schulman's estimators of KL(p || q) from log_ratio = log q - log p; "abs" is |log_ratio|."""
    if form == "abs":
        return log_ratio.abs()
    if form == "k1":
        return -log_ratio
    if form == "k2":
        return log_ratio.square() / 2
    log_ratio = log_ratio.clamp(max=MAX_LOG_RATIO)
    return log_ratio.expm1() - log_ratio


@dataclass
class LossOutput:
    """The result of `Objective.loss`.

    Attributes:
        loss: [] scalar with gradient; over the micro-batches of one plan it adds up to the total.
        per_token: [B, T] loss of each token before aggregation, 0 at mask 0.
        terms: the terms used.
        metrics: [] tensors without gradient, means over the planned minibatch's N tokens (`kl/ref`
            over all sampled tokens); micro-batches add up.
        batch: [B, T] the batch that the loss was computed on.
        clipped: [B, T] bool, tokens whose gradient the clip removed.
    """

    loss: Tensor
    per_token: Tensor
    terms: Terms
    metrics: dict[str, Tensor]
    batch: TokenBatch
    clipped: Tensor


@torch.no_grad()
def loss_metrics(
    batch: TokenBatch, terms: Terms, policy: Tensor, ratio: Tensor | None, clip: Clip | None
) -> dict[str, Tensor]:
    """Metrics of a loss, [] each, that add up over micro-batches of one plan.

    `policy` and `ratio` [B, T] are as `surrogate` returns them; `clip` has the clipped tokens.
    """
    live = batch.policy_mask
    out = {"loss/policy": (policy * terms.scale).sum()}
    out["terms/weight"] = torch.where(live, terms.weight, 0).sum() / terms.count
    if terms.frozen is not None:
        out["terms/frozen"] = terms.frozen.sum() / terms.count
    if terms.abs_kl is not None:
        out["terms/penalised"] = (terms.abs_kl != 0).sum() / terms.count
    if terms.ref_kl is not None and batch.ref_logp is not None:
        # k3 estimate of KL(policy || reference), whatever estimator the penalty uses
        gap = at_least_float32(batch.ref_logp) - at_least_float32(batch.logp).detach()
        sampled = terms.count if terms.sampled is None else terms.sampled
        out["kl/ref"] = _kl(gap, "k3").sum() / sampled
    if ratio is not None and clip is not None:
        delta = (at_least_float32(batch.logp) - at_least_float32(batch.old_logp)).detach()
        out["clip/high"] = (clip.high & live).sum() / terms.count
        out["clip/low"] = (clip.low & live).sum() / terms.count
        if clip.dual is not None:
            out["clip/dual"] = (clip.dual & live).sum() / terms.count
        out["ratio/mean"] = torch.where(live, ratio, 0).sum() / terms.count
        # k3 estimate of KL(old || new), over tokens sampled from the old policy
        out["kl/old_new"] = torch.where(live, _kl(delta, "k3"), 0).sum() / terms.count
    return out
