"""A filter that learns how entropy moves, and says where it is going.

On z_t = log(H_t / H_1 + .05), where noise is alike at every level and a steady decay is a line,

    z_t = l_t + e_t,    l_t+1 = l_t + phi s_t + a_t,    s_t+1 = phi s_t + b_t,               (1)

a level with a slope that dies away (phi < 1) or does not, both free to wander. How much of the
movement is noise, wandering or slope is not known beforehand: filters for 36 answers run side by
side (Kalman; the scale of all variances is learnt with them, conjugately), each weighted by how
well it has predicted so far, older iterations counting less. What comes is their mixture.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SHIFT = 0.05  # of the first entropy, under the logarithm
WANDER = (0.0, 0.03, 0.3)  # variance of a, over that of e
BEND = (1e-5, 1e-4, 1e-3, 1e-2)  # variance of b, over that of e
DYING = (0.9, 0.98, 1.0)  # phi
MEMORY = 0.98  # of an iteration's evidence, an iteration later
HORIZON = 200  # iterations ahead
NOISE = 0.02  # standard deviation of e before anything is seen, worth so many iterations:
WORTH = 4.0

_GRID = np.array(list(itertools.product(WANDER, BEND, DYING)))


@dataclass(frozen=True)
class Trend:
    """What the entropies so far say of those to come; a new one with each (`seen`).

    The variance of e is inverse-gamma: `shape` is half the observations that it is worth, `scale`
    [36] half the sum of squares.
    """

    count: int = 0  # iterations seen
    first: float = 0.0  # the first entropy, nats; 0 before one was seen
    # [36, 2] level and slope of each filter, [36, 2, 2] their covariance over the variance of e
    mean: Array = field(default_factory=lambda: np.zeros((len(_GRID), 2)))
    cov: Array = field(default_factory=lambda: np.tile(np.diag([1e6, 4.0]), (len(_GRID), 1, 1)))
    shape: float = WORTH / 2
    scale: Array = field(default_factory=lambda: np.full(len(_GRID), WORTH / 2 * NOISE**2))
    # [36] logarithm of each filter's weight
    weight: Array = field(default_factory=lambda: np.zeros(len(_GRID)))

    def seen(self, entropy: float) -> Trend:
        """The trend after one more entropy, nats, which is finite and at least 0."""
        first = self.first if self.count else max(entropy, 1e-6)
        mean, cov = (self.mean, self.cov) if self.count == 0 else _ahead(self.mean, self.cov)
        spread = cov[:, 0, 0] + 1.0
        gain = cov[:, :, 0] / spread[:, None]
        error = math.log(entropy / first + SHIFT) - mean[:, 0]
        odd = error**2 / spread
        shape, scale = MEMORY * self.shape, MEMORY * self.scale
        if self.count == 0:  # a level from nowhere is no evidence
            likely, odd = np.zeros(len(_GRID)), np.zeros(len(_GRID))
        else:
            likely = _student(odd, spread, shape, scale)
        return replace(
            self,
            count=self.count + 1,
            first=first,
            mean=mean + gain * error[:, None],
            cov=cov - gain[:, :, None] * cov[:, None, 0, :],
            shape=shape + (self.count > 0) / 2,
            scale=scale + odd / 2,
            weight=MEMORY * self.weight + likely,
        )

    def outside(self, low: float, high: float) -> Array:
        """[201] probability that the level has been outside a range by 0, 1, ... 200 iterations on.

        It may come back: by then it was outside with at least the largest probability so far. The
        range is in nats; 0 and infinity are no bounds.
        """
        weight = np.exp(self.weight - self.weight.max())
        weight = (weight / weight.sum())[:, None]
        reach, noise = _paths()
        level, slope = self.mean[:, :1], self.mean[:, 1:]
        a, b, c = (self.cov[:, i, j][:, None] for i, j in ((0, 0), (0, 1), (1, 1)))
        spread = np.maximum(a + 2 * reach * b + reach**2 * c + noise, 1e-12)
        sd = np.sqrt(spread * (self.scale / self.shape)[:, None])
        middle = level + reach * slope
        under = _normal((_z(low, self.first) - middle) / sd)
        over = _normal((middle - _z(high, self.first)) / sd)
        return np.minimum(np.maximum.accumulate(np.sum(weight * (under + over), axis=0)), 1.0)


def _normal(x: Array) -> Array:
    """The normal distribution function; torch's, for veRL's environment has no scipy."""
    import torch

    return torch.special.ndtr(torch.from_numpy(np.ascontiguousarray(x))).numpy()


@cache
def _paths() -> tuple[Array, Array]:
    """[36, 201] each: what a slope has added to the level k iterations on, and what noise has.

    The second is a variance, over that of e.
    """
    wander, bend, phi = (column[:, None] for column in _GRID.T)
    powers = np.cumprod(np.broadcast_to(phi, (len(_GRID), HORIZON)), axis=1)
    zero = np.zeros((len(_GRID), 1))
    reach: Array = np.concatenate([zero, np.cumsum(powers, axis=1, dtype=float)], axis=1)
    # a bend k iterations ago has since added reach_k to the level
    bent = np.concatenate([zero, np.cumsum(bend * reach[:, :-1] ** 2, axis=1)], axis=1)
    return reach, bent + wander * np.arange(HORIZON + 1)


def _z(entropy: float, first: float) -> float:
    if entropy <= 0:
        return -math.inf
    return math.log(entropy / first + SHIFT) if entropy < math.inf else math.inf


def _ahead(mean: Array, cov: Array) -> tuple[Array, Array]:
    wander, bend, phi = _GRID.T
    slope = phi * mean[:, 1]
    level = mean[:, 0] + slope
    a, b, c = cov[:, 0, 0], cov[:, 0, 1], cov[:, 1, 1]
    new = np.empty_like(cov)
    new[:, 0, 0] = a + 2 * phi * b + phi**2 * c + wander
    new[:, 0, 1] = new[:, 1, 0] = phi * b + phi**2 * c
    new[:, 1, 1] = phi**2 * c + bend
    return np.stack([level, slope], axis=1), new


def _student(odd: Array, spread: Array, shape: float, scale: Array) -> Array:
    """[36] log density of an error whose variance has an inverse-gamma distribution."""
    return (
        math.lgamma(shape + 0.5) - math.lgamma(shape) - 0.5 * np.log(2 * np.pi * scale * spread)
        - (shape + 0.5) * np.log1p(odd / (2 * scale))
    )  # fmt: skip
