"""Entropy dynamics of dumped rollouts, for other trainers' runs, which do not log them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..core.batch import TokenBatch
from ..dynamics.online import figures, of_rollouts, token_sums
from ..logs.rollouts import Rollouts


@torch.no_grad()
def of_dump(rollouts: Rollouts) -> dict[str, float]:
    """Compute all metrics of dumped rollouts, ours or another trainer's, that need no terms.

    They refer to the policy whose log-probs were dumped: the trainer's, else the sampler's. Groups
    without a signal are left out, as in training. Tokens without a log-prob or an advantage are
    skipped. Entropy is used only if every remaining token has one.

    Returns:
        name -> value; {} if no token has both a log-prob and an advantage.
    """
    lengths = rollouts.start.diff().tolist()
    if not sum(lengths):
        return {}

    def rows(values: Tensor) -> Tensor:
        """Pad [n] to [B, T]."""
        return pad_sequence(list(values.split(lengths)), batch_first=True)

    own = rollouts.logp
    lp = rows(torch.where(own.isfinite(), own, rollouts.sampler_logp))
    A, H = rows(rollouts.advantage), rows(rollouts.entropy)
    mask = rows(torch.ones_like(rollouts.tokens, dtype=torch.bool)) & rollouts.trained[:, None]
    mask = mask & lp.isfinite() & A.isfinite()
    _, place = rollouts.group.unique(return_inverse=True)
    signal = (torch.where(mask, A, 0) != 0).any(-1).long()
    signal = torch.zeros_like(place).index_add_(0, place, signal)[place]
    mask = mask & (signal > 0)[:, None]
    if not bool(mask.any()):
        return {}
    sums = token_sums(lp, A, mask, H if bool(H[mask].isfinite().all()) else None)
    found = figures({name: float(value) for name, value in sums.items()})
    found.pop("cov/update")  # there was no update: this is the mean over all tokens
    kept = mask.any(-1)
    batch = TokenBatch(lp, lp, mask, A, group=rollouts.group)[kept]
    return found | of_rollouts(batch, torch.where(mask, A, 0)[kept], rollouts.rewards[kept])
