"""Scores over n samples a prompt. Pure functions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np


def avg_at_k(correct: Sequence[Sequence[float]] | np.ndarray) -> float:
    """Mean score over all samples, [prompts, k] numbers in 0..1 -> a number (avg@k).

    Raises:
        ValueError: nothing to average.
    """
    scores = np.asarray(correct, dtype=np.float64)
    if scores.size == 0:
        raise ValueError("avg_at_k: no samples")
    return float(scores.mean())


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of pass@k from n samples of which c are right.

    1 - C(n - c, k) / C(n, k), Chen et al. (arXiv 2107.03374), as a product that does not overflow.

    Raises:
        ValueError: unless 0 <= c <= n and 1 <= k <= n.

    Example:
        >>> pass_at_k(4, 1, 2)
        0.5
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass_at_k: need 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    if n - c < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


def distinct_correct(samples: Sequence[Hashable], correct: Sequence[float]) -> int:
    """How many different right answers there are among the samples of one prompt."""
    return len({s for s, ok in zip(samples, correct, strict=True) if ok >= 1})
