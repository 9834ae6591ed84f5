"""How well a policy's own probabilities tell right responses from wrong ones. Pure functions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

BINS = 10


def expected_calibration_error(
    confidence: ArrayLike, score: ArrayLike, bins: int = BINS, weights: ArrayLike | None = None
) -> float:
    """ECE: |share right - mean confidence| of each bin, weighted by its responses, in [0, 1].

    Guo et al. (arXiv 1706.04599), bins of equal width over [0, 1]; what lies on an edge belongs to
    the bin below, as in scikit-learn's `calibration_curve`.

    Args:
        confidence: [N] in [0, 1].
        score: [N] rewards; a response is right from 1 on.
        bins: of [0, 1].
        weights: [N] of the responses, at least 0; None weighs all alike.

    Raises:
        ValueError: lists of unequal length, empty, a confidence outside [0, 1], or bins below 1.

    Example:
        >>> round(expected_calibration_error([0.9, 0.9, 0.1, 0.1], [1, 0, 0, 0]), 6)
        0.25
    """
    p, right = np.asarray(confidence, dtype=float), np.asarray(score, dtype=float) >= 1
    w = np.ones_like(p) if weights is None else np.asarray(weights, dtype=float)
    if not p.ndim == 1 <= len(p) or not p.shape == right.shape == w.shape:
        raise ValueError(
            f"expected_calibration_error: confidence {p.shape}, score {right.shape} and weights "
            f"{w.shape} must be lists of equal length, one number per response"
        )
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError("expected_calibration_error: confidence must lie in [0, 1]")
    if bins < 1:
        raise ValueError(f"expected_calibration_error: bins must be 1 or more, got {bins}")
    place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], p)
    gap = np.bincount(place, w * right, bins) - np.bincount(place, w * p, bins)
    return float(np.abs(gap).sum() / w.sum()) if w.sum() else np.nan


def auroc(value: ArrayLike, score: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Probability that a right response has a larger value than a wrong one; equal ones half.

    NaN where all are right, or none is.

    Args:
        value: [N], log-probs say.
        score: [N] rewards; a response is right from 1 on.
        weights: [N] of the responses; None weighs all alike.

    Raises:
        ValueError: lists of unequal length, or a value that is NaN: it has no place in an order.

    Example:
        >>> auroc([0.1, 0.4, 0.3], [0, 1, 0])
        1.0
    """
    v, right = np.asarray(value, dtype=float), np.asarray(score, dtype=float) >= 1
    w = np.ones_like(v) if weights is None else np.asarray(weights, dtype=float)
    if v.ndim != 1 or not v.shape == right.shape == w.shape:
        raise ValueError(
            f"auroc: value {v.shape}, score {right.shape} and weights {w.shape} must be lists of "
            "equal length, one number per response"
        )
    if np.isnan(v).any():
        place = int(np.flatnonzero(np.isnan(v))[0])
        raise ValueError(f"auroc: value[{place}] is nan; leave such responses out")
    return Ranked.of(v, right).auroc(w)


class Ranked:
    """Responses in the order of a value, for AUROCs under many weightings.

    `rank` [N] is the place of each response's value among the different ones; `right` [N] bool.
    """

    def __init__(self, rank: NDArray[np.int64], right: NDArray[np.bool_]) -> None:
        self.rank, self.right = rank, right

    @classmethod
    def of(cls, value: NDArray[np.float64], right: NDArray[np.bool_]) -> Ranked:
        return cls(np.unique(value, return_inverse=True)[1], right)

    def auroc(self, weights: NDArray[np.float64]) -> float:
        """Under weights [N]; NaN where one side has none."""
        good = np.bincount(self.rank, weights * self.right)
        bad = np.bincount(self.rank, weights * ~self.right)
        pairs = good.sum() * bad.sum()
        below = np.cumsum(bad) - bad / 2
        return float((good * below).sum() / pairs) if pairs else np.nan
