"""maj@k: how often the answer that most of k samples give is right. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from math import comb

import numpy as np
from numpy.typing import NDArray

MOST = 256  # samples: of more, all different, it would take seconds


def maj_at_k(answers: Sequence[Hashable | None], correct: Sequence[float], k: int) -> float:
    """Chance that the plurality of k of n samples, drawn without replacement, is right (maj@k).

    Unbiased, as `pass_at_k` is: the mean over all subsets of k samples, computed without listing
    them. Of answers with equally many votes each wins equally often. Self-consistency of Wang et
    al. (arXiv 2203.11171) is the case k = n.

    Args:
        answers: what each sample says; None abstains. Equal answers are one.
        correct: [n] scores; an answer is right from 1 on. Where equal answers were scored
            differently, it counts by its share of right ones.
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
        return _winner_right(*_classes(answers, correct))
    if n > MOST:
        raise ValueError(
            f"maj_at_k: of more than {MOST} samples only k = n is computed, got n={n}, k={k}"
        )
    return float(majorities(answers, correct)[k - 1])


def majorities(answers: Sequence[Hashable | None], correct: Sequence[float]) -> NDArray[np.float64]:
    """`maj_at_k` for every k: [n] float64, at most `MOST` samples.

    Answer a with c_a votes among all wins a subset with t of them if no other answer has more. The
    ways to that are coefficients of a product of polynomials, one for each other answer b:
    sum over x < t of C(c_b, x) z^x, plus C(c_b, t) z^t w for a tie, z counting samples and w ties.
    """
    counts, right = _classes(answers, correct)
    n, silent = len(answers), len(answers) - sum(counts)
    ways = np.zeros(n + 1)
    wins: dict[int, NDArray[np.float64]] = {}  # alike for answers with as many votes
    for place, (votes, share) in enumerate(zip(counts, right, strict=True)):
        if share:
            if votes not in wins:
                wins[votes] = _wins(votes, counts[:place] + counts[place + 1 :], silent, n)
            ways += share * wins[votes]
    return ways[1:] / np.array([float(comb(n, k)) for k in range(1, n + 1)])


def _wins(votes: int, others: list[int], silent: int, n: int) -> NDArray[np.float64]:
    """[n + 1]: subsets of each size that an answer wins, those with j others level as 1/(j + 1)."""
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
    """Votes of each different answer, and its share of right ones."""
    votes = Counter(a for a in answers if a is not None)
    right = Counter(a for a, c in zip(answers, correct, strict=True) if a is not None and c >= 1)
    return list(votes.values()), [right[a] / count for a, count in votes.items()]


def _winner_right(counts: list[int], right: list[float]) -> float:
    most = max(counts, default=0)
    winners = [share for count, share in zip(counts, right, strict=True) if count == most]
    return sum(winners) / len(winners) if winners else 0.0
