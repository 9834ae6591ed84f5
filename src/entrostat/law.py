"""The entropy law R = -a exp(H) + b: fit, intervals, early prediction, coefficients against size.

COV (arXiv 2505.22617) 2.4, Eq. 6: over a run without entropy intervention, validation score R and
policy entropy H (nats a token) lie on one curve of two coefficients; a is the rate at which the
policy turns entropy into score (dR/dH = -a exp(H)), and b - a is the score at H = 0, the ceiling.
The law is empirical. `doubts` says in words where a run does not follow it. Two curves that both
merely drift give a high R^2 too, so that R^2 alone is no proof.

n steps are n pairs (H, R) in the order of training, not necessarily of consecutive iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, exp, isnan, sqrt
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# where `doubts` speaks
R2_LOW = 0.7  # the curve leaves more than 30% of the score's variance unexplained
P_LOW = 0.01  # of the tests on what is left in the residuals
ENTROPY_MOVED = 0.1  # nats, largest minus smallest entropy
STEPS_FEW = 20
SIZES_FEW = 4

_ENTROPY_MOST = 20.0  # nats; e^20 words, more than any vocabulary has


@dataclass(frozen=True)
class LawInterval:
    """Bootstrap intervals of the coefficients, (low, high) each.

    Attributes:
        a: of a.
        b: of b.
        ceiling: of b - a.
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


@dataclass(frozen=True, eq=False)
class EntropyLaw:
    """R = -a exp(H) + b, fitted to n steps.

    Attributes:
        a: score a unit of exp(H); above 0 where entropy is traded for score.
        b: score.
        ceiling: b - a, the score at H = 0.
        rmse: root of the mean squared residual over the n steps, in units of the score.
        r2: 1 - squared residuals / squared deviations of the score from its mean; NaN where the
            score never moved.
        entropy: [n] float64, nats a token, what was fitted.
        score: [n] float64, what was fitted.
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
        """Score at an entropy: a number gives a float, [..] nats a token gives [..] float64."""
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
        drawn with replacement until n steps are together, the law is fitted to each such sample,
        and the interval is between the (1 -+ level) / 2 quantiles. Blocks may run over the end
        into the start (circular blocks, Politis & Romano 1992): otherwise the first steps, where
        entropy is highest and which fix a, would be drawn more rarely than others.

        The block has 1.5 n^(1/3) max(1, (sqrt(6) r / (1 - r^2))^(2/3)) steps, r the residuals'
        autocorrelation at one step (Carlstein 1986 without the 1.5, which makes up for r being
        estimated too low), at most n / 4. Simulated with n = 60 and 150, residuals of
        autocorrelation 0 to .7 and entropy that decays fast or slowly, 95% intervals hold the
        truth in 82% to 98% of the runs: nearly always where entropy falls early, at worst where it
        drifts slowly over the whole run and residuals are strongly correlated. The noise of H
        itself is not modelled: it biases a towards 0.

        Args:
            level: in (0, 1).
            samples: bootstrap samples, at least 100.
            block: steps a block, 1 to n; None takes the above.
            seed: of the draws; equal seeds give equal intervals.

        Raises:
            ValueError: an argument out of range.
        """
        n = len(self.entropy)
        if not 0 < level < 1:
            raise ValueError(f"interval: level must be between 0 and 1, got {level!r}; try 0.95")
        if not _whole(samples) or samples < 100:
            raise ValueError(
                f"interval: samples must be a whole number of 100 or more, got {samples!r}"
            )
        if block is None:
            block = _block(self.residuals)
        elif not _whole(block) or not 1 <= block <= n:
            raise ValueError(
                f"interval: block must be a whole number from 1 to the {n} steps, got {block!r}; "
                "leave it out to have it chosen"
            )
        draws = _bootstrap(np.exp(self.entropy), self.score, samples, block, seed)
        tail = (1 - level) / 2
        a, b, top = (np.quantile(v, (tail, 1 - tail)) for v in (*draws, draws[1] - draws[0]))
        return LawInterval(
            (float(a[0]), float(a[1])), (float(b[0]), float(b[1])),
            (float(top[0]), float(top[1])), level, block, samples,
        )  # fmt: skip

    @property
    def doubts(self) -> tuple[str, ...]:
        """Sentences on where the law does not hold, or cannot be told; empty if nothing speaks.

        Fewer than 20 steps; entropy that moved by less than 0.1 nats, or rose; a at most 0, or its
        95% interval holding 0; R^2 below 0.7; a trend in the residuals (Spearman's correlation with
        the step, p < 0.01); residuals of one sign in a row (Wald-Wolfowitz runs test, one-sided,
        p < 0.01); a ceiling that lies further from the data than the data is wide, or above 1
        where all scores are between 0 and 1.
        """
        return (*_data_doubts(self), *_fit_doubts(self), *_ceiling_doubts(self))


