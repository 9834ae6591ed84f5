"""A generation batch of all ranks: who is trained on, with what advantages, and how it looks.

No TRL here. Shapes: B rollouts of all ranks, T completion tokens at most.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...advantage import NEED_PAIRS, Groups, with_signal
from ...batch import TokenBatch, masked_mean
from ...objective import Objective


def prepared(objective: Objective, whole: TokenBatch) -> tuple[Tensor, Tensor]:
    """Which rollouts [B] bool are trained on, and their advantages [B, T] after all edits."""
    assert whole.rewards is not None
    assert whole.group is not None
    kept = ~whole.rewards.isnan()  # as TRL: no reward, no part in its group's baseline
    if objective.advantage in NEED_PAIRS:
        kept = kept & (Groups(whole.group, torch.float32).sum(kept.float()) >= 2)
    full = torch.zeros_like(whole.old_logp)
    if not bool(kept.any()):
        return kept, full
    rows = kept.nonzero()[:, 0]
    graded = objective.outcome_advantages(whole[rows])
    assert graded.advantages is not None
    assert graded.group is not None
    signal = with_signal(graded.advantages, graded.group)
    kept = torch.zeros_like(kept).index_fill(0, rows[signal], True)
    if bool(signal.any()):
        edited = objective.prepare(graded[signal]).advantages
        assert edited is not None
        full[rows[signal]] = edited.to(full.dtype)
    return kept, full


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
