"""Earlier methods that shape rewards or advantages once per rollout batch (STEER Tab. 6).

Shapes: B rollouts, T completion tokens at most; a group is the rollouts of one prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..core.advantages import EPS, Groups
from ..core.batch import TokenBatch, at_least_float32
from ..core.distributed import row_sums
from .base import Method, within
from .ratios import row_mean

_TINY = 1e-30


@dataclass(frozen=True)
class Unlikeliness(Method):
    """Unlikeliness reward: among right answers to a prompt, likelier ones get less reward.

    R <- R (1 - beta (K - rank)/K) where R > 0, before the advantage; rank 1 is the most likely
    rollout of its group of K by lp0 summed over the sequence, rank K the least. He et al.
    (arXiv 2506.02355); STEER Tab. 6. Equally likely rollouts share the better rank. A group in
    which all rewards are equal and above 0 gets nonzero advantages.

    Parameters:
        beta: size of the reduction.

    Deviation: rewards below 0 stay unchanged. With the papers' R of 0 or 1 this is the same; with
    1 and -1 the formula alone would penalise likelier wrong answers less.
    """

    beta: float = within(0.25, 0, 1)

    paper: ClassVar[str] = "STEER Tab. 6"
    needs: ClassVar[tuple[str, ...]] = ("rewards", "group")

    def required(self) -> tuple[str, ...]:
        """Nothing beyond what the estimator needs: given advantages are used unchanged."""
        return ()

    def shape(self, batch: TokenBatch, state: Any) -> TokenBatch:
        likelihood = row_sums(at_least_float32(batch.old_logp.detach()))
        group = batch.need("group")
        alive = batch.lengths > 0  # a rollout without tokens is in no ranking
        (likelihoods, groups, others), mine = batch.whole.gather(likelihood, group, alive)
        same = (groups[mine, None] == groups) & others & alive[:, None]  # [B, A]
        size = same.sum(-1)
        rank = 1 + (same & (likelihoods > likelihood[:, None])).sum(-1)
        rewards = batch.need("rewards").detach()
        rewards = rewards if rewards.dtype == torch.float64 else rewards.float()
        share = torch.where(alive, (size - rank).to(rewards.dtype) / size.clamp(min=1), 0)
        return batch.replace(
            rewards=torch.where(rewards > 0, rewards * (1 - self.beta * share), rewards)
        )


@dataclass(frozen=True)
class EntropyAdv(Method):
    """Entropy advantage: uncertain tokens gain advantage, never enough to change its sign.

    A <- A + min(alpha H0, |A|/kappa), H0 detached. Cheng et al. (arXiv 2506.14758); STEER Tab. 6.

    Parameters:
        alpha: advantage per nat.
        kappa: the gain is at most |A|/kappa.
    """

    alpha: float = within(0.4, 0)
    kappa: float = within(2.0, 1)

    paper: ClassVar[str] = "STEER Tab. 6"
    needs: ClassVar[tuple[str, ...]] = ("old_entropy",)

    def prepare(self, batch: TokenBatch, state: Any) -> TokenBatch:
        A = batch.need("advantages")
        gain = self.alpha * at_least_float32(batch.need("old_entropy").detach())
        return batch.replace(advantages=A + torch.minimum(gain, A.abs() / self.kappa))


@dataclass(frozen=True)
class Gtpo(Method):
    """GTPO: uncertain tokens of rewarded rollouts get more reward; token advantages by group.

    For R > 0 the token's reward is R + alpha H0_t / (mean of H0 at position t over the group's
    rewarded rollouts still running at t), else R; the advantage is (token reward - mean)/(std +
    1e-6) over the group's tokens, std unbiased. Tan and Pan (arXiv 2508.04349); STEER Tab. 6. t
    counts the trained tokens of a rollout.

    It recomputes the advantages from the rewards: the estimator only marks zero-advantage groups,
    which stay 0.

    Parameters:
        alpha: reward for a token of average entropy. Not given in the papers available to us; .1
            is the GTPO authors' order of magnitude.
    """

    alpha: float = within(0.1, 0)

    paper: ClassVar[str] = "STEER Tab. 6"
    needs: ClassVar[tuple[str, ...]] = ("old_entropy", "rewards", "group")
    replaces_advantages: ClassVar[bool] = True

    def prepare(self, batch: TokenBatch, state: Any) -> TokenBatch:
        A, mask, group = batch.need("advantages"), batch.mask, batch.need("group")
        H = at_least_float32(batch.need("old_entropy").detach()).to(A.dtype)
        R = batch.need("rewards").detach().to(A.dtype)
        # entropies of the group's rewarded rollouts at each position, compacted
        place, tokens = batch.whole.companions(group, H)
        (everyone, rewarded, length), mine = batch.whole.gather(group, R > 0, batch.lengths)
        groups = Groups(everyone[place], A.dtype)
        position = torch.arange(tokens.shape[1], device=mask.device)
        running = (rewarded[place, None] & (position < length[place, None])).to(A.dtype)
        mean = groups.sum(running * tokens) / groups.sum(running).clamp(min=1)
        own = mean[torch.searchsorted(place, mine)]
        mean = own.gather(1, (mask.cumsum(-1) - 1).clamp(min=0))
        # where all entropies are 0 every token is average
        share = (H + _TINY) / (mean + _TINY)
        bonus = self.alpha * share * (R > 0)[:, None]
        normal = _normalise((R[:, None] + bonus) * mask, batch)
        (signal,) = batch.whole.group_sums(group, (A != 0).any(-1).long())
        return batch.replace(advantages=normal * (signal > 0)[:, None])


def _normalise(values: Tensor, batch: TokenBatch) -> Tensor:
    """(values - mean)/(std + 1e-6) over the tokens of each group; [B, T], values 0 at mask 0."""
    group = batch.need("group")
    n, total = batch.whole.group_sums(group, batch.lengths, row_sums(values))
    centred = (values - (total / n.clamp(min=1)).to(values.dtype)[:, None]) * batch.mask
    (squares,) = batch.whole.group_sums(group, row_sums(centred.square()))
    std = (squares / (n - 1).clamp(min=1)).sqrt().to(values.dtype)
    return centred / (std[:, None] + EPS)


@dataclass(frozen=True)
class EdgeGrpo(Method):
    """EDGE-GRPO: the advantage of a rollout divided by its normalised entropy.

    A_i / h_i, h_i = rollout i's mean H0 over its group's mean of these. Confident right answers
    gain, confident wrong ones lose more. Zhang et al. (arXiv 2507.21848), without their guided
    error correction; STEER Tab. 6. Rollouts without tokens are left out of the mean; h_i is 1 where
    all of a group's entropies are 0, else at least 1e-6. The formula has no other bound: a rollout
    of near-zero entropy can dominate the step.
    """

    paper: ClassVar[str] = "STEER Tab. 6"
    needs: ClassVar[tuple[str, ...]] = ("old_entropy", "group")

    def prepare(self, batch: TokenBatch, state: Any) -> TokenBatch:
        A = batch.need("advantages")
        own = row_mean(at_least_float32(batch.need("old_entropy").detach()), batch).to(A.dtype)
        alive = (batch.lengths > 0).to(own.dtype)
        total, n = batch.whole.group_sums(batch.need("group"), own, alive)
        mean = total / n.clamp(min=1)
        h = torch.where(mean > 0, own / torch.where(mean > 0, mean, 1), 1).clamp(min=EPS)
        return batch.replace(advantages=A / h[:, None])


@dataclass(frozen=True)
class PplAdv(Method):
    """Perplexity-based advantage: rollouts of high perplexity count less.

    A (1 - alpha log PPL), log PPL = -(mean of lp0 of the rollout). Deng et al. (arXiv 2508.02260);
    STEER Tab. 6.

    Parameters:
        alpha: reduction per nat of log perplexity.
    """

    alpha: float = within(0.01, 0)

    paper: ClassVar[str] = "STEER Tab. 6"

    def prepare(self, batch: TokenBatch, state: Any) -> TokenBatch:
        A = batch.need("advantages")
        log_ppl = -row_mean(at_least_float32(batch.old_logp.detach()), batch).to(A.dtype)
        return batch.replace(advantages=A * (1 - self.alpha * log_ppl)[:, None])


@dataclass(frozen=True)
class PositionAdv(Method):
    """Position-based advantage: later tokens count more.

    A + gamma sign(A) sigmoid(t/len). t = 1..len counts the rollout's trained tokens. Deng et al.
    (arXiv 2508.02260); STEER Tab. 6.

    Parameters:
        gamma: size of the addition.
    """

    gamma: float = within(0.1, 0)

    paper: ClassVar[str] = "STEER Tab. 6"

    def prepare(self, batch: TokenBatch, state: Any) -> TokenBatch:
        A = batch.need("advantages")
        place = batch.mask.to(A.dtype).cumsum(-1) / batch.lengths.clamp(min=1)[:, None]
        # torch.sigmoid rounds differently at the end of a vector: results would depend on the row
        return batch.replace(advantages=A + self.gamma * A.sign() / (1 + (-place).exp()))