@dataclass(frozen=True, eq=False)
class EarlyPrediction:
    """What the law of the first steps says about the later ones, at the entropies they had.

    Attributes:
        law: fitted to the first steps; its ceiling is the forecast of the ceiling.
        share: share of the steps that was asked for.
        steps: steps fitted.
        rest: steps predicted.
        rmse: root of the mean squared error over the steps predicted, in units of the score.
        rmse_stay: the same for saying that the score stays at its mean over the second half of the
            fitted steps; a law is of use where its `rmse` is below this.
        end_error: predicted minus seen, both averaged over the last `end` steps.
        end: how many.
        reached: share of the range of exp(H) over all steps that the fitted steps span.
    """

    law: EntropyLaw
    share: float
    steps: int
    rest: int
    rmse: float
    rmse_stay: float
    end_error: float
    end: int
    reached: float

    @property
    def ceiling(self) -> float:
        """Score at H = 0 by the law of the first steps."""
        return self.law.ceiling

    @property
    def doubts(self) -> tuple[str, ...]:
        """Sentences: no better than no law, far extrapolation, then those of the early law."""
        found = []
        if self.rmse >= self.rmse_stay:
            found.append(
                f"Predicting early is no better than saying that the score stays as it was "
                f"(RMSE {self.rmse:.3g} against {self.rmse_stay:.3g})."
            )
        if self.reached < 0.5:
            found.append(
                f"The first {self.steps} steps span {self.reached:.0%} of the range of exp(H) that "
                "the run went through; the prediction is an extrapolation."
            )
        return (*found, *(f"Of the first {self.steps} steps: {d}" for d in self.law.doubts))


@dataclass(frozen=True)
class LogLinear:
    """coefficient = intercept + slope ln(size), by least squares.

    Attributes:
        slope: change of the coefficient when the size grows e-fold.
        intercept: the coefficient at size 1, so that it depends on the unit of size.
        residuals: coefficient minus fit, in the order given.
        r2: share of the variance explained; NaN where the coefficient never moved.
    """

    slope: float
    intercept: float
    residuals: tuple[float, ...]
    r2: float

    def predict(self, size: float) -> float:
        """The coefficient at a size, in the unit that was fitted."""
        return self.intercept + self.slope * float(np.log(size))


