"""Control for methods that weight tokens: the same weights on randomly permuted tokens."""

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
    """Randomly permute the earlier methods' weights over the minibatch's tokens.

    w'_i = w_s(i), s a uniformly random permutation of the minibatch's tokens at every update, with
    the run's generator. The distribution of weights stays the same; the tokens that carry them
    change. An effect that remains is due to the mean weight (a smaller step); an effect that is
    lost is due to the choice of tokens. `["steer", "permute_weights"]` is the control that STEER's
    comparison with GRPO lacks. Without earlier weights it does nothing. Weights from a rollout's
    own ratios (`off_policy_mask`, surrogates) are applied after it and are not permuted.

    With several ranks each rank gathers every weight (24 times its own statistics at 8 ranks,
    `benchmarks/ranks.py`): a control for small runs.

    A token's weight depends on the rollout, the position and the draw alone, not on the order of
    the rows or the padding.
    """

    paper: ClassVar[str] = "ours; a control"
    reads_current: ClassVar[bool] = False

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        device = None if generator is None else generator.device
        seed = torch.empty((), dtype=torch.int64, device=device).random_(generator=generator)
        whole, mask = batch.whole, batch.mask
        T = mask.shape[1]
        if not whole.width:  # no rank has a token
            return terms
        who = mask.any(-1).cumsum(0) - 1 if batch.rollout is None else batch.rollout
        held = torch.where(mask, terms.weight, torch.nan)
        held = torch.nn.functional.pad(held, (0, whole.width - T), value=torch.nan)
        # all ranks' weights, one column per position; rollouts in the order of their ids
        (everyone, *columns), mine = whole.gather(who.long(), *held.unbind(-1))
        weights = torch.stack(columns, -1).cpu().numpy()
        row, position = np.nonzero(~np.isnan(weights))
        drawn = exact.hashes(int(seed), everyone.cpu().numpy(), row, position).argsort()
        dealt = weights.copy()
        dealt[row, position] = weights[row[drawn], position[drawn]]
        found = torch.from_numpy(dealt).to(mask.device)[mine, :T]
        return terms.replace(weight=torch.where(mask, found, terms.weight))
