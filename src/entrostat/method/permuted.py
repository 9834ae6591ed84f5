"""The control of every method that weighs tokens: its weights, dealt to other tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from .. import exact
from ..batch import Terms, TokenBatch
from .base import Method


@dataclass(frozen=True)
class PermuteWeights(Method):
    """Deal the weights of the methods before it to the minibatch's tokens at random.

    w'_i = w_s(i), s a uniformly random permutation of the minibatch's tokens at every update, with
    the run's generator. How many tokens have which weight stays as it was, which tokens these are
    does not: what a method still does so is its mean weight (a smaller step), and what it no longer
    does is what its choice of tokens is worth. `["steer", "permute_weights"]` is the control that
    STEER's comparison with GRPO lacks. Without weights before it, it does nothing.

    Which weight a token gets depends on the rollout, the position and the draw alone, not on the
    order of the rows or the padding.
    """

    paper: ClassVar[str] = "ours; a control"
    hosts: ClassVar[tuple[str, ...]] = ("lab",)
    instead: ClassVar[str] = (
        "Weights would have to travel between the processes that hold the minibatch; use --host lab"
    )
    reads_current: ClassVar[bool] = False

    def plan(
        self, batch: TokenBatch, terms: Terms, state: Any, generator: torch.Generator | None
    ) -> Terms:
        """Permute the weights."""
        device = None if generator is None else generator.device
        seed = torch.empty((), dtype=torch.int64, device=device).random_(generator=generator)
        row, position = (x.cpu().numpy() for x in batch.mask.nonzero(as_tuple=True))
        rows = torch.arange(len(batch.mask)) if batch.rollout is None else batch.rollout
        who = rows.cpu().numpy()
        own = np.lexsort((position, who[row]))  # by rollout and position
        drawn = np.argsort(exact.hashes(int(seed), who, row, position), kind="stable")
        source = np.empty_like(own)
        source[own] = drawn
        kept = terms.weight[batch.mask]
        weight = terms.weight.clone()
        weight[batch.mask] = kept[torch.from_numpy(source).to(kept.device)]
        return terms.replace(weight=weight)
