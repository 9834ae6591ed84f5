"""Several runs: coefficients against model size, and a shared law against one per run (COV B.4).

COV Fig. 11 plots a and b against the logarithm of model size; in Fig. 8 algorithms share a law.
More coefficients always fit better. So a run is also predicted by the law of the *other* runs: if
runs share one law, that law does about as well as the run's own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from .fitting import R2_LOW, SIZES_FEW, EntropyLaw, fit_steps
from .steps import least_squares, rms


@dataclass(frozen=True)
class LogLinear:
    """coefficient = intercept + slope ln(size), by least squares."""

    slope: float  # change of the coefficient when the size grows e-fold
    intercept: float  # the coefficient at size 1; depends on the unit of size
    residuals: tuple[float, ...]  # coefficient minus fit, in the order given
    r2: float  # share of the variance explained; NaN for a constant coefficient

    def predict(self, size: float) -> float:
        """The coefficient at a size, in the fitted unit."""
        return self.intercept + self.slope * float(np.log(size))


@dataclass(frozen=True)
class SizeLaw:
    """Both coefficients of the law as lines in the logarithm of model size."""

    sizes: tuple[float, ...]
    a: LogLinear
    b: LogLinear

    def ceiling(self, size: float) -> float:
        """Score at H = 0, b - a, for a size in the fitted unit."""
        return self.b.predict(size) - self.a.predict(size)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Sentences: too few sizes, coefficients that the line does not explain."""
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


@dataclass(frozen=True)
class LeftOut:
    """A held-out size: a and b predicted by the lines through the other sizes."""

    size: float
    a: float
    b: float
    rmse: float  # of the predicted a and b at the steps of this size's runs, in units of the score
    rmse_own: float  # with the runs' own laws, in-sample


def sizes_left_out(sizes: Sequence[float], laws: Sequence[EntropyLaw]) -> tuple[LeftOut, ...]:
    """Predict each size's law from the lines in ln(size) through the other sizes.

    One result per size, smallest first; empty if fewer than two other sizes are left for a line.
    Arguments as in `coefficients_by_size`.
    """
    coefficients_by_size(sizes, laws)  # validates the arguments
    different = sorted(set(sizes))
    if len(different) < 3:
        return ()
    found = []
    for size in different:
        rest = [(s, law) for s, law in zip(sizes, laws, strict=True) if s != size]
        mine = [law for s, law in zip(sizes, laws, strict=True) if s == size]
        line = coefficients_by_size([s for s, _ in rest], [law for _, law in rest])
        a, b = line.a.predict(size), line.b.predict(size)
        errors = np.concatenate([law.score + a * np.exp(law.entropy) - b for law in mine])
        own = np.concatenate([law.residuals for law in mine])
        found.append(LeftOut(float(size), a, b, rms(errors), rms(own)))
    return tuple(found)


def coefficients_by_size(sizes: Sequence[float], laws: Sequence[EntropyLaw]) -> SizeLaw:
    """Fit a and b as lines in the natural logarithm of model size (COV App. B.4, Fig. 11).

    Args:
        sizes: parameters without embeddings, one per law; in any common unit (10^9 in the paper).
            Several laws may have one size.
        laws: the laws.

    Example:
        >>> from entrostat.law import coefficients_by_size, fit
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
    lines = []
    for values in ([law.a for law in laws], [law.b for law in laws]):
        intercept, slope, residual, r2 = least_squares(x, np.array(values))
        lines.append(LogLinear(slope, intercept, tuple(residual.tolist()), r2))
    return SizeLaw(tuple(float(size) for size in sizes), *lines)


@dataclass(frozen=True, eq=False)
class Pooled:
    """One law for the steps of all runs, and the errors of the other runs' laws.

    All errors are root mean squares over the steps of all runs that have one, in units of the
    score.
    """

    law: EntropyLaw  # fitted to all steps
    rmse_own: float  # with each run's own law, in-sample
    # of each run by the law of the other runs with its label (the same algorithm, say); NaN if no
    # two runs share a label
    rmse_alike: float
    rmse_others: float  # by the law of the runs with another label; NaN if all share one label
    rmse_one: float  # with `law`, in-sample


def pooled(laws: Sequence[EntropyLaw], alike: Sequence[Hashable] | None = None) -> Pooled:
    """Fit one law to the steps of several runs, and predict each run by others.

    Args:
        laws: one per run, with the steps that it was fitted to.
        alike: a label per run; runs with one label count as alike. None: all labels differ.

    Example:
        >>> from math import log
        >>> from entrostat.law import fit
        >>> h = [0.0, log(2), log(3)]
        >>> low, high = fit(h, [0.5, 0.4, 0.3]), fit(h, [0.6, 0.5, 0.4])
        >>> round(pooled([low, high]).rmse_others, 6)  # each is a tenth away from the other
        0.1
    """
    words = list(range(len(laws))) if alike is None else list(alike)
    if len(laws) < 2:
        raise ValueError(f"pooled: needs two laws or more, got {len(laws)}")
    if len(words) != len(laws):
        raise ValueError(f"pooled: alike has {len(words)} words for {len(laws)} laws")
    places = range(len(laws))
    same = [[j for j in places if j != i and words[j] == words[i]] for i in places]
    other = [[j for j in places if words[j] != words[i]] for i in places]
    whole = _law_of(laws)
    return Pooled(
        whole,
        rmse_own=rms(np.concatenate([law.residuals for law in laws])),
        rmse_alike=_predicted(laws, same),
        rmse_others=_predicted(laws, other),
        rmse_one=rms(whole.residuals),
    )


def _law_of(laws: Sequence[EntropyLaw]) -> EntropyLaw:
    steps = (np.concatenate([getattr(law, key) for law in laws]) for key in ("entropy", "score"))
    return fit_steps("pooled", *steps)


def _predicted(laws: Sequence[EntropyLaw], by: Sequence[Sequence[int]]) -> float:
    errors = [
        law.score - _law_of([laws[j] for j in others]).predict(law.entropy)
        for law, others in zip(laws, by, strict=True)
        if others
    ]
    return rms(np.concatenate(errors)) if errors else float("nan")
