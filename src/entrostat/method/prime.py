"""PRIME: process rewards from a second model trained on outcomes only (arXiv 2502.01456).

Shapes: B rollouts, T completion tokens at most; a group is the rollouts of one prompt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..core.advantages import EPS
from ..core.batch import TokenBatch, at_least_float32
from ..core.distributed import GlobalBatch, row_sums
from .base import Method, within

_VARIANCE = 1e-8  # added to the variance by the authors' whitening


@dataclass(frozen=True)
class Prime(Method):
    """PRIME: token rewards from a second model that is trained online on the outcomes alone.

    A model phi starts as a copy of the policy. Its token reward is r_t = beta (log pi_phi(y_t) -
    log pi_ref(y_t)), ref the policy before training. phi is trained by the cross-entropy of
    sigmoid(sum over t of r_t) with the outcome R in [0, 1]. Then

        A_t <- A + sum over s >= t of gamma^(s-t) (r_s - b),

    A the outcome's advantage (leave-one-out, unless another estimator is named) and b the mean over
    the group's other rollouts of their mean token reward. Cui et al. (arXiv 2502.01456), COV's
    fourth algorithm; alone it is rloo + ppo (.2, .2) + token_mean, as its authors run it.

    Only the lab trains phi. Zero-advantage groups take no part: their advantages stay 0, they count
    in no normaliser, and phi is not trained on them. PRIME drops prompts with accuracies outside
    [.2, .8] before phi sees them; COV and this implementation drop all-right and all-wrong prompts.
    phi then learns to separate right and wrong rollouts of the same prompts. phi is saved in the
    checkpoints, but not in `final/`, and it is not evaluated.

    Parameters:
        beta: scale of the token rewards.
        gamma: discount of the token rewards, per trained token; the outcome is not discounted.
        norm: "batch" divides the token rewards by the largest |sum over s >= t of r_s| of the
            rollout batch (plus 1e-6), as the authors' code does; beta then affects phi alone.
            "none" does not divide.
        whiten: whether the sum of both parts is centred and divided by its standard deviation over
            the batch's tokens, as in the authors' code but not in the paper. norm="none",
            whiten=False is the printed formula.
        phi_lr: AdamW's learning rate for phi; None takes the authors' 1e-6, 1e-5 with LoRA and
            1e-4 below ten million parameters.
        phi_minibatches: updates of phi per rollout batch, one pass over it in whole groups (four in
            the authors' script, as many as of the policy).
        phi_update: "after" scores the rollouts with phi, then trains phi on them (the authors'
            script); "before" trains phi first (veRL's recipe). With "after" all r_t of the first
            iteration are 0: phi still equals ref.

    Choices where paper, script and code differ or are silent. b is as printed; the authors' code
    computes K/(K-1) r_t minus the sum of the K mean rewards over K-1, which is the printed r_t - b
    plus (r_t - the rollout's own mean)/(K-1). One phi scores a whole rollout batch (under "after"
    the authors score each minibatch by a phi trained on the minibatches before it). Phi's gradient
    norm is clipped to 10 (their script); its betas are the policy's; it has no weight decay.
    Log-probs of phi and ref are at temperature 1, whatever the sampling temperature: phi is a
    classifier and does not sample. The closing eos has a reward (the authors' code; veRL's recipe
    leaves it out). Normalisers are over the whole rollout batch (the authors': over one GPU's
    part). With LoRA phi has its own adapters over the same weights.

    The outcomes fix only the sum of a rollout's rewards: after a decisive token phi may spread the
    credit over later tokens. It takes tens of updates until `prime/pair_accuracy`, the share of a
    prompt's pairs that phi orders correctly, rises above 1/2.
    """

    beta: float = within(0.05, 0, above=True)
    gamma: float = within(1.0, 0, 1)
    norm: Literal["batch", "none"] = "batch"
    whiten: bool = True
    phi_lr: float | None = within(None, 0, above=True)
    phi_minibatches: int = within(4, 1)
    phi_update: Literal["after", "before"] = "after"

    paper: ClassVar[str] = "COV 2.2, B.4"
    needs: ClassVar[tuple[str, ...]] = ("process_rewards", "group")
    hosts: ClassVar[tuple[str, ...]] = ("lab",)
    instead: ClassVar[str] = (
        "Its token rewards are a second model's, which the lab alone trains beside the policy: "
        "train there (entrostat train --method prime), or take `loop_token`, the same without them"
    )
    base: ClassVar[str] = "loop_token"

    def prepare(self, batch: TokenBatch, state: Any) -> TokenBatch:
        A, group = batch.need("advantages"), batch.need("group")
        (signal,) = batch.whole.group_sums(group, (A != 0).any(-1).long())
        mask = batch.mask & (signal > 0)[:, None]
        whole = batch.whole.over(mask)
        r = at_least_float32(batch.need("process_rewards").detach()).to(A.dtype)
        r = torch.where(mask, r, 0)
        if self.norm == "batch":
            # an empty batch has no maximum
            r = r / (max(0.0, *whole.max(returns(r, mask).abs())) + EPS)
        total = A + returns(leave_one_out(r, group, whole), mask, self.gamma)
        return batch.replace(advantages=whitened(total, whole) if self.whiten else total)


def leave_one_out(rewards: Tensor, group: Tensor, whole: GlobalBatch) -> Tensor:
    """[B, T]: token rewards minus the mean of the mean token rewards of a group's other rollouts.

    Rollouts without tokens are in no mean. 0 at mask 0, and for a rollout alone in its group.
    """
    length = whole.mask.sum(-1)
    mean = (row_sums(rewards) / length.clamp(min=1)).to(rewards.dtype)  # [B]
    total, alive = whole.group_sums(group, mean, (length > 0).to(rewards.dtype))
    others = alive - 1
    baseline = (total - mean) / others.clamp(min=1)
    return torch.where(whole.mask & (others > 0)[:, None], rewards - baseline[:, None], 0)


def returns(rewards: Tensor, mask: Tensor, gamma: float = 1.0) -> Tensor:
    """[B, T]: sum over s >= t of gamma^(s-t) rewards_s, counting trained tokens; 0 at mask 0."""
    total, out = rewards.new_zeros(len(rewards)), torch.zeros_like(rewards)
    for t in reversed(range(rewards.shape[1])):
        total = torch.where(mask[:, t], rewards[:, t] + gamma * total, total)
        out[:, t] = total
    return torch.where(mask, out, 0)


def whitened(values: Tensor, whole: GlobalBatch) -> Tensor:
    """[B, T]: (values - mean) / sqrt(variance + 1e-8), variance unbiased; 0 at mask 0."""
    centred = torch.where(whole.mask, values - whole.mean(values)[0], 0)
    variance = whole.sum(centred.square())[0] / max(1, whole.tokens - 1)
    return centred / math.sqrt(variance + _VARIANCE)
