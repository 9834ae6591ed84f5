"""One number a seed: the effect that a claim is about, of runs that share the seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import mean

from ..figures import Figure, spearman
from .file import Claim

FigureOf = Callable[[str, Figure], float | None]  # of a group, for one seed


def effect(claim: Claim, figure_of: FigureOf) -> float | None:
    """The claim's statistic for one seed, with the sign that the claim expects as plus.

    With f(g) the figure of group g, or its mean over several:

        difference   f(a) - f(b)
        ratio        ln f(a) - ln f(b)
        interaction  (f(a) - f(b)) - (f(c) - f(d))
        level        f(a) - than
        margin       f(a) - g(a), g the second figure (`with`)
        trend        what the least-squares line through f(groups), evenly spaced, changes by from
                     the first to the last
        correlation  Spearman's rho over the groups between `figure` and `with`

    None where a run or a figure is missing, or the statistic is not defined.
    """
    if claim.statistic in ("trend", "correlation"):
        names = claim.groups["groups"]
        values = [figure_of(name, claim.figure) for name in names]
        if claim.statistic == "trend":
            found = _trend([v for v in values if v is not None], len(names))
        else:
            assert claim.other is not None
            others = [figure_of(name, claim.other) for name in names]
            pairs = [(x, y) for x, y in zip(values, others, strict=True)
                     if x is not None and y is not None]  # fmt: skip
            found = spearman(pairs) if len(pairs) == len(names) else None
    else:
        means = {k: _mean(names, claim.figure, figure_of) for k, names in claim.groups.items()}
        if claim.other is not None:
            means["other"] = _mean(claim.groups["a"], claim.other, figure_of)
        known = {key: value for key, value in means.items() if value is not None}
        found = _contrast(claim, known) if len(known) == len(means) else None
    return None if found is None or not math.isfinite(found) else claim.sign * found


def _mean(names: tuple[str, ...], figure: Figure, figure_of: FigureOf) -> float | None:
    values = [figure_of(name, figure) for name in names]
    known = [value for value in values if value is not None]
    return mean(known) if len(known) == len(names) else None


def _contrast(claim: Claim, f: dict[str, float]) -> float | None:
    if claim.statistic == "level":
        return f["a"] - claim.than
    if claim.statistic == "margin":
        return f["a"] - f["other"]
    if claim.statistic == "ratio":
        return math.log(f["a"] / f["b"]) if f["a"] > 0 and f["b"] > 0 else None
    difference = f["a"] - f["b"]
    return difference if claim.statistic == "difference" else difference - (f["c"] - f["d"])


def _trend(values: list[float], n: int) -> float | None:
    if len(values) < n:
        return None
    middle = (n - 1) / 2
    squares = sum((i - middle) ** 2 for i in range(n))
    return (n - 1) * sum((i - middle) * value for i, value in enumerate(values)) / squares
