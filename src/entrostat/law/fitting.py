"""R = -a exp(H) + b by least squares (COV 2.4, Eq. 6): fit, prediction, intervals, doubts."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from math import ceil, exp, isnan, lgamma, log, sqrt
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from ..logs.run import last_ones
from .steps import (
    EXACT,
    Array,
    LawError,
    checked_steps,
    is_whole,
    least_squares,
    moves,
    rank_correlation,
    rms,
)

# thresholds of `doubts`
R2_LOW = 0.7  # the curve leaves more than 30% of the score's variance unexplained
P_LOW = 0.01  # of the tests on the residuals
ENTROPY_MOVED = 0.1  # nats, largest minus smallest entropy
STEPS_FEW = 20
SIZES_FEW = 4
_P_PRINTED = 1e-6


@dataclass(frozen=True)
class LawInterval:
    """Bootstrap intervals of the coefficients and of the ceiling b - a, (low, high) each.

    Attributes:
        level: nominal coverage.
        block: steps per block.
        samples: number of bootstrap samples.
    """

    a: tuple[float, float]
    b: tuple[float, float]
    ceiling: tuple[float, float]
    level: float
    block: int
    samples: int


@dataclass(frozen=True, eq=False)
class EntropyLaw:
    """R = -a exp(H) + b, fitted to n steps.

    Attributes:
        a: score per unit of exp(H); above 0 if entropy is traded for score.
        b: score.
        ceiling: b - a, the score at H = 0.
        rmse: in-sample root mean squared residual over the n fitted steps, in units of the score.
            COV reports the error of a prediction, which is `EarlyPrediction.rmse`.
        r2: 1 - squared residuals / squared deviations of the score from its mean; NaN if the score
            is constant.
        entropy: [n] float64, nats per token, of the fitted steps.
        score: [n] float64, of the fitted steps.
    """

    a: float
    b: float
    ceiling: float
    rmse: float
    r2: float
    entropy: Array = field(repr=False)
    score: Array = field(repr=False)

    @overload
    def predict(self, entropy: float) -> float: ...
    @overload
    def predict(self, entropy: ArrayLike) -> Array: ...
    def predict(self, entropy: Any) -> Any:
        """Score at an entropy in nats per token: a float for a number, [..] float64 for [..]."""
        score = -self.a * np.exp(np.asarray(entropy, dtype=np.float64)) + self.b
        return float(score) if score.ndim == 0 else score

    @property
    def residuals(self) -> Array:
        """[n] float64, score minus prediction."""
        return self.score - self.predict(self.entropy)

    def interval(
        self, level: float = 0.95, samples: int = 2000, block: int | None = None, seed: int = 0
    ) -> LawInterval:
        """Bootstrap intervals of a, b and the ceiling.

        Consecutive steps are correlated, so that drawing single steps would give intervals that
        are too narrow. This is a moving-block bootstrap: blocks of consecutive (H, R) pairs are
        drawn with replacement up to n steps, the law is fitted to each sample, and the interval is
        between the (1 -+ level) / 2 quantiles. Blocks wrap around from the end to the start
        (circular blocks, Politis & Romano 1992): otherwise the first steps, where entropy is
        highest and which determine a, would be drawn less often than others.

        The block has 1.5 n^(1/3) max(1, (sqrt(6) r / (1 - r^2))^(2/3)) steps, r the residuals'
        autocorrelation at one step (Carlstein 1986 without the 1.5, which corrects the downward
        bias of r), at most n / 4. Simulated with n = 60 and 150, residuals of autocorrelation 0 to
        .7 and entropy that decays fast or slowly, 95% intervals cover the truth in 82% to 98% of
        the runs. Coverage is best if entropy falls early, worst if it drifts slowly over the whole
        run and residuals are strongly correlated. The noise of H itself is not modelled: it biases
        a towards 0.

        Args:
            level: in (0, 1).
            samples: bootstrap samples, at least 100.
            block: steps per block, 1 to n; None takes the length above.
            seed: of the draws; equal seeds give equal intervals.

        Raises:
            ValueError: an argument out of range.
        """
        n = len(self.entropy)
        if not 0 < level < 1:
            raise ValueError(f"interval: level must be between 0 and 1, got {level!r}; try 0.95")
        if not is_whole(samples) or samples < 100:
            raise ValueError(
                f"interval: samples must be a whole number of 100 or more, got {samples!r}"
            )
        if block is None:
            block = _block_length(self.residuals)
        elif not is_whole(block) or not 1 <= block <= n:
            raise ValueError(
                f"interval: block must be a whole number from 1 to the {n} steps, got {block!r}; "
                "leave it out to have it chosen"
            )
        draws = bootstrap(np.exp(self.entropy), self.score, samples, block, seed)
        tail = (1 - level) / 2
        a, b, top = (np.quantile(v, (tail, 1 - tail)) for v in (*draws, draws[1] - draws[0]))
        return LawInterval(
            (float(a[0]), float(a[1])), (float(b[0]), float(b[1])),
            (float(top[0]), float(top[1])), level, block, samples,
        )  # fmt: skip

    @property
    def doubts(self) -> tuple[str, ...]:
        """Sentences on where the law does not hold or cannot be judged; empty without doubts.

        Fewer than 20 steps; entropy that moved by less than 0.1 nats, or rose; a at most 0, or its
        95% interval holding 0; R^2 below 0.7; a trend in the residuals (Spearman's correlation with
        the step, p < 0.01, exact up to 8 steps); residuals of one sign in a row (Wald-Wolfowitz
        runs test, one-sided, p < 0.01); a ceiling further from the data than the data's range, or
        above 1 if all scores are between 0 and 1.
        """
        return (*_data_doubts(self), *_fit_doubts(self), *_ceiling_doubts(self))


def fit(entropy: ArrayLike, score: ArrayLike) -> EntropyLaw:
    """Fit R = -a exp(H) + b by linear least squares in exp(H) (COV 2.4, Eq. 6).

    Args:
        entropy: [n] H, nats per token, in the order of training.
        score: [n] R at the same policies; any unit, usually a share of right answers.

    Returns:
        The law; `interval()` gives its uncertainty, `doubts` where it does not hold.

    Raises:
        LawError: a ValueError; not two lists of equal length with 3 steps or more, a value that
            is not finite, an entropy that cannot be nats per token (below 0 or above 20), a
            constant entropy.

    Example:
        >>> from math import log
        >>> law = fit([log(3), log(2), log(1.5), 0.0], [0.1, 0.3, 0.4, 0.5])
        >>> round(law.a, 6), round(law.b, 6), round(law.ceiling, 6)
        (0.2, 0.7, 0.5)
    """
    h, r = checked_steps("law.fit", entropy, score)
    return fit_steps("law.fit", h, r)


def fit_steps(where: str, h: Array, r: Array) -> EntropyLaw:
    """`fit` of checked steps; an error's message begins with `where`."""
    x = np.exp(h)
    if not moves(x):
        why = f"entropy is {h[0]:g} at all {len(h)} steps, so that a and b cannot be told apart"
        raise LawError(where, f"{why}; give steps between which entropy moves", why)
    b, slope, residual, r2 = least_squares(x, r)
    return EntropyLaw(-slope, b, b + slope, rms(residual), r2, h, r)


