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

SHARE = 0.9  # REPO's


@dataclass(frozen=True)
class EarlyStop:
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


def early_stop_of(sampling: Sampling) -> EarlyStop | None:
    """The configured rule; None where every rollout is waited for."""
    enough = sampling.enough
    if not enough.on:
        return None
    share = SHARE if enough.share is None else enough.share
    return EarlyStop(enough.least(sampling.rollouts), share)
