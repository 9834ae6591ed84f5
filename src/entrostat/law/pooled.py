"""One law for several runs beside a law for each (COV App. B.4, Fig. 8: algorithms share theirs).

More coefficients fit better whatever is true. So a run is predicted by the law of the *others*,
too: where runs share one law, it does about as well as their own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from .fitting import EntropyLaw, fit_steps
from .steps import Array, rms


@dataclass(frozen=True, eq=False)
class Pooled:
    """One law for the steps of all runs, and how well others' laws do.

    All errors are roots of mean squares over the steps of all runs that have one, in units of the
    score.

    Attributes:
        law: fitted to all steps.
        rmse_own: with each run's own law, in-sample.
        rmse_alike: of each run by the law of the other runs that are like it (of the same
            algorithm, say); NaN where no run has another like it.
        rmse_others: of each run by the law of the runs that are not like it; NaN where all are
            alike.
        rmse_one: with `law`, in-sample.
    """

    law: EntropyLaw
    rmse_own: float
    rmse_alike: float
    rmse_others: float
    rmse_one: float


def pooled(laws: Sequence[EntropyLaw], alike: Sequence[Hashable] | None = None) -> Pooled:
    """Fit one law to the steps of several runs, and predict each run by others.

    Args:
        laws: of each run, with the steps that it was fitted to.
        alike: a word a run; runs of one word are alike. None: each is like none.

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
        rmse_own=_root([law.residuals for law in laws]),
        rmse_alike=_predicted(laws, same),
        rmse_others=_predicted(laws, other),
        rmse_one=rms(whole.residuals),
    )


def _law_of(laws: Sequence[EntropyLaw]) -> EntropyLaw:
    steps = (np.concatenate([getattr(law, key) for law in laws]) for key in ("entropy", "score"))
    return fit_steps("pooled", *steps)


def _predicted(laws: Sequence[EntropyLaw], by: Sequence[Sequence[int]]) -> float:
    """Each run's error by the law of others; a run without any is left out."""
    errors = [
        law.score - _law_of([laws[j] for j in others]).predict(law.entropy)
        for law, others in zip(laws, by, strict=True)
        if others
    ]
    return _root(errors) if errors else float("nan")


def _root(parts: Sequence[Array]) -> float:
    return rms(np.concatenate(parts))
