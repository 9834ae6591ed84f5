"""maj@k, and how well a policy's probabilities separate right from wrong. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray

BINS = 10
MOST = 256  # samples: more, all distinct, would take seconds
_ROUNDING = 1e-12


def expected_calibration_error(
    confidence: ArrayLike, score: ArrayLike, bins: int = BINS, weights: ArrayLike | None = None
) -> float:
    """ECE: |share right - mean confidence| of each bin, weighted by its responses, in [0, 1].

    Guo et al. (arXiv 1706.04599), with bins of equal width over [0, 1]. A value on an edge belongs
    to the lower bin, as in scikit-learn's `calibration_curve`.

    Args:
        confidence: [N] in [0, 1].
        score: [N] rewards; a response is right from 1 on.
        bins: number of bins over [0, 1].
        weights: [N] of the responses, at least 0; None for equal weights.

    Raises:
        ValueError: lists of unequal length, empty, a confidence outside [0, 1], or bins below 1.

    Example:
        >>> round(expected_calibration_error([0.9, 0.9, 0.1, 0.1], [1, 0, 0, 0]), 6)
        0.25
    """
    where = "expected_calibration_error"
    w = np.ones(np.shape(confidence)) if weights is None else weights
    p, s, w = number_lists(where, finite=False, confidence=confidence, score=score, weights=w)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"{where}: confidence must lie in [0, 1]")
    if bins < 1:
        raise ValueError(f"{where}: bins must be 1 or more, got {bins}")
    place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], p)
    gap = np.bincount(place, w * (s >= 1), bins) - np.bincount(place, w * p, bins)
    return float(np.abs(gap).sum() / w.sum()) if w.sum() else np.nan


def auroc(value: ArrayLike, score: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Probability that a right response has a larger value than a wrong one; ties count half.

    NaN if all responses are right, or none is.

    Args:
        value: [N], such as log-probs.
        score: [N] rewards; a response is right from 1 on.
        weights: [N] of the responses; None for equal weights.

    Raises:
        ValueError: lists of unequal length, or a NaN in `value`.

    Example:
        >>> auroc([0.1, 0.4, 0.3], [0, 1, 0])
        1.0
    """
    w = np.ones(np.shape(value)) if weights is None else weights
    v, s, w = number_lists("auroc", 0, False, value=value, score=score, weights=w)
    if (bad := np.flatnonzero(np.isnan(v))).size:
        raise ValueError(f"auroc: value[{bad[0]}] is nan; leave such responses out")
    return weighted_auroc(v, s >= 1)(w)


def weighted_auroc(
    value: NDArray[np.float64], right: NDArray[np.bool_]
) -> Callable[[NDArray[np.float64]], float]:
    """AUROC of responses [N] as a function of their weights [N]; NaN if a side has no weight."""
    rank = np.unique(value, return_inverse=True)[1]

    def of(weights: NDArray[np.float64]) -> float:
        good, bad = (np.bincount(rank, weights * side) for side in (right, ~right))
        pairs = good.sum() * bad.sum()
        below = np.cumsum(bad) - bad / 2
        return float((good * below).sum() / pairs) if pairs else np.nan

    return of


def number_lists(
    where: str, least: int = 1, finite: bool = True, **lists: ArrayLike
) -> list[NDArray[np.float64]]:
    """Convert to arrays of equal length, with `least` numbers or more.

    Raises:
        ValueError: names the list and the position in it.
    """
    found = [np.array(values, dtype=np.float64) for values in lists.values()]
    for name, one in zip(lists, found, strict=True):
        if one.ndim != 1 or len(one) < least:
            raise ValueError(
                f"{where}: {name} must be one list of numbers, got the shape {one.shape}; give "
                "lists of equal length"
            )
        if len(one) != len(found[0]):
            raise ValueError(
                f"{where}: {next(iter(lists))} has {len(found[0])} values and {name} {len(one)}; "
                "give lists of equal length"
            )
        if finite and (bad := np.flatnonzero(~np.isfinite(one))).size:
            raise ValueError(f"{where}: {name}[{bad[0]}] is {one[bad[0]]}; leave such points out")
    return found


