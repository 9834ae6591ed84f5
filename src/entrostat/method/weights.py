"""Methods that weight tokens at every update: earlier work (STEER Tab. 6), group means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from ..core.batch import Terms, TokenBatch
from .base import Method, Rng, in_range, within
from .par import weigh_positive
from .rounding import share_of


@dataclass(frozen=True)
class WReinforce(Method):
    """W-REINFORCE: tokens with A > 0 count `lam` times as much as those with A < 0.

    Zhu et al. (arXiv 2506.01347) for rewards of +1 and -1; here over any advantage and surrogate
    (STEER Tab. 6). STEER tuned lam over .1 and .2.

    Parameters:
        lam: weight on tokens with A > 0.
    """

    lam: float = within(0.1, 0)

    paper: ClassVar[str] = "STEER Tab. 6"
    reads_current: ClassVar[bool] = False

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        return weigh_positive(terms, self.lam)


@dataclass(frozen=True)
class ForkingTokens(Method):
    """Forking tokens: only the tokens of highest entropy are trained on.

    Weight 1 on the max(1, floor(top N)) tokens of largest H in the minibatch, 0 elsewhere. Wang et
    al. (arXiv 2506.01939); STEER Tab. 6. The tokens left out still count in the aggregation's
    denominator.

    Parameters:
        top: share of the minibatch's tokens.
        threshold: "count" takes that many tokens; "quantile" those with H at least the
            (1 - top)-quantile, linearly interpolated, of each micro-batch, as TRL does.
    """

    top: float = 0.2
    threshold: Literal["count", "quantile"] = "count"

    paper: ClassVar[str] = "STEER Tab. 6"
    needs: ClassVar[tuple[str, ...]] = ("entropy",)

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("forking_tokens", "top", self.top, 0, 1, above=self.threshold == "count")

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        entropy = batch.need("entropy")
        if self.threshold == "quantile":
            piece = batch.micro_batch
            piece = torch.zeros_like(batch.lengths) if piece is None else piece
            least = entropy.new_zeros(len(batch), 1)
            # a rank without rollouts, or with fewer micro-batches, makes the same calls
            last = max(piece.tolist(), default=0)
            for i in range(int(batch.whole.ranks.max(np.array([float(last)]))[0]) + 1):
                part = batch[piece == i]
                least[piece == i] = part.whole.quantile(part.need("entropy"), 1 - self.top)
            return terms.replace(weight=torch.where(entropy >= least, terms.weight, 0))
        count = share_of(self.top, int(terms.count))
        chosen = batch.whole.largest(entropy, batch.mask, count, generator)
        return terms.replace(weight=torch.where(chosen, terms.weight, 0))


@dataclass(frozen=True)
class GroupMean(Method):
    """Equal weight for groups: the mean over a group's tokens, then over groups (STEER Eq. 1).

    STEER divides by the sum of the response lengths of a group, `token_mean` by all N tokens of the
    minibatch. A token of group g is weighted N / (G L_g), L_g the tokens of g and G the groups in
    the minibatch, so that the weighted token mean is that of Eq. 1 and the mean weight is 1.

    For a group split between minibatches, L_g counts the part in this one. Terms added to the loss
    keep their own mean.
    """

    paper: ClassVar[str] = "STEER Eq. 1"
    needs: ClassVar[tuple[str, ...]] = ("group",)
    reads_current: ClassVar[bool] = False

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        live, group = batch.policy_mask, batch.need("group")
        tokens = live.sum(-1)
        (length,) = batch.whole.group_sums(group, tokens)
        (groups, trained), _ = batch.whole.gather(group, tokens)
        count = len(groups[trained > 0].unique())
        weight = int(terms.count) / (max(1, count) * length.clamp(min=1).double())
        weight = torch.where(live, weight[:, None], 1).to(terms.weight.dtype)
        return terms.replace(weight=terms.weight * weight)
