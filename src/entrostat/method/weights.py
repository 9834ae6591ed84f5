"""Earlier methods that weight tokens at every update (STEER Tab. 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from ..core.batch import Terms, TokenBatch
from .base import Method, in_range, one_of
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

    lam: float = 0.1

    paper: ClassVar[str] = "STEER Tab. 6"
    reads_current: ClassVar[bool] = False

    def __post_init__(self) -> None:
        in_range("w_reinforce", "lam", self.lam, 0)

    def plan(
        self, batch: TokenBatch, terms: Terms, state: Any, generator: torch.Generator | None
    ) -> Terms:
        """Weight the tokens with A > 0."""
        return weigh_positive(terms, self.lam)


@dataclass(frozen=True)
class ForkingTokens(Method):
    """Forking tokens: only the tokens of highest entropy are trained on.

    Weight 1 on the max(1, floor(top N)) tokens of largest H in the minibatch, 0 elsewhere. Wang et
    al. (arXiv 2506.01939); STEER Tab. 6. The tokens left out still count in the aggregation's
    denominator.

    Parameters:
        top: share of the minibatch's tokens.
        threshold: "count" takes so many tokens; "quantile" those of at least the (1 - top)-quantile
            of H, linearly interpolated, which is what TRL does.
    """

    top: float = 0.2
    threshold: Literal["count", "quantile"] = "count"

    paper: ClassVar[str] = "STEER Tab. 6"
    needs: ClassVar[tuple[str, ...]] = ("entropy",)

    def __post_init__(self) -> None:
        in_range("forking_tokens", "top", self.top, 0, 1, open_low=self.threshold == "count")
        one_of("forking_tokens", "threshold", self.threshold, ("count", "quantile"))

    def plan(
        self, batch: TokenBatch, terms: Terms, state: Any, generator: torch.Generator | None
    ) -> Terms:
        """Weight 0 below the threshold."""
        assert batch.entropy is not None
        if self.threshold == "quantile":
            least = batch.whole.quantile(batch.entropy, 1 - self.top)
            return terms.replace(weight=torch.where(batch.entropy >= least, terms.weight, 0))
        count = share_of(self.top, int(terms.count))
        chosen = batch.whole.largest(batch.entropy, batch.mask, count, generator)
        return terms.replace(weight=torch.where(chosen, terms.weight, 0))
