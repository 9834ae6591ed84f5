"""Where a run does not follow the law, in words; see `EntropyLaw.doubts`."""

from __future__ import annotations

import sys
from math import exp, isnan, lgamma, log, sqrt
from typing import TYPE_CHECKING

import numpy as np

from ..logs.run import last_ones
from .steps import Array

if TYPE_CHECKING:
    from .fitting import EntropyLaw

# where `doubts` speaks
R2_LOW = 0.7  # the curve leaves more than 30% of the score's variance unexplained
P_LOW = 0.01  # of the tests on what is left in the residuals
ENTROPY_MOVED = 0.1  # nats, largest minus smallest entropy
STEPS_FEW = 20
SIZES_FEW = 4
_P_PRINTED = 1e-6
_EXACT_MOST = 8  # 8! = 40320 orders


def data_doubts(law: EntropyLaw) -> list[str]:
    """Of the steps: too few, or entropy that was not spent."""
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


def fit_doubts(law: EntropyLaw) -> list[str]:
    """Of a, of R^2 and of what is left in the residuals."""
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
        return found  # an exact fit leaves nothing but rounding
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


def ceiling_doubts(law: EntropyLaw) -> list[str]:
    """Of b - a, the score at H = 0."""
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
    """Spearman's correlation of [n] values, not all equal, with their place; two-sided p.

    Up to 8 values p is exact: the share of all n! orders with a correlation at least as far from 0
    (scipy's permutation test; ties keep their mean ranks). Above, the t approximation, which gives
    0 for a perfect order; no order has a p below 2 / n!, so p is at least that.
    """
    from scipy.stats import permutation_test, rankdata, spearmanr

    n = len(values)
    places = np.arange(n) - (n - 1) / 2
    found = spearmanr(values, places)
    if n <= _EXACT_MOST:
        # ranks do not change with the order, so their product with the place tells it all
        p = permutation_test(
            (rankdata(values),), lambda ranks, axis: (ranks * places).sum(axis),
            permutation_type="pairings", vectorized=True, n_resamples=np.inf,
        ).pvalue  # fmt: skip
        return float(found.statistic), float(p)
    least = max(exp(log(2) - lgamma(n + 1)), sys.float_info.min)
    return float(found.statistic), max(float(found.pvalue), least)


def p_words(p: float) -> str:
    """A p value in print; far out the approximations tell no more than that it is small."""
    return f"p = {p:.1g}" if p >= _P_PRINTED else f"p < {_P_PRINTED:g}"


def runs_test(values: Array) -> tuple[int, float, float] | None:
    """Runs about the median: found, expected, one-sided p of so few; None below 10 values per side.

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
