"""The course of a curve: straight pieces, and when what it came to began.

A curve y [n] is first described by K straight pieces that need not meet (least squares, exact by
dynamic programming; K by a penalised likelihood), so that jumps, slow drifts, falls that level off
and recoveries are all within reach. When a fall or a rise began is then asked of a finer model,

    y_t = a + (b - a) (1 - exp(-(t - tau) / T))   for t > tau,   a before,                    (1)

which is a jump for small T, a straight line for large T and slow, then fast for negative ones: tau
by least squares over a grid, its interval from the profile likelihood. Noise is taken to be
correlated: n values are worth fewer, and every comparison of residuals is made at that worth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MOST = 200  # places that a curve is averaged down to: the work grows with their square
PIECES = 6  # straight pieces at most
SHORTEST = 3  # places in a piece at least
PENALTY = 3.0  # parameters that a further piece costs: a level, a slope and where it begins
CORRELATION = 0.8  # more than this is a curve, not its noise
# of twice the log likelihood: 2.7 would do for 90% if the model were true; this is what it takes on
# planted courses of many shapes (docs/diagnosis_rules.md)
LEVEL = 10.0


@dataclass(frozen=True)
class Course:
    fitted: Array  # [n] the pieces' values
    left: Array  # [n] what they leave
    starts: tuple[int, ...]  # index at which each piece begins; the first is 0
    noise: float  # standard deviation of what is left
    correlation: float  # between neighbouring residuals, 0 to .8

    @property
    def worth(self) -> float:
        """Independent values that one value is worth, (1 - rho) / (1 + rho)."""
        return (1 - self.correlation) / (1 + self.correlation)


@dataclass(frozen=True)
class Onset:
    """When a movement began: index of the best place, and a 90% interval of places."""

    at: int
    low: int
    high: int


def moving_mean(y: Array, width: int) -> Array:
    """[n - width + 1] means of neighbours."""
    return np.convolve(y, np.ones(width) / width, "valid")


def thinned(x: Array, y: Array) -> tuple[Array, Array]:
    """Means of equal blocks, at most `MOST` of them: places [m] and values [m]."""
    size = math.ceil(len(x) / MOST)
    if size <= 1:
        return x, y
    edges = np.arange(0, len(x), size)
    counts = np.diff([*edges, len(x)])
    return np.add.reduceat(x, edges) / counts, np.add.reduceat(y, edges) / counts


def course(y: Array, floor: float = 0.0) -> Course:
    """The straight pieces of a curve y [n] of finite values at equal distances, n of 1 or more.

    `floor` is a standard deviation below which noise is not believed, so that a curve without any
    is not cut into pieces that nobody would see.
    """
    n = len(y)
    costs = _costs(y)
    most = max(1, min(PIECES, n // (2 * SHORTEST)))
    totals, cuts = _cheapest(costs, most)
    fits = [_assemble(y, cuts, k) for k in range(most)]
    # the noise is that of the finest description: a coarser one would take the curve for noise
    rho = _correlation(y - fits[-1][0])
    worth = n * (1 - rho) / (1 + rho)
    spread = np.array([max(total / n, floor**2, 1e-300) for total in totals])
    scores = worth * np.log(spread) + PENALTY * np.arange(1, most + 1) * math.log(max(n, 2))
    fitted, starts = fits[int(np.argmin(scores))]
    left = y - fitted
    return Course(fitted, left, starts, float(np.sqrt(np.mean(left**2))), _correlation(left))


def _costs(y: Array) -> Array:
    """[n, n]: squared residuals of the straight line through y[i..j]; inf where that is short."""
    n = len(y)
    t = np.arange(n, dtype=float)
    mid, centred = t.mean(), y - y.mean()  # of what is centred, less is lost by subtraction
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
        # pieces so far end before i, one more is [i, j]
        total = np.concatenate([[np.inf], best[:-1]])[:, None] + costs
        cuts.append(np.argmin(total, axis=0))
        best = np.min(total, axis=0)
        totals.append(float(best[-1]))
    return totals, cuts


def _assemble(y: Array, cuts: list[NDArray[np.intp]], k: int) -> tuple[Array, tuple[int, ...]]:
    """Values and starts of the best description with k cuts."""
    starts, end = [], len(y) - 1
    for layer in reversed(cuts[:k]):
        starts.append(int(layer[end]))
        end = starts[-1] - 1
    starts = [0, *reversed(starts)]
    parts = [line(y[a:b]) for a, b in zip(starts, [*starts[1:], len(y)], strict=True)]
    return np.concatenate(parts), tuple(starts)


def line(y: Array) -> Array:
    """[n] values of the least-squares line through y at equal distances."""
    t = np.arange(len(y)) - (len(y) - 1) / 2
    over = float(t @ t)
    slope = float(t @ y) / over if over else 0.0
    return y.mean() + slope * t


def _correlation(left: Array) -> float:
    """Of neighbouring residuals, at least 0."""
    if len(left) < 4:
        return 0.0
    power = float(left @ left)
    rho = float(left[1:] @ left[:-1]) / power if power > 0 else 0.0
    return min(max(rho, 0.0), CORRELATION)


def onset(y: Array, noise: float) -> Onset:
    """When the movement in which y [n] ends began, by model (1).

    The noise's worth is taken from what the best fit leaves: where the model is wrong that is
    correlated over long stretches, and the interval is the wider for it. Residuals below `noise`,
    a standard deviation, are not believed.
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
    """[n]: what the best a + c shape over the shapes [T, n] leaves of y."""
    centred = y - y.mean()
    moved = shapes - shapes.mean(axis=1, keepdims=True)
    power = np.sum(moved * moved, axis=1)
    cross = moved @ centred
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(power > 1e-12, cross / power, 0.0)
    place = int(np.argmax(slope * cross))
    return centred - slope[place] * moved[place]


def _worth(left: Array) -> float:
    """Independent values that one of these is worth: 1 / (1 + 2 sum of correlations).

    Of the correlations at rising distances those before the first that is not positive count
    (Geyer's initial positive sequence, without pairing).
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
