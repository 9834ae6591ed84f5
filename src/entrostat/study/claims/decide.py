"""Decide claims: paired seeds, t-test and bootstrap, family-wise error control (docs/claims.md).

A claim that cannot be computed counts in the family. The same holds for a claim with a run that did
not end well, or that lacks a figure which others have. The remaining seeds are then a selection, so
nothing is decided from them.

A p-value is Student's, with n - 1 degrees of freedom. From `FEW` seeds on it is the larger of that
and the studentized bootstrap's (Efron and Tibshirani 1993, Sec. 12.5, 16.4):

    t* = (mean* - mean) / se*,    p = share of t* >= (mean - least) / se

over resamples of the seeds. Below `FEW` seeds there are too few different resamples for the
corrected level. If all effects are equal there is no standard error: p is then 2^-n, as in the sign
test. Both assume roughly symmetric noise; `p_skewed` does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product
from statistics import fmean, linear_regression

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from ..figures import Figure, spearman
from .file import LEAST, Claim, Claims

FigureOf = Callable[[str, Figure], float | None]  # a group's figure for one seed
VERDICTS = ("holds", "does not hold", "cannot be told")
FEW = 5  # minimum number of seeds for the bootstrap: 5^5 resamples
SHOWN = 0.95  # level of the displayed interval
_RESAMPLES = 20_000
_SHAPES = 100_000
_CLEAR = 0.5  # above this p of the t-test the bootstrap is skipped: no alpha is that large
_ROUNDING = 1e-12  # relative to the larger number: smaller differences count as equal
_CHOICE = "the other seeds are a choice."
_EXACT = 6  # maximum number of seeds for exhaustive resampling


def effect(claim: Claim, figure_of: FigureOf) -> float | None:
    """The claim's statistic for one seed, positive in the direction that the claim expects.

    With f(g) the figure of group g, or its mean over several groups:

        difference   f(a) - f(b)
        ratio        ln f(a) - ln f(b)
        interaction  (f(a) - f(b)) - (f(c) - f(d))
        level        f(a) - than
        margin       f(a) - g(a), g the second figure (`with`)
        trend        change of the least-squares line through f(groups), evenly spaced, from the
                     first to the last
        correlation  Spearman's rho over the groups between `figure` and `with`

    None if a run or a figure is missing, or the statistic is undefined.
    """
    known: dict[tuple[str, Figure], float] = {}
    for name, figure in product(claim.every_group, claim.figures):
        if (value := figure_of(name, figure)) is None:
            return None
        known[name, figure] = value

    def of(key: str, figure: Figure) -> list[float]:
        return [known[name, figure] for name in claim.groups[key]]

    if claim.statistic == "trend":
        values = of("groups", claim.figure)
        found = (len(values) - 1) * linear_regression(range(len(values)), values).slope
    elif claim.statistic == "correlation":
        first, other = (of("groups", figure) for figure in claim.figures)
        found = spearman(list(zip(first, other, strict=True)))
    else:
        f = {key: fmean(of(key, claim.figure)) for key in claim.groups}
        if claim.statistic == "level":
            found = f["a"] - claim.than
        elif claim.statistic == "margin":
            found = f["a"] - fmean(of("a", claim.figures[1]))
        elif claim.statistic == "ratio":
            found = math.log(f["a"] / f["b"]) if f["a"] > 0 and f["b"] > 0 else None
        else:  # an interaction subtracts a second difference
            found = f["a"] - f["b"] - (f["c"] - f["d"] if "c" in f else 0.0)
    return None if found is None or not math.isfinite(found) else claim.sign * found


@dataclass(frozen=True)
class Decided:
    claim: Claim
    effects: Mapping[int, float]  # by seed, in the claim's direction: above `least` supports it
    estimate: float | None  # mean of the effects; None without any
    # low, high: 95% interval of the mean, for this claim alone: the wider of Student's and the
    # bootstrap's. An end is infinite if most seeds have the same number, so that many resamples
    # have no spread.
    low: float | None
    high: float | None
    p_holds: float  # p against "at most `least`", corrected over all claims
    p_not: float  # p against "at least `least`", corrected likewise
    verdict: str
    # whether the verdict is the same under noise as skewed as the exponential distribution
    robust: bool
    why: str  # why it cannot be told, in a sentence; else empty
    waits: bool  # whether its trainings are missing, and nothing else prevents a verdict

    def interval(self, form: Callable[[float], str] = "{:.3g}".format) -> str:
        """Format the 95% interval without infinite ends; "" if there is none."""
        if self.low is None or self.high is None:
            return ""
        ends = [form(end) for end in (self.low, self.high) if math.isfinite(end)]
        if len(ends) == 1:
            return f"{'at least' if math.isfinite(self.low) else 'at most'} {ends[0]}"
        return " to ".join(ends) or "open to both sides"


def decide(
    claims: Claims,
    figure_of: Callable[[str, str, int, Figure], float | None],
    seeds_of: Callable[[str, str], Collection[int]],
    lost_of: Callable[[str, str], Collection[int]] = lambda experiment, group: (),
    hint_of: Callable[[str, str, int, Figure], str] = lambda experiment, group, seed, figure: "",
    planned_of: Callable[[str, str], Collection[int]] = lambda experiment, group: (),
) -> list[Decided]:
    """Decide every claim of a file, as one family; return one `Decided` per claim, in order.

    Args:
        claims: the file.
        figure_of: (experiment, group, seed, figure) -> the run's figure, None if it has none.
        seeds_of: (experiment, group) -> the seeds whose runs are done.
        lost_of: (experiment, group) -> the seeds whose runs did not end well.
        hint_of: as `figure_of` -> an additional sentence about a missing figure, or "".
        planned_of: (experiment, group) -> all planned seeds.
    """
    seen = [
        _look(claim, figure_of, seeds_of, lost_of, hint_of, planned_of) for claim in claims.claims
    ]
    whole = [[] if one.lost else list(one.effects.values()) for one in seen]
    least = [claim.least for claim in claims.claims]
    holds, fails = _both(p_above, whole, least)
    plainly, plainly_not = _both(p_skewed, whole, least)
    found = []
    for i, (claim, one) in enumerate(zip(claims.claims, seen, strict=True)):
        values = list(one.effects.values())
        low, high = interval(values) if len(values) > 1 else (None, None)
        verdict = _verdict(holds[i], fails[i], claims.alpha)
        robust = verdict == _verdict(plainly[i], plainly_not[i], claims.alpha)
        why = one.lost
        if verdict == VERDICTS[2] and not why:
            why = _why(claim, one, low, high)
        estimate = float(np.mean(values)) if values else None
        found.append(
            Decided(
                claim, one.effects, estimate, low, high, holds[i], fails[i], verdict, robust, why,
                one.waits,
            )
        )  # fmt: skip
    return found


def _both(
    p: Callable[[Sequence[float], float], float],
    effects: Sequence[Sequence[float]],
    least: Sequence[float],
) -> tuple[list[float], list[float]]:
    """Corrected p-values of "holds" and of "does not hold", each as its own family."""
    above = list(map(p, effects, least))
    below = [p([-v for v in values], -bound) for values, bound in zip(effects, least, strict=True)]
    return holm(above), holm(below)


def _verdict(holds: float, fails: float, alpha: float) -> str:
    return VERDICTS[0] if holds <= alpha else VERDICTS[1] if fails <= alpha else VERDICTS[2]


def holm(p: Sequence[float]) -> list[float]:
    """Correct p-values for multiple testing by Holm's step-down method (1979), in order.

    Example:
        >>> holm([0.01, 0.04, 0.02])
        [0.03, 0.04, 0.04]
    """
    order = sorted(range(len(p)), key=lambda i: p[i])
    found, most = [1.0] * len(p), 0.0
    for rank, i in enumerate(order):
        most = max(most, min(1.0, (len(p) - rank) * p[i]))
        found[i] = most
    return found


def p_above(effects: Sequence[float], least: float) -> float:
    """One-sided p against "the mean is at most `least`"; 1 below `LEAST` values."""
    return _p_above(tuple(effects), least)


@lru_cache(4096)  # called for both kinds of noise
def _p_above(effects: tuple[float, ...], least: float) -> float:
    n = len(effects)
    if n < LEAST:
        return 1.0
    values = np.asarray(effects, dtype=float)
    mean, error = values.mean(), values.std(ddof=1) / math.sqrt(n)
    if error <= _ROUNDING * max(1.0, abs(mean)):
        beyond = mean - least > _ROUNDING * max(1.0, abs(mean), abs(least))
        return 0.5**n if beyond else 1.0
    score = (mean - least) / error
    p = float(student.sf(score, n - 1))
    if n >= FEW and p < _CLEAR:
        scores = _bootstrap(values)
        p = max(p, float(np.mean(scores >= score)), 1 / (len(scores) + 1))
    return p


def interval(effects: Sequence[float]) -> tuple[float, float]:
    """95% interval of the mean of at least two values."""
    values = np.asarray(effects, dtype=float)
    n = len(values)
    mean, error = values.mean(), values.std(ddof=1) / math.sqrt(n)
    reach = float(student.ppf((1 + SHOWN) / 2, n - 1))
    down, up = reach, reach
    if n >= FEW and error > 0:
        scores = _bootstrap(values)
        tail = (1 - SHOWN) / 2
        down = max(down, float(np.quantile(scores, 1 - tail, method="higher")))
        up = max(up, -float(np.quantile(scores, tail, method="lower")))
    return float(mean - down * error), float(mean + up * error)


def p_skewed(effects: Sequence[float], least: float) -> float:
    """One-sided p as `p_above`, for exponential noise whose long tail is against the claim.

    Effects are mean + s0 (1 - E), E of mean 1. A sample's sum S of E, of gamma(n), is independent
    of its shape r = s / mean, so that with c the t of the seeds

        P(t >= c) = mean over r of P(S <= n / (1 + c r / sqrt(n))).

    The seeds then cluster on the short side, all too high.
    """
    from scipy.special import gammainc

    plain = p_above(effects, least)
    values = np.asarray(effects, dtype=float)
    n = len(values)
    if n < LEAST or plain >= _CLEAR or np.ptp(values) <= _ROUNDING * max(1.0, abs(values.mean())):
        return plain
    score = math.sqrt(n) * (values.mean() - least) / values.std(ddof=1)
    return max(plain, float(np.mean(gammainc(n, n / (1 + score * _shapes(n) / math.sqrt(n))))))


@cache
def _shapes(n: int) -> NDArray[np.float64]:
    """Standard deviation over mean, for exponential samples of size n."""
    drawn = np.random.default_rng(0).exponential(size=(_SHAPES, n))
    return drawn.std(1, ddof=1) / drawn.mean(1)


def _bootstrap(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """t* of resamples: all resamples of few values, else random ones with a fixed seed.

    A resample without spread has t* = +-inf by the sign of its deviation, and 0 at the mean.
    """
    n = len(values)
    if n <= _EXACT:
        drawn = values[np.array(list(product(range(n), repeat=n)))]
    else:
        drawn = values[np.random.default_rng(0).integers(n, size=(_RESAMPLES, n))]
    means, errors = drawn.mean(1), drawn.std(1, ddof=1) / math.sqrt(n)
    shift = means - values.mean()
    tiny = _ROUNDING * max(1.0, float(np.abs(values).max()))
    shift = np.where(np.abs(shift) <= tiny, 0.0, shift)
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.where(errors <= tiny, np.sign(shift) * np.inf, shift / errors)
    return np.where(shift == 0, 0.0, scores)


@dataclass(frozen=True)
class _Seen:
    done: Mapping[str, list[int]]  # by group, its seeds that may decide
    effects: Mapping[int, float]
    lost: str  # why the remaining seeds cannot decide, "" if they can
    waits: bool


def _look(
    claim: Claim,
    figure_of: Callable[[str, str, int, Figure], float | None],
    seeds_of: Callable[[str, str], Collection[int]],
    lost_of: Callable[[str, str], Collection[int]],
    hint_of: Callable[[str, str, int, Figure], str],
    planned_of: Callable[[str, str], Collection[int]],
) -> _Seen:

    def among(of: Callable[[str, str], Collection[int]], group: str) -> list[int]:
        return [s for s in of(claim.experiment, group) if claim.seeds is None or s in claim.seeds]

    def broken() -> Iterator[str]:
        """Yield a sentence for each run that failed or lacks a figure."""
        for group, seeds in done.items():
            for seed in sorted(among(lost_of, group)):
                yield f"{group!r} did not end well with seed {seed}: {_CHOICE}"
            for seed, figure in product(seeds, claim.figures):
                if figure_of(claim.experiment, group, seed, figure) is None:
                    hint = hint_of(claim.experiment, group, seed, figure)
                    said = f"{group!r} does not have the figure ({figure}) with seed {seed}."
                    yield f"{said} {hint}".rstrip()

    def missing() -> Iterator[str]:
        for group, seed in product(done, claim.seeds or ()):
            if seed not in done[group]:
                yield f"{group!r} has not been trained with seed {seed}, which decides, too."
        for group, seeds in done.items():
            planned = set(among(planned_of, group))
            if seeds and planned - set(seeds):
                yield (
                    f"{len(planned & set(seeds))} of the {len(planned)} seeds of {group!r} are "
                    "done; it is decided once all are."
                )
        for seed in sorted(shared - effects.keys()):
            yield f"The statistic is not defined with seed {seed}: {_CHOICE}"

    done = {group: among(seeds_of, group) for group in claim.every_group}
    shared = set.intersection(*map(set, done.values()))
    found = {
        seed: effect(claim, lambda g, f, s=seed: figure_of(claim.experiment, g, s, f))
        for seed in sorted(shared)
    }
    effects = {seed: value for seed, value in found.items() if value is not None}
    wrong = next(broken(), "")
    return _Seen(done, effects, wrong or next(missing(), ""), not shared and not wrong)


def _why(claim: Claim, one: _Seen, low: float | None, high: float | None) -> str:
    """Say why complete runs give no verdict, by the claim's own interval."""
    n = len(one.effects)
    if n < LEAST:
        for group, seeds in one.done.items():
            if len(seeds) < LEAST:
                return f"{group!r} has {len(seeds)} of the {LEAST} seeds that are needed at least."
        return f"{n} seeds are shared by all its groups."
    if len(set(one.effects.values())) == 1:
        return f"All {n} seeds have the same number, which says little of others."
    above = low is not None and low > claim.least
    if above or (high is not None and high < claim.least):
        alone = VERDICTS[0] if above else VERDICTS[1]
        return f"By its own interval it {alone}; among so many claims that is not enough."
    return "The smallest effect that counts is within its interval."
