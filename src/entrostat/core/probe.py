"""A chain's ratio, clip and on-policy behaviour, read from its terms on synthetic rollouts."""

from __future__ import annotations

import math

import torch

from .batch import Terms, TokenBatch
from .objective import Objective


def probe(objective: Objective) -> Terms:
    """The terms on four synthetic rollouts: the chain's ratio, clip and dual clip."""
    g = torch.Generator().manual_seed(0)
    mask = torch.ones(4, 3, dtype=torch.bool)
    logp, entropy = -torch.rand(4, 3, generator=g) - 0.5, torch.rand(4, 3, generator=g) + 0.5
    zero = torch.zeros(4, 3)
    batch = TokenBatch(
        logp, logp, mask, torch.tensor([1.0, -1.0, 1.0, -1.0]).unsqueeze(1).expand(4, 3),
        rewards=torch.tensor([1.0, 0.0, 1.0, 0.0]), group=torch.tensor([0, 0, 1, 1]),
        entropy=entropy, old_entropy=entropy, ref_logp=logp, process_rewards=zero, influence=zero,
        tempered=torch.zeros(4, dtype=torch.bool), sum_p2=zero + 0.5, sum_p2_logp=zero - 0.5,
    )  # fmt: skip
    return objective.plan(batch, g)


def bounds(terms: Terms) -> tuple[float, float]:
    """How far the ratio may be below and above 1, as TRL's `epsilon` and `epsilon_high`."""
    low, high = float(terms.ratio_min.min()), float(terms.ratio_max.max())
    return round(1 - low, 6), round(high - 1, 6)


ONE_UPDATE = "one update per {what}, so every ratio is exactly 1 and"


def idle_at_one(objective: Objective) -> tuple[list[str], tuple[float, float] | None]:
    """The parts of an objective without effect while every ratio is 1: methods, clip bounds.

    The doctor, `train` and the trainers all use this function.
    """
    terms = probe(objective)
    low, high = bounds(terms)
    clips = terms.ratio != "none" and (math.isfinite(low) or math.isfinite(high))
    chain = zip(objective.names, objective.methods, strict=True)
    idle = [f"`{name}` ({each.idle_on_policy})" for name, each in chain if each.idle_on_policy]
    return idle, (low, high) if clips else None
