"""A filter that learns the trend of the entropy and forecasts it.

On z_t = log(H_t / H_1 + .05), where noise is uniform over levels and a steady decay is a line,

    z_t = l_t + e_t,    l_t+1 = l_t + phi s_t + a_t,    s_t+1 = phi s_t + b_t,               (1)

a level and a slope that decays (phi < 1) or does not, both random walks. The shares of noise, level
and slope in the movement are unknown: 36 Kalman filters with different variances and phi run in
parallel (the scale of a filter's variances has a conjugate prior). Each is weighted by its past
predictions, older iterations counting less. The forecast is their mixture.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SHIFT = 0.05  # of the first entropy, added under the logarithm
WANDER = (0.0, 0.03, 0.3)  # variance of a, over that of e
BEND = (1e-5, 1e-4, 1e-3, 1e-2)  # variance of b, over that of e
DYING = (0.9, 0.98, 1.0)  # phi
MEMORY = 0.98  # decay of the evidence per iteration
HORIZON = 200  # iterations ahead
NOISE = 0.02  # prior standard deviation of e, worth so many iterations:
WORTH = 4.0

_GRID = np.array(list(itertools.product(WANDER, BEND, DYING)))


@dataclass(frozen=True)
class Trend:
    """The filters' state after the entropies so far; immutable, `seen` returns the next.

    The variance of e is inverse-gamma: `shape` is half the number of observations, `scale` [36]
    half the sum of squares.
    """

    count: int = 0  # iterations seen
    first: float = 0.0  # the first entropy, nats; 0 before it
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
        if self.count == 0:  # the first level carries no evidence
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
        """[201] probability that the level has left a range within 0, 1, ... 200 iterations.

        A lower bound, since the level may return: the running maximum of the probability of being
        outside. The range is in nats; 0 and infinity mean no bound.
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
    """The normal distribution function; torch's, because veRL's environment has no scipy."""
    import torch

    return torch.special.ndtr(torch.from_numpy(np.ascontiguousarray(x))).numpy()


@cache
def _paths() -> tuple[Array, Array]:
    """[36, 201] each: the level's change in k iterations by a unit slope, its variance by noise.

    The variance is relative to that of e.
    """
    wander, bend, phi = (column[:, None] for column in _GRID.T)
    powers = np.cumprod(np.broadcast_to(phi, (len(_GRID), HORIZON)), axis=1)
    zero = np.zeros((len(_GRID), 1))
    reach: Array = np.concatenate([zero, np.cumsum(powers, axis=1, dtype=float)], axis=1)
    # a unit change of the slope k iterations ago has since added reach_k to the level
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
