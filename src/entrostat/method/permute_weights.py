"""The control of every method that weighs tokens: its weights, dealt to other tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from ..core import deterministic as exact
from ..core.batch import Terms, TokenBatch
from .base import Method, Rng


@dataclass(frozen=True)
class PermuteWeights(Method):
    """Deal the weights of the methods before it to the minibatch's tokens at random.

    w'_i = w_s(i), s a uniformly random permutation of the minibatch's tokens at every update, with
    the run's generator. How many tokens have which weight stays as it was, which tokens these are
    does not: what a method still does so is its mean weight (a smaller step), and what it no longer
    does is what its choice of tokens is worth. `["steer", "permute_weights"]` is the control that
    STEER's comparison with GRPO lacks. Without weights before it, it does nothing. Weights that
    follow from a rollout's own ratios (`off_policy_mask`, surrogates) come after it and stay.

    Over several ranks each gathers every weight (24 times its own statistics at 8 ranks,
    `benchmarks/ranks.py`): a control for small runs.

    Which weight a token gets depends on the rollout, the position and the draw alone, not on the
    order of the rows or the padding.
    """

    paper: ClassVar[str] = "ours; a control"
    reads_current: ClassVar[bool] = False

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        device = None if generator is None else generator.device
        seed = torch.empty((), dtype=torch.int64, device=device).random_(generator=generator)
        whole, mask = batch.whole, batch.mask
        T = mask.shape[1]
        if not whole.width:  # nobody has a token
            return terms
        who = mask.any(-1).cumsum(0) - 1 if batch.rollout is None else batch.rollout
        held = torch.where(mask, terms.weight, torch.nan)
        held = torch.nn.functional.pad(held, (0, whole.width - T), value=torch.nan)
        # all ranks' weights, a column a position; rollouts in the order of their identities
        (everyone, *columns), mine = whole.gather(who.long(), *held.unbind(-1))
        weights = torch.stack(columns, -1).cpu().numpy()
        row, position = np.nonzero(~np.isnan(weights))
        drawn = exact.hashes(int(seed), everyone.cpu().numpy(), row, position).argsort()
        dealt = weights.copy()
        dealt[row, position] = weights[row[drawn], position[drawn]]
        found = torch.from_numpy(dealt).to(mask.device)[mine, :T]
        return terms.replace(weight=torch.where(mask, found, terms.weight))
