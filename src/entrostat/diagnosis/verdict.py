"""Verdict on a run's entropy: collapse, explosion, drift, held, or cannot tell.

docs/diagnosis_rules.md has the rules. They are applied to 200 resampled curves: the fit of
`course` plus a block bootstrap of its residuals. The verdict is the most frequent result; its share
is the confidence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..logs.run import last_ones
from .course import Array, Course, course, line, moving_mean, onset, thinned

Verdict = Literal["collapse", "explosion", "drift", "held", "cannot tell"]

LOST, GAINED = 0.5, 1.5  # of the first entropy
HARMFUL, SCORE_LOST = 1.2, 0.25  # a smaller rise is an explosion if this share of the score is lost
TREND = 0.15  # relative change of entropy, over the length of the run
NEAR = 0.1  # relative distance from the target
FEWEST = 10  # iterations
FEW, STILL = 20, 0.2  # iterations of a short run; relative change that separates held from drift
PEAK = 1.3  # times both ends: a maximum so high, or a minimum so low, is reported
SURE = 0.6
RESAMPLED, SEED = 200, 0
FLOOR = 0.01  # of the entropy: smallest noise assumed
SHIFT = 0.05  # of the first entropy, added under the logarithm: near zero, ratios are meaningless
SIGMAS = 2.0
DROP = 0.05  # of a score's range: smallest fall that counts; it must also exceed
NOISE = 3.0  # standard errors
DIED = 0.5  # of the best score above its floor: a lost score lost at least this
HURT = 0.25  # of the best score above its floor: a smaller loss is not reported
ROSE = 0.05  # of the score's range: a smaller change counts as no change


@dataclass(frozen=True)
class Movement:
    """Onset of an entropy movement: iteration and 90% interval."""

    iteration: int
    low: int
    high: int


@dataclass(frozen=True)
class Judged:
    verdict: Verdict
    confidence: float  # share of the resampled curves with this verdict, 0 to 1
    others: tuple[tuple[Verdict, float], ...] = ()  # of the other curves, most frequent first
    falling: bool | None = None  # None if the verdict is held or cannot tell
    onset: Movement | None = None
    first: float = math.nan  # h0, nats
    last: float = math.nan  # h1, nats
    trend: float = math.nan  # see the rules; positive if entropy rises
    iterations: int = 0  # logged iterations with an entropy
    numbers: tuple[int, int] = (0, 0)  # number of the first and last of them, as the trainer counts
    noise: float = math.nan  # standard deviation about the fitted curve, relative to the entropy
    peak: tuple[int, float] | None = None  # iteration, value: far above or below both ends


def judge(
    iterations: Sequence[int],
    entropy: Sequence[float],
    score: Sequence[float] = (),
    target: Sequence[float] = (),
) -> Judged:
    """Judge an entropy curve.

    Args:
        iterations: [n] numbers of the logged iterations, ascending.
        entropy: [n] finite values, nats per token.
        score: [m] mean reward of the iterations; empty if not logged.
        target: [k] target of a controller, nats; empty if not logged.
    """
    x, y = np.asarray(iterations, dtype=float), np.asarray(entropy, dtype=float)
    n = len(y)
    if n < FEWEST:
        return Judged("cannot tell", 1.0, iterations=n)
    places, values = thinned(x, y)
    first = max(_first(y), 1e-12)
    # the logarithm makes noise equal at every level, and a steady decay a straight line
    pieces = course(np.log(np.maximum(values, 0.0) / first + SHIFT), FLOOR)
    hurt = Score(np.asarray(score, dtype=float)).lost if len(score) >= FEWEST else 0.0
    goal = float(np.mean(target[-max(1, len(target) // 3) :])) if len(target) else None
    (verdict, share), *others = _resampled(first, pieces, hurt, goal)
    last, trend = _last(y), _trend(y, 1.0)[0]
    known = {
        "first": _first(y), "last": last, "trend": trend, "iterations": n, "noise": pieces.noise,
        "numbers": (round(x[0]), round(x[-1])), "peak": _peak(x, pieces, first, y),
    }  # fmt: skip
    far = abs(last / first - 1) > STILL
    unsure = verdict == ("held" if far else "drift")  # in short runs ends and trend must agree
    if share < SURE or (unsure and goal is None and n < FEW):
        return Judged("cannot tell", share, ((verdict, share), *others), **known)
    if verdict == "held":
        return Judged(verdict, share, tuple(others), **known)
    falling = verdict == "collapse"
    if verdict == "drift":
        falling = (trend if abs(trend) > TREND else last - _first(y)) < 0
    began = _onset(places, pieces, values, falling)
    return Judged(verdict, share, tuple(others), falling, began, **known)


def _rules(y: Array, worth: float, score_lost: float, goal: float | None) -> Verdict:
    first, last = _first(y), _last(y)
    if goal is not None and abs(float(y[-(len(y) // 3) :].mean()) - goal) <= NEAR * abs(goal):
        return "held"
    if last <= LOST * first:
        return "collapse"
    if last >= GAINED * first or (last >= HARMFUL * first and score_lost >= SCORE_LOST):
        return "explosion"
    trend, error = _trend(y, worth)
    moves = abs(trend) > TREND and abs(trend) > SIGMAS * error
    return "drift" if moves or goal is not None else "held"


def _first(y: Array) -> float:
    """First value of the line through the first five: many runs fall from the start."""
    return max(float(line(y[:5])[0]), 0.0)


def _last(y: Array) -> float:
    return float(y[-last_ones(len(y)) :].mean())


def _trend(y: Array, worth: float) -> tuple[float, float]:
    """Trend of the last half and its standard error; `worth` is the sample size per value."""
    half = y[len(y) // 2 :]
    t = np.arange(len(half)) - (len(half) - 1) / 2
    over, level = float(t @ t), max(abs(float(half.mean())), 1e-12)
    slope = float(t @ half) / over
    left = half - half.mean() - slope * t
    error = math.sqrt(float(left @ left) / max(len(half) - 2, 1) / over / worth)
    return slope * len(y) / level, error * len(y) / level


class Score:
    """Summary of a score curve y [n], on its recorded scale."""

    def __init__(self, y: Array) -> None:
        width = max(3, len(y) // 10)
        smooth, top = moving_mean(y, width), float(y.max())
        # the first three count unsmoothed, since a policy may die early
        self.best, self.late = max(float(y[:3].mean()), float(smooth.max())), float(smooth[-1])
        self.floor = floor_of(y)
        # from the floor to 1, or to the highest recorded score
        self.range = (1.0 if self.floor in (0.0, -1.0) and top <= 1 else top) - self.floor
        above, fall = self.best - self.floor, self.best - self.late
        noise = float(np.diff(y).std()) / math.sqrt(width)  # of a difference of means
        least = max(DROP * self.range, NOISE * noise)
        # lost share of the best score above the floor; 0 if within noise
        self.lost = fall / above if above > 0 and fall >= least else 0.0
        self.died = self.lost >= DIED
        tenth = max(1, len(y) // 10)
        self.early, self.end = float(y[:tenth].mean()), float(y[-tenth:].mean())
        # as a share of the range
        self.gained = (self.end - self.early) / self.range if self.range else 0.0

    @property
    def words(self) -> str:
        if self.lost > HURT:
            return f"the score fell from {self.best:.3g} at its best to {self.late:.3g}"
        if abs(self.gained) < ROSE:
            return f"the score stayed near {self.end:.3g}"
        went = "rose" if self.gained > 0 else "fell"
        return f"the score {went} from {self.early:.3g} to {self.end:.3g}"


def floor_of(score: Array) -> float:
    """The lowest value that a score can take: 0, -1, or else the lowest recorded.

    It is also 0 if noise or a small penalty takes a score slightly below 0.
    """
    low, high = float(score.min()), float(score.max())
    return 0.0 if low >= -NEAR * high else -1.0 if low >= -1 and high <= 1 else low


def _peak(x: Array, pieces: Course, first: float, y: Array) -> tuple[int, float] | None:
    """Iteration and value of a maximum far above both ends, or a minimum far below; else None."""
    fitted = first * np.maximum(np.exp(pieces.fitted) - SHIFT, 0.0)
    ends, width = (_first(y), _last(y)), max(1, len(y) // 50)
    means = moving_mean(y, width)
    high, low = int(np.argmax(means)), int(np.argmin(means))
    # both the smoothed value and the fitted curve must show it, not just one iteration
    if min(float(fitted.max()), float(means[high])) >= PEAK * max(ends):
        at = high
    elif max(float(fitted.min()), float(means[low])) * PEAK <= min(ends):
        at = low
    else:
        return None
    return round(x[at + width // 2]), float(means[at])


def _resampled(
    first: float, pieces: Course, hurt: float, goal: float | None
) -> list[tuple[Verdict, float]]:
    """Verdicts with their shares over resampled curves, the most frequent first."""
    rng = np.random.default_rng(SEED)
    fitted, n = pieces.fitted, len(pieces.fitted)
    left = rng.normal(0.0, FLOOR, n) if pieces.noise < FLOOR else pieces.left
    block = max(1, round(1 / pieces.worth))
    begins = rng.integers(0, n - block + 1, (RESAMPLED, -(-n // block)))
    places = (begins[:, :, None] + np.arange(block)).reshape(RESAMPLED, -1)[:, :n]
    courses = first * np.maximum(np.exp(fitted + left[places]) - SHIFT, 0.0)
    counts = Counter(_rules(y, pieces.worth, hurt, goal) for y in courses)
    return [(verdict, count / RESAMPLED) for verdict, count in counts.most_common()]


def _onset(places: Array, pieces: Course, values: Array, falling: bool) -> Movement:
    """Onset of the movement to the final entropy.

    The search starts at the plateau (within a tenth of the movement) around the highest value
    before a fall, or the lowest before a rise.
    """
    z = pieces.fitted if falling else -pieces.fitted
    top = int(np.argmax(z))
    edge = z[top] - 0.1 * (z[top] - z[-1])
    lower = np.flatnonzero(z[: top + 1] < edge)
    begin = 0 if len(lower) == 0 else int(lower[-1]) + 1
    begin = min(begin, len(z) - 3)
    # fit in nats: under the logarithm, a fall to near zero would outweigh its beginning
    part = values[begin:] / max(float(np.max(values)), 1e-12)
    found = onset(part, FLOOR)
    # tau is the last point of the plateau, if any; a point may stand for several iterations
    moved = begin + np.array([found.low, found.at, found.high])
    moved = np.minimum(moved + (moved > 0), len(places) - 1)
    wide = (places[1] - places[0] - 1) / 2
    low, at, high = places[moved] + np.array([-wide, 0.0, wide])
    return Movement(round(at), max(math.floor(low), 0), math.ceil(high))