def maj_at_k(answers: Sequence[Hashable | None], correct: Sequence[float], k: int) -> float:
    """Probability that the plurality of k of n samples, without replacement, is right (maj@k).

    Unbiased like `pass_at_k`: the mean over all subsets of k samples, computed without listing
    them. Ties are broken uniformly. Self-consistency of Wang et al. (arXiv 2203.11171) is the case
    k = n.

    Args:
        answers: [n] answer of each sample; None abstains. Equal answers are one.
        correct: [n] scores; an answer is right from 1 on. If equal answers have different scores,
            the answer counts by its share of right ones.
        k: 1 to n.

    Raises:
        ValueError: lists of unequal length, k out of range, or more samples than `MOST` with k < n.

    Example:
        >>> maj_at_k(["7", "7", "8"], [1, 1, 0], 3), maj_at_k(["7", "7", "8"], [1, 1, 0], 1)
        (1.0, 0.6666666666666666)
    """
    n = len(answers)
    if len(correct) != n:
        raise ValueError(
            f"maj_at_k: {n} answers and {len(correct)} scores; give both of the same samples"
        )
    if not 1 <= k <= n:
        raise ValueError(f"maj_at_k: need 1 <= k <= n, got n={n}, k={k}")
    if k == n:
        counts, right = _classes(answers, correct)
        most = max(counts, default=0)
        winners = [share for count, share in zip(counts, right, strict=True) if count == most]
        return sum(winners) / len(winners) if winners else 0.0
    if n > MOST:
        raise ValueError(
            f"maj_at_k: of more than {MOST} samples only k = n is computed, got n={n}, k={k}"
        )
    return float(majorities(answers, correct)[k - 1])


def majorities(answers: Sequence[Hashable | None], correct: Sequence[float]) -> NDArray[np.float64]:
    """`maj_at_k` for every k: [n] float64, at most `MOST` samples.

    Answer a wins a subset that contains t of its c_a votes if no other answer has more than t. The
    number of such subsets is a coefficient of a product of polynomials, one per other answer b:
    sum over x < t of C(c_b, x) z^x, plus C(c_b, t) z^t w for a tie, z counting samples and w ties.
    """
    counts, right = _classes(answers, correct)
    n, silent = len(answers), len(answers) - sum(counts)
    ways = np.zeros(n + 1)
    wins: dict[int, NDArray[np.float64]] = {}  # by number of votes
    for place, (votes, share) in enumerate(zip(counts, right, strict=True)):
        if share:
            if votes not in wins:
                wins[votes] = _wins(votes, counts[:place] + counts[place + 1 :], silent, n)
            ways += share * wins[votes]
    found = ways[1:] / np.array([float(comb(n, k)) for k in range(1, n + 1)])
    return np.where(found > 1 - _ROUNDING, 1.0, found)  # an interval at 1 is Clopper and Pearson's


def _wins(votes: int, others: list[int], silent: int, n: int) -> NDArray[np.float64]:
    """[n + 1]: subsets of each size that an answer wins; a tie with j others counts 1/(j + 1)."""
    found = np.zeros(n + 1)
    for t in range(1, votes + 1):
        level = sum(c >= t for c in others)
        ways = np.zeros((n + 1, level + 1))  # by samples, by ties
        ways[: silent + 1, 0] = [float(comb(silent, x)) for x in range(silent + 1)]
        for c in others:
            more = np.zeros_like(ways)
            for x in range(min(t - 1, c) + 1):
                more[x:] += comb(c, x) * ways[: n + 1 - x]
            if c >= t:
                more[t:, 1:] += comb(c, t) * ways[: n + 1 - t, :-1]
            ways = more
        found[t:] += comb(votes, t) * (ways / np.arange(1, level + 2)).sum(1)[: n + 1 - t]
    return found


def _classes(
    answers: Sequence[Hashable | None], correct: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Votes of each distinct answer, and its share of right ones."""
    votes = Counter(a for a in answers if a is not None)
    right = Counter(a for a, c in zip(answers, correct, strict=True) if a is not None and c >= 1)
    return list(votes.values()), [right[a] / count for a, count in votes.items()]
