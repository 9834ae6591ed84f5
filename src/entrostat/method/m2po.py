"""M2PO: a bound on the second moment of the log ratio (arXiv 2510.01161)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..core.batch import Terms, TokenBatch
from .base import Method, Rng, within
from .ratios import log_ratio


@dataclass(frozen=True)
class M2po(Method):
    """M2PO: masks the tokens of largest |log ratio| until the second moment is below a bound.

    Weight 0 on the fewest tokens of largest m = (lp - lp0)^2 such that the mean of m over the
    others is below the threshold; no other clip (arXiv 2510.01161; AReaL's `m2_threshold`). Of
    several tokens at least one is kept. The paper's runs have a threshold of .04.

    Parameters:
        threshold: largest second moment of the log ratio.
    """

    threshold: float = within(0.04, 0, above=True)

    kind: ClassVar[Literal["surrogate", "intervention"]] = "surrogate"
    paper: ClassVar[str] = "arXiv 2510.01161"

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        m = log_ratio(batch).square()
        (total,) = batch.whole.sum(m)
        N = batch.whole.tokens
        if not N or total / N < self.threshold:
            return terms
        fewest, most = 1, N - 1  # the mean of the rest falls with every masked token
        while fewest < most:
            count = (fewest + most) // 2
            (gone,) = self._largest(batch, m, count)
            if (total - gone) / (N - count) < self.threshold:
                most = count
            else:
                fewest = count + 1
        left_out = batch.whole.largest(m, batch.mask, fewest, generator)
        return terms.replace(weight=torch.where(left_out, 0, terms.weight))

    @staticmethod
    def _largest(batch: TokenBatch, m: Tensor, count: int) -> list[float]:
        fixed = torch.Generator().manual_seed(0)  # the choice among ties does not matter
        return batch.whole.sum(torch.where(batch.whole.largest(m, batch.mask, count, fixed), m, 0))