@dataclass(frozen=True)
class SizeLaw:
    """Both coefficients of the law against the logarithm of model size.

    Attributes:
        sizes: what was fitted, in the order given.
        a: the fit of a.
        b: the fit of b.
    """

    sizes: tuple[float, ...]
    a: LogLinear
    b: LogLinear

    def ceiling(self, size: float) -> float:
        """Score at H = 0, b - a, for a size in the unit that was fitted."""
        return self.b.predict(size) - self.a.predict(size)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Sentences: few sizes, coefficients that the line does not explain."""
        different = len(set(self.sizes))
        found = []
        if different == 2:
            found.append(
                "A line through two sizes has nothing left to be tested on; add a third size."
            )
        elif different < SIZES_FEW:
            found.append(f"{different} sizes are few to tell a line in ln(size) from a curve.")
        for name, line in (("a", self.a), ("b", self.b)):
            if line.r2 < R2_LOW:
                found.append(
                    f"{name} does not follow ln(size): R^2 is {line.r2:.2f}, below {R2_LOW}."
                )
        return tuple(found)


def fit(entropy: ArrayLike, score: ArrayLike) -> EntropyLaw:
    """Fit R = -a exp(H) + b by linear least squares in exp(H) (COV 2.4, Eq. 6).

    Args:
        entropy: [n] H, nats a token, in the order of training.
        score: [n] R at the same policies; any unit, usually a share of right answers.

    Returns:
        The law; `interval()` gives what it is uncertain by, `doubts` where it does not hold.

    Raises:
        ValueError: not two lists of equal length with 3 steps or more, a value that is not finite,
            an entropy that cannot be nats a token (below 0 or above 20), an entropy that never
            moves.

    Example:
        >>> from math import log
        >>> law = fit([log(3), log(2), log(1.5), 0.0], [0.1, 0.3, 0.4, 0.5])
        >>> round(law.a, 6), round(law.b, 6), round(law.ceiling, 6)
        (0.2, 0.7, 0.5)
    """
    h, r = _steps("law.fit", entropy, score)
    return _fit("law.fit", h, r)


def predict_early(
    entropy: ArrayLike, score: ArrayLike, share: float = 0.15, end: int = 1
) -> EarlyPrediction:
    """Fit the law to the first steps and compare it with the rest (COV App. B.3, Fig. 10).

    The later scores are predicted from the later entropies, as in the paper; what the first steps
    alone foretell is the ceiling.

    Args:
        entropy: [n] nats a token, in the order of training.
        score: [n] at the same policies.
        share: share of the n steps to fit, in (0, 1), rounded to whole steps; the paper's 36 of
            236 steps are 0.15.
        end: last steps to average in the error at the end; the paper's final step is 1. A score
            that is the mean reward of one batch is too noisy for 1.

    Raises:
        ValueError: as `fit`; share leaves fewer than 3 steps to fit or fewer than `end` to predict.
    """
    h, r = _steps("predict_early", entropy, score)
    n = len(h)
    if not 0 < share < 1:
        raise ValueError(
            f"predict_early: share must be between 0 and 1, got {share!r}; the paper's is 0.15"
        )
    steps = int(share * n + 0.5)
    if steps < 3:
        raise ValueError(
            f"predict_early: share={share:g} of {n} steps are {steps}, and a fit needs 3; raise "
            "share or log more steps"
        )
    if not _whole(end) or not 1 <= end <= n - steps:
        raise ValueError(
            f"predict_early: end must be a whole number from 1 to the {n - steps} steps that are "
            f"predicted, got {end!r}"
        )
    law = _fit("predict_early", h[:steps], r[:steps])
    error = law.predict(h[steps:]) - r[steps:]
    stay = r[steps // 2 : steps].mean()
    return EarlyPrediction(
        law, share, steps, n - steps,
        rmse=_rms(error),
        rmse_stay=_rms(stay - r[steps:]),
        end_error=float(error[-end:].mean()),
        end=end,
        reached=float(np.ptp(np.exp(h[:steps])) / np.ptp(np.exp(h))),
    )  # fmt: skip


def coefficients_by_size(sizes: Sequence[float], laws: Sequence[EntropyLaw]) -> SizeLaw:
    """Fit a and b as lines in the natural logarithm of model size (COV App. B.4, Fig. 11).

    Args:
        sizes: parameters without embeddings, one a law; any unit, the same for all (the paper's is
            10^9). Several laws may have one size.
        laws: the laws.

    Raises:
        ValueError: lengths differ, a size is not above 0, or fewer than two different sizes.

    Example:
        >>> law = fit([1.0, 0.5, 0.0], [0.2, 0.4, 0.5])
        >>> coefficients_by_size([0.5, 1.5], [law, law]).a.slope
        0.0
    """
    if len(sizes) != len(laws):
        raise ValueError(
            f"coefficients_by_size: sizes has {len(sizes)} numbers for {len(laws)} laws; give one "
            "size a law"
        )
    for size in sizes:
        if not (np.isfinite(size) and size > 0):
            raise ValueError(
                f"coefficients_by_size: sizes must be finite and above 0, got {size!r}; count the "
                "parameters without embeddings"
            )
    if len(set(sizes)) < 2:
        raise ValueError(
            f"coefficients_by_size: sizes must name two different sizes or more, got "
            f"{list(sizes)!r}; add runs of another size"
        )
    x = np.log(np.asarray(sizes, dtype=np.float64))
    a, b = (
        _log_linear(x, np.array(values)) for values in ([w.a for w in laws], [w.b for w in laws])
    )
    return SizeLaw(tuple(float(size) for size in sizes), a, b)


def _steps(where: str, entropy: ArrayLike, score: ArrayLike) -> tuple[Array, Array]:
    """Both lists, checked and copied."""
    out = []
    for name, values in (("entropy", entropy), ("score", score)):
        array = np.array(values, dtype=np.float64)
        if array.ndim != 1:
            raise ValueError(
                f"{where}: {name} must be one list of numbers, got the shape {array.shape}; give "
                "one number a step"
            )
        if not np.isfinite(array).all():
            place = int(np.flatnonzero(~np.isfinite(array))[0])
            raise ValueError(
                f"{where}: {name}[{place}] is {array[place]}; leave such steps out of both lists"
            )
        out.append(array)
    h, r = out
    if len(h) != len(r):
        raise ValueError(
            f"{where}: entropy has {len(h)} steps and score {len(r)}; give both of the same steps"
        )
    if len(h) < 3:
        raise ValueError(
            f"{where}: entropy has {len(h)} steps; two coefficients need 3 or more to be fitted"
        )
    # exact entropies may round to a little below 0
    for bad, what in ((h < -1e-6, "below 0"), (h > _ENTROPY_MOST, f"above {_ENTROPY_MOST:g}")):
        if bad.any():
            place = int(np.flatnonzero(bad)[0])
            raise ValueError(
                f"{where}: entropy[{place}] is {h[place]:g}, {what}; give nats a token, not a sum "
                "over tokens and not a log-prob"
            )
    for array in (h, r):
        array.flags.writeable = False
    return h, r


def _fit(where: str, h: Array, r: Array) -> EntropyLaw:
    x = np.exp(h)
    dx, dr = x - x.mean(), r - r.mean()
    if not _moves(x):
        raise ValueError(
            f"{where}: entropy is {h[0]:g} at all {len(h)} steps, so that a and b cannot be told "
            "apart; give steps between which entropy moves"
        )
    a = -float(dx @ dr / (dx @ dx))
    b = float(r.mean() + a * x.mean())
    residual = dr + a * dx
    r2 = float(1 - residual @ residual / (dr @ dr)) if _moves(r) else float("nan")
    return EntropyLaw(a, b, b - a, _rms(residual), r2, h, r)


def _log_linear(x: Array, y: Array) -> LogLinear:
    dx, dy = x - x.mean(), y - y.mean()
    slope = float(dx @ dy / (dx @ dx))
    residual = dy - slope * dx
    r2 = float(1 - residual @ residual / (dy @ dy)) if _moves(y) else float("nan")
    return LogLinear(slope, float(y.mean() - slope * x.mean()), tuple(residual.tolist()), r2)


def _block(residuals: Array) -> int:
    """Steps a block, see `EntropyLaw.interval`."""
    n, power = len(residuals), float(residuals @ residuals)
    r = float(residuals[1:] @ residuals[:-1]) / power if power > 0 else 0.0
    r = min(max(r, 0.0), 0.95)
    steps = 1.5 * n ** (1 / 3) * max(1.0, (sqrt(6) * r / (1 - r * r)) ** (2 / 3))
    return max(1, min(ceil(steps), n // 4))


def _bootstrap(x: Array, y: Array, samples: int, block: int, seed: int) -> tuple[Array, Array]:
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


def _data_doubts(law: EntropyLaw) -> list[str]:
    n, moved, found = len(law.entropy), float(np.ptp(law.entropy)), []
    if n < STEPS_FEW:
        found.append(f"{n} steps are few; intervals and tests mean little below {STEPS_FEW}.")
    if moved < ENTROPY_MOVED:
        found.append(
            f"Entropy moved by {moved:.2g} nats only, less than {ENTROPY_MOVED}; the law speaks of "
            "entropy that is spent."
        )
    tenth = max(1, n // 10)
    first, last = law.entropy[:tenth].mean(), law.entropy[-tenth:].mean()
    if last >= first:
        found.append(
            f"Entropy did not fall (first tenth {first:.3g}, last tenth {last:.3g}); the law was "
            "found in runs that lose it."
        )
    return found


def _fit_doubts(law: EntropyLaw) -> list[str]:
    if isnan(law.r2):
        return ["The score never moved; there is nothing to explain."]
    found = []
    low, high = law.interval().a
    if law.a <= 0:
        found.append(
            f"a is {law.a:.3g}, not above 0: the score was not higher where entropy was lower, so "
            "that nothing was traded."
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
        return found  # an exact fit leaves nothing but rounding
    from scipy.stats import spearmanr

    trend = spearmanr(residuals, np.arange(len(residuals)))
    if trend.pvalue < P_LOW:
        found.append(
            f"A trend is left in the residuals: their Spearman correlation with the step is "
            f"{trend.statistic:+.2f} (p = {trend.pvalue:.1g}); the score also moves with time "
            "at one entropy."
        )
    runs = _runs_test(residuals)
    if runs is not None and runs[2] < P_LOW:
        found.append(
            f"The residuals stay on one side for long: {runs[0]} runs of one sign where "
            f"{runs[1]:.0f} are expected of independent ones (p = {runs[2]:.1g}); the curve has "
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


def _runs_test(values: Array) -> tuple[int, float, float] | None:
    """Runs about the median: found, expected, one-sided p of so few; None below 10 values a side.

    Wald & Wolfowitz (1940), normal approximation; values at the median are left out.
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


def _moves(values: Array) -> bool:
    """Whether there is more than rounding between the values."""
    return bool(np.ptp(values) > 1e-12 * np.abs(values).max())


def _rms(values: Array) -> float:
    return sqrt(float(values @ values) / len(values))


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
