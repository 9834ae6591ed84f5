"""Entropy dynamics during training: closed forms of statistics that every update computes anyway.

At every update, over the policy term's tokens in the minibatch, under the policy before the update
(`sums`):

    flow/increase, flow/decrease   S+ / N, S- / N: mean over the tokens of OPEFO's estimate
                                   dH_t = -A (1 - p)^2 (lp + H) (Eq. 6) where it is positive, and of
                                   its magnitude where it is negative
    flow/net, flow/balance         (S+ - S-) / N; lambda* = (S- - S+) / (S- + S+) (OPEFO 5)
    cov/update                     mean of (lp - mean lp)(A - mean A) (COV Eq. 8)
    touched/share                  share of the N tokens that a method changed: weight other than 1,
                                   gradient removed (`frozen`), penalised (`abs_kl`), clipped, or
                                   an advantage other than the estimator's. A bonus or a KL on all
                                   tokens does not count
    touched/entropy                their mean entropy, nats
    quadrant/I .. quadrant/IV      share of the N tokens in STEER's quadrants of (A, p)

These metrics, and those of the loss (`of_update`: `clip/*`, `ratio/*`, `terms/*`, ...), are ratios
of token sums, which add up over micro-batches, ranks and updates. `figures` divides last, so that
the split of the tokens does not matter. An iteration's metric is over all tokens of its updates,
including the first update, where every ratio is 1 and nothing is clipped. A is the advantage after
the methods' edits. The flow excludes weights and clip: it is the effect of the advantages alone.

Once per iteration, over the rollouts that are trained on, under the policy that sampled them
(`of_rollouts`), metrics that are not sums over parts:

    cov/mean, cov/top_0.02 ..      mean of COV's Eq. 8 of all tokens, and of the .02, .2, 2 and 20 %
                                   of them where it is largest (COV Tab. 1)
    cov/prompt                     COV's Eq. 7, mean over prompts; `_easy`, `_middle`, `_hard`: over
                                   the thirds of the prompts by mean reward (COV Fig. 12)

These need all rollouts at once: `batch.whole` computes them, for some hundred kilobytes per rank
and iteration. No random numbers of the run are drawn.

Shapes: B sequences, T completion tokens; N tokens at mask 1. All sums are float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..core.batch import Terms, TokenBatch, at_least_float32
from ..core.distributed import GlobalBatch, row_sums
from ..core.loss import LossOutput, clipped
from ..method.cov import covariance
from ..method.opefo import entropy_change
from ..method.steer import in_quadrant
from .tables import QUADRANTS, THIRDS, TOP_SHARES, prompt_covariance, prompt_means, terciles

# prefix of a sum's name; it must not contain "max" or "min", by which veRL would reduce it.
# A sum that is only divided is named PART + the name of its divisor + "/" + its own.
PART = "sum/"
# metrics of the loss that are over all sampled tokens, idle rollouts included
_OVER_SAMPLED = ("loss/", "kl/ref")
PARTS = (
    "tokens", "increase", "decrease", "logp", "advantage", "product", "touched", "touched_entropy",
    *QUADRANTS,
)  # fmt: skip


@torch.no_grad()
def token_sums(
    logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    entropy: Tensor | None = None,
    touched: Tensor | None = None,
) -> dict[str, Tensor]:
    """Sums over tokens for the metrics of an update: `PART` + NAME -> [] float64.

    All arguments are [B, T]; nothing is read at mask 0. Sums that need the entropy (nats) or the
    touched tokens are NaN without them; `figures` leaves out metrics that are NaN.
    """
    lp, A = (torch.where(mask, at_least_float32(x), 0) for x in (logp, advantage))
    p = lp.exp()
    rows = {"tokens": mask, "logp": lp, "advantage": A, "product": lp * A}
    rows |= {name: in_quadrant(name, A, p) & mask for name in QUADRANTS}
    if entropy is not None:
        H = torch.where(mask, at_least_float32(entropy), 0)
        change = entropy_change(A, lp, H)
        rows |= {"increase": change.clamp(min=0), "decrease": (-change).clamp(min=0)}
        if touched is not None:
            rows["touched_entropy"] = torch.where(touched, H, 0)
    if touched is not None:
        rows["touched"] = touched & mask
    dtype = torch.promote_types(lp.dtype, A.dtype)
    total = torch.stack([x.to(dtype) for x in rows.values()]).sum((1, 2), dtype=torch.float64)
    found = dict(zip(rows, total.unbind(), strict=True))
    unknown = total.new_full((), math.nan)
    return {PART + name: found.get(name, unknown) for name in PARTS}


@torch.no_grad()
def sums(batch: TokenBatch, terms: Terms, cut: Tensor | None = None) -> dict[str, Tensor]:
    """`token_sums` of a minibatch at its update, or of a slice under the whole minibatch's terms.

    Args:
        batch: logp, old_logp, mask; entropy and `edited` if available. Without entropy, and if
            every log-prob is still the old policy's, `old_entropy` is used.
        terms: the terms of the update's loss, sliced alike.
        cut: [B, T] bool, the tokens whose gradient the clip removed; None computes them.
    """
    mask = batch.policy_mask
    touched = (terms.weight != 1) | (clipped(batch, terms) if cut is None else cut)
    if terms.frozen is not None:
        touched = touched | terms.frozen
    if terms.abs_kl is not None:
        touched = touched | (terms.abs_kl != 0)
    if batch.edited is not None:
        touched = touched | batch.edited
    H = batch.entropy
    if H is None and torch.equal(batch.logp, batch.old_logp):
        H = batch.old_entropy
    return token_sums(batch.logp, terms.advantage, mask, H, touched)


@torch.no_grad()
def of_update(batch: TokenBatch, out: LossOutput) -> dict[str, Tensor]:
    """Every sum of an update, or of a slice under the whole minibatch's terms: [] float64.

    The sums of `sums`, of the loss's metrics and of the methods' planning metrics. The latter are
    of the whole minibatch already and are weighted by each slice's tokens. `out` is the objective's
    loss output for `batch`.
    """
    terms = out.terms
    found = sums(batch, terms, out.clipped)
    found[f"{PART}sampled"] = batch.mask.sum().double()
    for name, mean in out.metrics.items():
        sampled = name.startswith(_OVER_SAMPLED)
        count = terms.sampled if sampled and terms.sampled is not None else terms.count
        over = "sampled" if sampled else "tokens"
        found[f"{PART}{over}/{name}"] = mean.double() * count.double()
    tokens = found[f"{PART}tokens"]
    return found | {
        f"{PART}tokens/{name}": value.double() * tokens for name, value in terms.figures.items()
    }


def figures(values: Mapping[str, float]) -> dict[str, float]:
    """`values` with its sums replaced by metrics; unknown metrics are left out.

    The sums are those of `of_update`, added up over micro-batches, ranks and updates (or averaged:
    only quotients matter); other values are returned unchanged.
    """
    rest: dict[str, float] = {}
    for key, value in values.items():
        over, _, name = key.removeprefix(PART).partition("/")
        if not key.startswith(PART):
            rest[key] = value
        elif name and values[PART + over] > 0:
            rest[name] = value / values[PART + over]
    s = {name: float(values.get(PART + name, math.nan)) for name in PARTS}
    if not s["tokens"] > 0:
        return rest
    mean = {name: value / s["tokens"] for name, value in s.items()}
    flow = s["increase"] + s["decrease"]
    found = {
        "flow/increase": mean["increase"],
        "flow/decrease": mean["decrease"],
        "flow/net": mean["increase"] - mean["decrease"],
        "flow/balance": (s["decrease"] - s["increase"]) / flow if flow != 0 else 0.0,
        "cov/update": mean["product"] - mean["logp"] * mean["advantage"],
        "touched/share": mean["touched"],
        "touched/entropy": s["touched_entropy"] / s["touched"] if s["touched"] != 0 else math.nan,
        **{f"quadrant/{name}": mean[name] for name in QUADRANTS},
    }
    return rest | {key: value for key, value in found.items() if math.isfinite(value)}


@torch.no_grad()
def of_rollouts(batch: TokenBatch, outcome: Tensor, rewards: Tensor) -> dict[str, float]:
    """Covariance metrics of the trained rollouts, under the policy that sampled them.

    Args:
        batch: old_logp, mask, group and the prepared advantages [B, T] of whole groups; idle
            rollouts are left out.
        outcome: [B] float, the advantages before the methods' edits, for Eq. 7; [B, T] is averaged
            over a response's tokens.
        rewards: [B] float, which determine a prompt's difficulty; NaN where unknown.

    Returns:
        name -> metric. Left out: prompts with one response, a third without a prompt, all thirds
        if a reward is unknown.
    """
    if batch.idle is not None:
        live = ~batch.idle
        batch, outcome, rewards = batch[live], outcome[live], rewards[live]
    advantages, group = batch.need("advantages"), batch.need("group")
    whole, lengths = batch.whole, batch.lengths.clamp(min=1)
    if not whole.tokens:
        return {}
    cov = covariance(batch.old_logp.double(), advantages.double(), batch.mask, whole)
    found = {f"cov/top_{100 * share:g}": _top_mean(cov, whole, share) for share in TOP_SHARES[:-1]}
    found["cov/mean"] = whole.mean(cov)[0]
    if outcome.ndim == 2:
        outcome = row_sums(torch.where(batch.mask, outcome, 0)) / lengths
    x = row_sums(batch.old_logp.detach().double()) / lengths  # a response as one token
    (x, outcome, alive, group, rewards), _ = whole.gather(
        x, outcome.detach(), batch.lengths > 0, group, rewards
    )
    each = prompt_covariance(x[:, None], outcome, alive[:, None], group)  # [G]
    known = each.isfinite()
    if not bool(known.any()):
        return found
    found["cov/prompt"] = float(each[known].mean())
    reward = prompt_means(rewards, group)
    if bool(reward[known].isfinite().all()):
        third = terciles(reward[known])
        for i, name in enumerate(THIRDS):
            if bool((some := third == i).any()):
                found[f"cov/prompt_{name}"] = float(each[known][some].mean())
    return found


def _top_mean(cov: Tensor, whole: GlobalBatch, share: float) -> float:
    """Mean covariance of the `share` of the tokens with the largest, at least one (COV Tab. 1)."""
    count = max(1, round(share * whole.tokens))
    # the choice among ties does not matter
    top = whole.largest(cov, whole.mask, count, torch.Generator())
    return whole.sum(torch.where(top, cov, 0))[0] / count