def _block_length(residuals: Array) -> int:
    """Steps per block, see `EntropyLaw.interval`."""
    n, power = len(residuals), float(residuals @ residuals)
    r = float(residuals[1:] @ residuals[:-1]) / power if power > 0 else 0.0
    r = min(max(r, 0.0), 0.95)
    steps = 1.5 * n ** (1 / 3) * max(1.0, (sqrt(6) * r / (1 - r * r)) ** (2 / 3))
    return max(1, min(ceil(steps), n // 4))


def bootstrap(x: Array, y: Array, samples: int, block: int, seed: int) -> tuple[Array, Array]:
    """Both coefficients, [samples] each, by circular-block bootstrap of (x, y)."""
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
        told = spread > least  # a sample with constant entropy determines no fit
        slope = ((u * v).sum(1) - n * u_mean * v_mean)[told] / spread[told]
        a.append(-slope)
        b.append(y_mean + v_mean[told] - slope * (x_mean + u_mean[told]))
    return np.concatenate(a), np.concatenate(b)


def _data_doubts(law: EntropyLaw) -> list[str]:
    n, moved, found = len(law.entropy), float(np.ptp(law.entropy)), []
    if n < STEPS_FEW:
        found.append(f"{n} steps are few; intervals and tests mean little below {STEPS_FEW}.")
    if moved < ENTROPY_MOVED:
        found.append(
            f"Entropy moved by {moved:.2g} nats only, less than {ENTROPY_MOVED}; the law speaks of "
            "entropy that is spent."
        )
    ends = last_ones(n)
    first, last = law.entropy[:ends].mean(), law.entropy[-ends:].mean()
    if last >= first:
        found.append(
            f"Entropy did not fall (start {first:.3g}, end {last:.3g}); the law was found in runs "
            "that lose it."
        )
    return found


def _fit_doubts(law: EntropyLaw) -> list[str]:
    if isnan(law.r2):
        return ["The score never moved; there is nothing to explain."]
    found = []
    low, high = law.interval().a
    if law.a <= 0:
        found.append(
            f"a is {law.a:.3g}, not above 0 (95% interval {low:.2g} to {high:.2g}): the score was "
            "not higher where entropy was lower, so that nothing was traded."
        )
    elif low <= 0:
        found.append(f"The 95% interval of a, {low:.2g} to {high:.2g}, holds 0.")
    if law.r2 < R2_LOW:
        found.append(
            f"R^2 is {law.r2:.2f}, below {R2_LOW}: much of what moves the score is not entropy, or "
            "is noise."
        )
    residuals = law.residuals
    if law.rmse <= 1e-9 * np.ptp(law.score):
        return found  # after an exact fit the residuals are rounding
    correlation, p = trend(residuals)
    if p < P_LOW:
        found.append(
            f"A trend is left in the residuals: their Spearman correlation with the step is "
            f"{correlation:+.2f} ({p_words(p)}); the score also moves with time at one entropy."
        )
    runs = runs_test(residuals)
    if runs is not None and runs[2] < P_LOW:
        found.append(
            f"The residuals stay on one side for long: {runs[0]} runs of one sign where "
            f"{runs[1]:.0f} are expected of independent ones ({p_words(runs[2])}); the curve has "
            "another shape, or steps share their noise."
        )
    return found


def _ceiling_doubts(law: EntropyLaw) -> list[str]:
    if isnan(law.r2) or law.a <= 0:
        return []
    found = []
    gap, width = exp(law.entropy.min()) - 1, float(np.ptp(np.exp(law.entropy)))
    if gap > width:
        found.append(
            f"The ceiling is far from the data: exp(H) came down to {gap + 1:.2f}, and the way "
            f"from there to 1 is longer than the {width:.2g} it moved."
        )
    if law.ceiling > 1 and law.score.min() >= 0 and law.score.max() <= 1:
        found.append(
            f"The ceiling {law.ceiling:.3g} is above 1: if the score is a share, the curve must "
            "bend before H = 0."
        )
    return found


def trend(values: Array) -> tuple[float, float]:
    """Spearman's correlation of [n] values, not all equal, with their index; two-sided p.

    p is that of `rank_correlation`, but at least 2 / n!, the smallest p of any order: above 8
    values the approximation gives 0 for a perfect order.
    """
    n = len(values)
    correlation, p = rank_correlation(values, np.arange(n, dtype=np.float64))
    if n <= EXACT:
        return correlation, p
    return correlation, max(p, exp(log(2) - lgamma(n + 1)), sys.float_info.min)


def p_words(p: float) -> str:
    """A p value as text, with a lower bound, because very small ones are only approximate."""
    return f"p = {p:.1g}" if p >= _P_PRINTED else f"p < {_P_PRINTED:g}"


def runs_test(values: Array) -> tuple[int, float, float] | None:
    """Runs about the median: observed, expected, p of so few; None below 10 values per side.

    Wald & Wolfowitz (1940), one-sided, normal approximation; values at the median are left out.
    """
    from scipy.stats import norm

    above = values[values != np.median(values)] > np.median(values)
    p, q = int(above.sum()), int((~above).sum())
    if min(p, q) < 10:
        return None
    runs = 1 + int((above[1:] != above[:-1]).sum())
    n = p + q
    expected = 2 * p * q / n + 1
    variance = 2 * p * q * (2 * p * q - n) / (n * n * (n - 1))
    return runs, expected, float(norm.cdf((runs - expected) / sqrt(variance)))
