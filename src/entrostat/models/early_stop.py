"""Rollout economy (REPO App. D.2): sampling stops once enough rollouts are in; the rest is dropped.

The longest rollouts are those that are dropped, so what is trained on is not what the policy would
have said: lengths of both are logged.

Shapes: n rollouts that are sampled together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ..config import Sampling
    from .rollout import Sequences

SHARE = 0.9  # REPO's


@dataclass(frozen=True)
class Enough:
    """When enough rollouts are in.

    Attributes:
        group: rollouts of every prompt that must be.
        share: share of all that must be, in (0, 1].
    """

    group: int
    share: float

    def reached(self, ended: Tensor, prompt: Tensor) -> bool:
        """Whether sampling may stop.

        Args:
            ended: [n] bool, rollouts that are in.
            prompt: [n] int64, equal for those of one prompt; no number between is left out.
        """
        if int(ended.sum()) / len(ended) < self.share:
            return False
        first, last = int(prompt.min()), int(prompt.max())
        counts = torch.bincount(prompt[ended] - first, minlength=last - first + 1)
        return int(counts.min()) >= self.group


def enough_of(sampling: Sampling) -> Enough | None:
    """The configured rule; None where every rollout is waited for."""
    enough = sampling.enough
    if not enough.on:
        return None
    share = SHARE if enough.share is None else enough.share
    return Enough(enough.least(sampling.rollouts), share)


def of_dropped(sequences: Sequences) -> dict[str, float]:
    """Figures of the sequences that were not waited for; none where all were.

    `rollout/dropped` counts them; `rollout/dropped_length_mean`, `_min` and `_max` are of the
    tokens that they had so far, absent where none was dropped. Those of the others are
    `rollout/length_mean` and `rollout/length_max`.
    """
    if sequences.dropped is None:
        return {}
    lengths = sequences.mask[sequences.dropped].sum(-1).double()
    figures = {"rollout/dropped": float(len(lengths))}
    if len(lengths):
        figures |= {
            "rollout/dropped_length_mean": float(lengths.mean()),
            "rollout/dropped_length_min": float(lengths.min()),
            "rollout/dropped_length_max": float(lengths.max()),
        }
    return figures
