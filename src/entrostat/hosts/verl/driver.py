"""Once a rollout batch, in the driver: controllers see the entropy, advantages are prepared.

No veRL here. Shapes: B rollouts, T completion tokens at most.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...advantage import with_signal
from ...batch import TokenBatch, masked_mean
from ...dynamics import online
from ...objective import Objective
from ..mismatch import mismatch


@dataclass
class Prepared:
    """What the workers get for each rollout.

    Attributes:
        advantages: [B, T] float, 0 at mask 0.
        mask: [B, T] bool. Tokens that are trained on: none of padding rows, none of groups whose
            advantages are all 0.
        rewards: [B] float, as the objective's methods shaped them.
        metrics: figures of the rollout batch and of the controllers.
        edited: [B, T] bool, as in `TokenBatch`; None for no token.
    """

    advantages: Tensor
    mask: Tensor
    rewards: Tensor
    metrics: dict[str, float]
    edited: Tensor | None = None


def prepare(
    objective: Objective,
    batch: TokenBatch,
    real: Tensor,
    progress: float,
    sampler_logp: Tensor | None = None,
) -> Prepared:
    """Move the controllers, estimate advantages, let the methods edit them.

    The order is the lab's: the controllers see the entropy of the full rollout batch, then groups
    without a signal are left out, then advantages are prepared on the others.

    Args:
        objective: its controllers move.
        batch: old_logp, old_entropy, mask, rewards, group, and ref_logp where it is needed.
        real: [B] bool, False for the synthetic rows that veRL adds to even out a batch.
        progress: 0 at the first iteration of the run, 1 at the last.
        sampler_logp: [B, T] float, the rollout engine's log-probs, where it gave them.

    Raises:
        ValueError: a reward or an entropy is no number, or a group has one rollout where the
            estimator compares.
    """
    assert batch.old_entropy is not None
    assert batch.rewards is not None
    advantages = torch.zeros(batch.mask.shape, dtype=torch.float32, device=batch.mask.device)
    mask = torch.zeros_like(batch.mask)
    edited, figures = None, {}
    rewards = batch.rewards.float()
    if not torch.isfinite(rewards[real]).all():
        raise ValueError("veRL gave a reward that is no finite number; look at the reward function")
    rows = real.nonzero()[:, 0]
    mine = batch[rows]
    assert mine.old_entropy is not None
    entropy = float(masked_mean(mine.old_entropy.float(), mine.mask))
    nll = -float(masked_mean(mine.old_logp.float(), mine.mask))
    objective.observe(entropy=entropy, nll=nll, progress=progress)
    graded = objective.outcome_advantages(mine)
    assert graded.advantages is not None
    assert graded.group is not None
    assert graded.rewards is not None
    signal = with_signal(graded.advantages, graded.group)
    kept = signal.nonzero()[:, 0]
    groups = len(graded.group.unique())
    dropped = groups - len(graded.group[signal].unique())
    if len(kept):
        trained = objective.prepare(graded[kept])
        assert trained.advantages is not None
        advantages[rows[kept]] = trained.advantages.float()
        mask[rows[kept]] = trained.mask
        if trained.edited is not None:
            edited = torch.zeros_like(mask)
            edited[rows[kept]] = trained.edited
        outcome, own = graded.advantages[kept], batch.rewards[rows[kept]]
        figures = online.of_rollouts(trained, outcome, own)
    rewards[rows] = graded.rewards.float()
    metrics = {
        "entropy/exact": entropy,
        "entropy/nll": nll,
        "reward/mean": float(batch.rewards[real].float().mean()),
        "rollout/length_mean": float(mine.lengths.float().mean()),
        "rollout/groups": float(groups),
        "rollout/zero_advantage_groups": float(dropped),
        **objective.metrics(),
        **figures,
    }
    if sampler_logp is not None:
        metrics |= mismatch(mine.old_logp, sampler_logp[rows], mine.mask)
    return Prepared(advantages, mask, rewards, metrics, edited)
