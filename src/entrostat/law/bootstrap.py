"""Intervals of the law's coefficients by a moving-block bootstrap; see `EntropyLaw.interval`."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

from .steps import Array


@dataclass(frozen=True)
class LawInterval:
    """Bootstrap intervals of the coefficients and of the ceiling b - a, (low, high) each.

    Attributes:
        level: share of such intervals that should hold the truth.
        block: steps that were drawn together.
        samples: bootstrap samples.
    """

    a: tuple[float, float]
    b: tuple[float, float]
    ceiling: tuple[float, float]
    level: float
    block: int
    samples: int


def block_length(residuals: Array) -> int:
    """Steps per block, see `EntropyLaw.interval`."""
    n, power = len(residuals), float(residuals @ residuals)
    r = float(residuals[1:] @ residuals[:-1]) / power if power > 0 else 0.0
    r = min(max(r, 0.0), 0.95)
    steps = 1.5 * n ** (1 / 3) * max(1.0, (sqrt(6) * r / (1 - r * r)) ** (2 / 3))
    return max(1, min(ceil(steps), n // 4))


def bootstrap(x: Array, y: Array, samples: int, block: int, seed: int) -> tuple[Array, Array]:
    """Both coefficients, [samples] each, of circular blocks of (x, y)."""
    n, rng = len(x), np.random.default_rng(seed)
    x_mean, y_mean = x.mean(), y.mean()
    dx, dy = x - x_mean, y - y_mean
    at_once = max(1, 1_000_000 // n)  # bounds the memory
    least = n * (1e-9 * np.ptp(x)) ** 2
    a, b = [], []
    for start in range(0, samples, at_once):
        count = min(at_once, samples - start)
        first = rng.integers(0, n, size=(count, -(-n // block), 1))
        drawn = ((first + np.arange(block)) % n).reshape(count, -1)[:, :n]
        u, v = dx[drawn], dy[drawn]
        u_mean, v_mean = u.mean(1), v.mean(1)
        spread = (u * u).sum(1) - n * u_mean**2
        told = spread > least  # a sample of one entropy only tells nothing
        slope = ((u * v).sum(1) - n * u_mean * v_mean)[told] / spread[told]
        a.append(-slope)
        b.append(y_mean + v_mean[told] - slope * (x_mean + u_mean[told]))
    return np.concatenate(a), np.concatenate(b)
