"""Validation of the steps that a law is fitted to, and statistics of such lists of numbers."""

from __future__ import annotations

from itertools import permutations
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
EXACT = 8  # points up to which p is counted over all orders: 8! = 40320
STEPS_LEAST = 3  # two coefficients, and something left over
_ENTROPY_MOST = 20.0  # nats; e^20 words, more than any vocabulary has


class LawError(ValueError):
    """The law cannot be fitted to these steps.

    Attributes:
        message: the problem and the remedy, without the function's name.
        why: the reason as a clause, for a reader of results who cannot set arguments.
    """

    def __init__(self, where: str, message: str, why: str = "") -> None:
        super().__init__(f"{where}: {message}")
        self.message, self.why = message, why or message


def checked_steps(where: str, entropy: ArrayLike, score: ArrayLike) -> tuple[Array, Array]:
    """Both lists, checked and copied; an error's message begins with `where`."""
    out = []
    for name, values in (("entropy", entropy), ("score", score)):
        array = np.array(values, dtype=np.float64)
        if array.ndim != 1:
            raise LawError(
                where,
                f"{name} must be one list of numbers, got the shape {array.shape}; give one number "
                "a step",
            )
        if not np.isfinite(array).all():
            place = int(np.flatnonzero(~np.isfinite(array))[0])
            raise LawError(
                where, f"{name}[{place}] is {array[place]}; leave such steps out of both lists"
            )
        out.append(array)
    h, r = out
    if len(h) != len(r):
        raise LawError(
            where, f"entropy has {_steps(len(h))} and score {len(r)}; give both of the same steps"
        )
    if len(h) < STEPS_LEAST:
        need = f"two coefficients need {STEPS_LEAST} or more to be fitted"
        count = _steps(len(h))
        are = "are" if len(h) != 1 else "is"
        raise LawError(where, f"entropy has {count}; {need}", f"there {are} {count}, and {need}")
    # exact entropies may round to slightly below 0
    for bad, what in ((h < -1e-6, "below 0"), (h > _ENTROPY_MOST, f"above {_ENTROPY_MOST:g}")):
        if bad.any():
            place = int(np.flatnonzero(bad)[0])
            raise LawError(
                where,
                f"entropy[{place}] is {h[place]:g}, {what}; give nats per token, not a sum over "
                "tokens and not a log-prob",
                f"an entropy of {h[place]:g} is {what}, which no entropy per token in nats can be",
            )
    for array in (h, r):
        array.flags.writeable = False
    return h, r


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


def moves(values: Array) -> bool:
    """Whether the values differ by more than rounding."""
    return bool(np.ptp(values) > 1e-12 * np.abs(values).max())


def least_squares(x: Array, y: Array) -> tuple[float, float, Array, float]:
    """Intercept, slope, residuals [n] and R^2 of the least-squares line; x must not be constant.

    R^2 is NaN if y is constant.
    """
    dx, dy = x - x.mean(), y - y.mean()
    slope = float(dx @ dy / (dx @ dx))
    residual = dy - slope * dx
    r2 = float(1 - residual @ residual / (dy @ dy)) if moves(y) else float("nan")
    return float(y.mean() - slope * x.mean()), slope, residual, r2


def rms(values: Array) -> float:
    return sqrt(float(values @ values) / len(values))


def rank_correlation(x: Array, y: Array) -> tuple[float, float]:
    """Spearman's correlation of two [n], neither constant, and its two-sided p.

    Up to `EXACT` points p is the share of all n! orders with a correlation at least as far from 0,
    ties at their mean ranks; above that by Student's t.
    """
    from scipy.stats import rankdata, spearmanr

    n, found = len(x), spearmanr(x, y)
    rho, p = float(found.statistic), float(found.pvalue)
    if n <= EXACT:
        u, ranks = rankdata(x) - (n + 1) / 2, rankdata(y) - (n + 1) / 2
        v = ranks[np.array(list(permutations(range(n))))]
        every = v @ u / sqrt((u @ u) * (ranks @ ranks))
        p = float((np.abs(every) >= abs(rho) - 1e-9).mean())
    return min(1.0, max(-1.0, rho)), p


def is_whole(value: Any) -> bool:
    """Whether the value is a whole number; booleans are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
