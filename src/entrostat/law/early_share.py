"""How early a run spends its entropy and gains its score: most of both, COV says, and at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..logs.run import last_ones
from .steps import Array, checked_steps

SHARES = (1 / 12, 1 / 3)  # COV's: 200 and 800 of 2,400 gradient steps


@dataclass(frozen=True)
class Spent:
    """What had happened after a share of the run.

    Attributes:
        share: of the steps, 0 to 1.
        entropy: (H_1 - H) / (H_1 - H_end), 1 at the end; NaN of a run that ends no lower.
        score: (R - R_1) / (R_end - R_1), likewise; NaN of one that ends no better.
    """

    share: float
    entropy: float
    score: float


def spent(
    entropy: ArrayLike, score: ArrayLike, shares: Sequence[float] = SHARES
) -> tuple[Spent, ...]:
    """Shares of the entropy spent and of the score gained (COV 2.3, Fig. 2).

    Args:
        entropy: [n] H, nats per token, in the order of training.
        score: [n] R at the same policies.
        shares: of the steps, each above 0 and at most 1; between two steps a straight line is
            taken. The end is the mean of the last fifteenth.

    Example:
        >>> (half,) = spent([2.0, 1.0, 1.0, 1.0, 1.0], [0.0, 0.1, 0.2, 0.3, 0.4], [0.5])
        >>> half.entropy, half.score
        (1.0, 0.5)
    """
    for share in shares:
        if not 0 < share <= 1:
            raise ValueError(f"spent: a share is above 0 and at most 1, got {share!r}")
    h, r = checked_steps("spent", entropy, score)
    return tuple(Spent(s, _done(h, s, falls=True), _done(r, s, falls=False)) for s in shares)


def _done(values: Array, share: float, falls: bool) -> float:
    n = len(values)
    moved = values - values[0]
    end = float(moved[-last_ones(n) :].mean())
    if (end >= 0) if falls else (end <= 0):
        return float("nan")
    return float(np.interp(share * (n - 1), np.arange(n), moved)) / end
