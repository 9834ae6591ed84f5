"""Piecewise-linear fit of a curve, and the onset of its last movement.

A curve y [n] is first fitted by K straight pieces that need not meet (least squares, exact by
dynamic programming; K by a penalised likelihood). This covers jumps, slow drifts, falls that level
off, and recoveries. The onset of a fall or a rise then comes from a finer model,

    y_t = a + (b - a) (1 - exp(-(t - tau) / T))   for t > tau,   a before,                    (1)

which is a jump for small T, a straight line for large T, and slow first, then fast for negative T.
tau is fitted by least squares over a grid; its interval comes from the profile likelihood. Noise is
assumed to be correlated: every comparison of residuals uses the effective sample size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MOST = 200  # points that a curve is averaged down to: the work grows with their square
PIECES = 6  # straight pieces at most
SHORTEST = 3  # fewest points in a piece
PENALTY = 3.0  # parameters of a further piece: its level, slope and start
CORRELATION = 0.8  # largest noise correlation: more than that is the curve itself
# fall of twice the log-likelihood in a 90% interval: in theory 2.7; simulated curves of many shapes
# need this much (docs/diagnosis_rules.md)
LEVEL = 10.0


@dataclass(frozen=True)
class Course:
    fitted: Array  # [n] values of the pieces
    left: Array  # [n] residuals
    starts: tuple[int, ...]  # index at which each piece begins; the first is 0
    noise: float  # standard deviation of the residuals
    correlation: float  # of neighbouring residuals, 0 to .8

    @property
    def worth(self) -> float:
        """Effective sample size per value, (1 - rho) / (1 + rho)."""
        return (1 - self.correlation) / (1 + self.correlation)


@dataclass(frozen=True)
class Onset:
    """Onset of a movement: index of the best fit, and a 90% interval of indices."""

    at: int
    low: int
    high: int


def moving_mean(y: Array, width: int) -> Array:
    """[n - width + 1] moving means."""
    return np.convolve(y, np.ones(width) / width, "valid")


def thinned(x: Array, y: Array) -> tuple[Array, Array]:
    """Means over at most `MOST` equal blocks: positions [m] and values [m]."""
    size = math.ceil(len(x) / MOST)
    if size <= 1:
        return x, y
    edges = np.arange(0, len(x), size)
    counts = np.diff([*edges, len(x)])
    return np.add.reduceat(x, edges) / counts, np.add.reduceat(y, edges) / counts


def course(y: Array, floor: float = 0.0) -> Course:
    """Piecewise-linear fit of y [n]: finite values at equal distances, n >= 1.

    `floor` is the smallest standard deviation assumed for the noise. It keeps a curve without
    noise from being cut into pieces too small to see.
    """
    n = len(y)
    costs = _costs(y)
    most = max(1, min(PIECES, n // (2 * SHORTEST)))
    totals, cuts = _cheapest(costs, most)
    fits = [_assemble(y, cuts, k) for k in range(most)]
    # the finest fit gives the noise: a coarser one would count the curve itself as noise
    rho = _correlation(y - fits[-1][0])
    worth = n * (1 - rho) / (1 + rho)
    spread = np.array([max(total / n, floor**2, 1e-300) for total in totals])
    scores = worth * np.log(spread) + PENALTY * np.arange(1, most + 1) * math.log(max(n, 2))
    fitted, starts = fits[int(np.argmin(scores))]
    left = y - fitted
    return Course(fitted, left, starts, float(np.sqrt(np.mean(left**2))), _correlation(left))


def _costs(y: Array) -> Array:
    """[n, n]: squared residuals of the line fitted to y[i..j]; inf if that piece is too short."""
    n = len(y)
    t = np.arange(n, dtype=float)
    mid, centred = t.mean(), y - y.mean()  # centring reduces cancellation
    t = t - mid
    sums = [np.concatenate([[0.0], np.cumsum(v)]) for v in
            (np.ones(n), t, t * t, centred, centred * t, centred * centred)]  # fmt: skip
    m, st, stt, sy, sty, syy = (s[None, 1:] - s[:-1, None] for s in sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        over_t = stt - st * st / m
        cross = sty - st * sy / m
        cost = syy - sy * sy / m - np.where(over_t > 0, cross * cross / over_t, 0.0)
    short = (m < SHORTEST) & (m < n)
    return np.where(short, np.inf, np.maximum(cost, 0.0))


def _cheapest(costs: Array, most: int) -> tuple[list[float], list[NDArray[np.intp]]]:
    """Smallest cost of y[0..n] in 1 to `most` pieces, and where the last piece of each begins."""
    best = costs[0]
    totals, cuts = [float(best[-1])], []
    for _ in range(most - 1):
        # the earlier pieces end before i, the last one is [i, j]
        total = np.concatenate([[np.inf], best[:-1]])[:, None] + costs
        cuts.append(np.argmin(total, axis=0))
        best = np.min(total, axis=0)
        totals.append(float(best[-1]))
    return totals, cuts


def _assemble(y: Array, cuts: list[NDArray[np.intp]], k: int) -> tuple[Array, tuple[int, ...]]:
    """Values and starts of the best fit with k cuts."""
    starts, end = [], len(y) - 1
    for layer in reversed(cuts[:k]):
        starts.append(int(layer[end]))
        end = starts[-1] - 1
    starts = [0, *reversed(starts)]
    parts = [line(y[a:b]) for a, b in zip(starts, [*starts[1:], len(y)], strict=True)]
    return np.concatenate(parts), tuple(starts)


def line(y: Array) -> Array:
    """[n] values of the least-squares line through equally spaced y."""
    t = np.arange(len(y)) - (len(y) - 1) / 2
    over = float(t @ t)
    slope = float(t @ y) / over if over else 0.0
    return y.mean() + slope * t


def _correlation(left: Array) -> float:
    """Correlation of neighbouring residuals, 0 to `CORRELATION`."""
    if len(left) < 4:
        return 0.0
    power = float(left @ left)
    rho = float(left[1:] @ left[:-1]) / power if power > 0 else 0.0
    return min(max(rho, 0.0), CORRELATION)


def onset(y: Array, noise: float) -> Onset:
    """Onset of the movement in which y [n] ends, by model (1).

    The effective sample size comes from the residuals of the best fit. If the model is wrong, they
    are correlated over long stretches, which widens the interval. `noise` is the smallest standard
    deviation assumed for the residuals.
    """
    n = len(y)
    t = np.arange(n, dtype=float)
    times = np.unique(np.concatenate([[0.3], np.geomspace(1.0, 8.0 * n, 24)]))
    times = np.concatenate([times, -n / np.array([1.0, 2.0, 4.0, 8.0])])
    found = []
    for tau in range(n):
        after = np.maximum(t - tau, 0.0)[None, :] / times[:, None]
        found.append(_fit(-np.expm1(-after), y))
    squares = np.array([float(left @ left) for left in found]) / n
    best = int(np.argmin(squares))
    likely = n * _worth(found[best]) * np.log(np.maximum(squares, max(noise**2, 1e-300)))
    within = np.flatnonzero(likely <= likely[best] + LEVEL)
    return Onset(best, int(within[0]), int(within[-1]))


def _fit(shapes: Array, y: Array) -> Array:
    """[n] residuals of y under the best a + c shape, over the shapes [T, n]."""
    centred = y - y.mean()
    moved = shapes - shapes.mean(axis=1, keepdims=True)
    power = np.sum(moved * moved, axis=1)
    cross = moved @ centred
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(power > 1e-12, cross / power, 0.0)
    place = int(np.argmax(slope * cross))
    return centred - slope[place] * moved[place]


def _worth(left: Array) -> float:
    """Effective sample size per value: 1 / (1 + 2 sum of autocorrelations).

    The sum ends before the first lag whose autocorrelation is not positive (Geyer's initial
    positive sequence, without pairing).
    """
    power = float(left @ left)
    if power <= 0:
        return 1.0
    total = 0.0
    for k in range(1, len(left) // 3):
        rho = float(left[k:] @ left[:-k]) / power
        if rho <= 0:
            break
        total += rho
    return 1 / (1 + 2 * total)
