"""A generation batch of all ranks: who is trained on, with what advantages, and how it looks.

No TRL here. Shapes: B rollouts of all ranks, T completion tokens at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...advantage import NEED_PAIRS, Groups, with_signal
from ...batch import TokenBatch, masked_mean
from ...dynamics import online
from ...objective import Objective


@dataclass(frozen=True)
class Prepared:
    """A generation batch, graded.

    Attributes:
        kept: [B] bool, the rollouts that are trained on.
        advantages: [B, T] float, after all edits; 0 where not trained.
        edited: [B, T] bool, as in `TokenBatch`; None for no token.
        figures: `dynamics.online.of_rollouts`.
    """

    kept: Tensor
    advantages: Tensor
    edited: Tensor | None
    figures: dict[str, float]


def prepared(objective: Objective, whole: TokenBatch) -> Prepared:
    """Which rollouts are trained on, and with what advantages."""
    assert whole.rewards is not None
    assert whole.group is not None
    kept = ~whole.rewards.isnan()  # as TRL: no reward, no part in its group's baseline
    if objective.advantage in NEED_PAIRS:
        kept = kept & (Groups(whole.group, torch.float32).sum(kept.float()) >= 2)
    full = torch.zeros_like(whole.old_logp)
    if not bool(kept.any()):
        return Prepared(kept, full, None, {})
    rows = kept.nonzero()[:, 0]
    graded = objective.outcome_advantages(whole[rows])
    assert graded.advantages is not None
    assert graded.group is not None
    signal = with_signal(graded.advantages, graded.group)
    kept = torch.zeros_like(kept).index_fill(0, rows[signal], True)
    if not bool(signal.any()):
        return Prepared(kept, full, None, {})
    trained = objective.prepare(graded[signal])
    assert trained.advantages is not None
    full[rows[signal]] = trained.advantages.to(full.dtype)
    edited = None
    if trained.edited is not None:
        edited = torch.zeros_like(whole.mask)
        edited[rows[signal]] = trained.edited
    figures = online.of_rollouts(trained, graded.advantages[signal], whole.rewards[rows[signal]])
    return Prepared(kept, full, edited, figures)


def watched(whole: TokenBatch, advantages: Tensor, exact: bool) -> dict[str, float]:
    """Entropy dynamics of a generation batch that no objective trains on.

    Args:
        whole: all rollouts.
        advantages: [B] float, the trainer's own.
        exact: one update is made on the batch, so that its policy is the one that sampled; the
            figures of an update are left out where it is not.
    """
    assert whole.rewards is not None
    assert whole.group is not None
    signal = with_signal(advantages, whole.group)
    if not bool(signal.any()):
        return {}
    outcome, mask = advantages[signal], whole.mask[signal]
    A = outcome[:, None].expand(mask.shape)
    trained = whole[signal].replace(advantages=A)
    figures = online.of_rollouts(trained, outcome, whole.rewards[signal])
    if not exact:
        return figures
    sums = online.token_sums(trained.old_logp, A, mask, trained.old_entropy)
    return online.figures({key: float(value) for key, value in sums.items()}) | figures


def describe(batch: TokenBatch, rollouts: int) -> dict[str, float]:
    """What the rollout batch of all ranks looks like, before any update; the lab's names."""
    assert batch.rewards is not None
    assert batch.old_entropy is not None
    known = batch.rewards[~batch.rewards.isnan()]
    groups = [g[~g.isnan()] for g in batch.rewards.view(-1, rollouts)]
    spread = [float(g.std(correction=0)) for g in groups if len(g)]
    best = [float(g.max()) for g in groups if len(g)]
    lengths = batch.lengths.float()
    return {
        "entropy/exact": float(masked_mean(batch.old_entropy, batch.mask)),
        "entropy/nll": -float(masked_mean(batch.old_logp, batch.mask)),
        "reward/mean": float(known.mean()) if len(known) else math.nan,
        "reward/std_in_group": sum(spread) / len(spread) if spread else math.nan,
        "reward/best_in_group": sum(best) / len(best) if best else math.nan,
        "rollout/length_mean": float(lengths.mean()),
        "rollout/length_max": float(lengths.max()),
        "rollout/tokens": float(lengths.sum()),
    }
