"""Figures of a run: single numbers from its logs, named by small tables (see docs/claims.md).

Figures of two columns leave out the first tenth of the iterations, where AdamW has no second moment
yet. Two more columns are computed here. "law/change" is the entropy predicted by the law of the
previous iterations (COV 2.4), minus the actual entropy. "entropy/first" is the first iteration's
entropy, constant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from .._names import nearest, unknown
from ..config import flat
from ..logs.lines import number
from ..logs.run import Run, held_out, last_ones, moving, paired, sets_of

_PAIRS = ("correlation", "slope", "distance")
KINDS = ("metric", "evaluation", "analysis", "checkpoints", *_PAIRS)
PLACES = {
    "first": "at the first iteration", "early": "early", "last": "at the end", "mean": "on average",
    "sum": "summed", "max": "at most", "min": "at least", "change": "change of",
    "kept": "share kept of",
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    kind: str  # its source: one of `KINDS`
    key: str  # its name in the source
    # position in the run: "first"; "early", the mean of the second tenth; "last", the mean of the
    # last fifteenth (for evaluations the last value); mean, sum, max, min of all; "change", last -
    # first; "kept", last / first; or a share of the run (0.25: the mean of a fifteenth around it)
    at: str | float = "last"
    other: str = ""  # second column of `_PAIRS`
    lag: int = 0  # of `_PAIRS`, how many iterations later the second column is read

    def __str__(self) -> str:
        if self.kind == "checkpoints":
            return f"rank correlation of entropy and {self.key} over checkpoints"
        if self.kind in _PAIRS:
            later = f", {self.lag} later" if self.lag else ""
            return f"{self.kind} of {self.key} and {self.other}{later}"
        if isinstance(self.at, float):
            return f"{self.key} at {self.at:.0%} of the run"
        word = PLACES[self.at]
        return f"{word} {self.key}" if word.endswith(" of") else f"{self.key} {word}"


def refuse_keys(where: str, table: Iterable[str], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"{where}: {unknown('key', key, known)}")


def read_figure(where: str, table: Any) -> Figure:
    """Parse a figure from its table; the message of a ValueError begins with `where`."""
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} is a table, as {{ metric = 'entropy/exact' }}, got {table!r}")
    kinds = [kind for kind in KINDS if kind in table]
    more = ("with", "lag") if kinds and kinds[0] in _PAIRS else ("at",)
    refuse_keys(where, table, (*KINDS, *more))
    if len(kinds) != 1 or not isinstance(table[kinds[0]], str):
        raise ValueError(f"{where} names one of {', '.join(KINDS)}, as text, got {dict(table)!r}")
    if kinds[0] in _PAIRS:
        other, lag = table.get("with"), table.get("lag", 0)
        if not isinstance(other, str):
            raise ValueError(f"{where}: {kinds[0]} is of two columns; name the second one, `with`")
        if type(lag) is not int or lag < 0:
            raise ValueError(f"{where}: lag is a number of iterations, 0 or more, got {lag!r}")
        return Figure(kinds[0], table[kinds[0]], other=other, lag=lag)
    at = table.get("at", "last")
    if isinstance(at, float) and 0 < at < 1:
        return Figure(kinds[0], table[kinds[0]], at)
    if not isinstance(at, str) or at not in PLACES:
        raise ValueError(
            f"{where}: {unknown('place', str(at), PLACES)} A share of the run is between 0 and 1."
        )
    return Figure(kinds[0], table[kinds[0]], at)


def value(run: Run, figure: Figure) -> float | None:
    if figure.kind == "checkpoints":
        # a policy's rollouts belong to the iteration after its evaluation
        entropy = dict(zip(*run.series("entropy/exact"), strict=True))
        scores = zip(*_evaluations(run, figure.key), strict=True)
        pairs = [(entropy[i + 1], score) for i, score in scores if i + 1 in entropy]
        return spearman(pairs) if len(pairs) >= 4 else None
    if figure.kind in _PAIRS:
        return _together(run, figure)
    if figure.kind == "metric":
        return _at(run.series(figure.key)[1], figure.at, ends=True)
    if figure.kind == "evaluation":
        return _at(_evaluations(run, figure.key)[1], figure.at, ends=False)
    values = [number(_nested(row, figure.key)) for row in run.analysis]
    return _at([v for v in values if v is not None], figure.at, ends=False)


def _together(run: Run, figure: Figure) -> float | None:
    """Figure of two columns over iterations; None with fewer than four pairs, or if undefined."""
    pairs = paired(_column(run, figure.key), _column(run, figure.other), figure.lag)
    if figure.kind == "distance":
        return math.sqrt(fmean((a - b) ** 2 for a, b in pairs)) if pairs else None
    if not moving(pairs):
        return None
    from scipy.stats import linregress

    fit = linregress(*zip(*pairs, strict=True))
    return float(fit.rvalue if figure.kind == "correlation" else fit.slope)


def _column(run: Run, key: str) -> dict[int, float]:
    if key == "entropy/first":
        iterations, entropy = run.series("entropy/exact")
        return dict.fromkeys(iterations, entropy[0]) if entropy else {}
    if key != "law/change":
        return dict(zip(*run.series(key), strict=True))
    from ..law import LawError, foretold_changes

    entropy, reward = (_column(run, name) for name in ("entropy/exact", "reward/mean"))
    both = sorted(entropy.keys() & reward.keys())
    try:
        changes = foretold_changes([entropy[i] for i in both], [reward[i] for i in both])
    except LawError:  # the run has two iterations
        return {}
    return {i: change for i, change in zip(both, changes, strict=True) if change is not None}


def _at(values: Sequence[float], at: str | float, ends: bool) -> float | None:
    """One number of a series; with `ends`, its end is the mean of several values."""
    n = len(values)
    if not n:
        return None
    size = last_ones(n) if ends else 1
    if isinstance(at, float):
        begin = min(max(0, round(at * n) - size // 2), n - size)
        return fmean(values[begin : begin + size])
    first, last = values[0], fmean(values[-size:])
    if at == "early":
        tenth = max(1, n // 10)
        return fmean(values[tenth : 2 * tenth] or values)
    if at == "kept":
        return last / first if first else None
    simple = {
        "first": first, "last": last, "mean": fmean(values), "sum": math.fsum(values),
        "max": max(values), "min": min(values), "change": last - first,
    }  # fmt: skip
    return simple[at]


def _evaluations(run: Run, key: str) -> tuple[list[int], list[float]]:
    """Iterations and values of a set's metric; `avg@k` is for the run's own k."""
    wanted, _, name = key.partition("/")
    wanted = held_out([sets_of(run)]) if wanted == "*" else wanted
    rows = [row for row in run.evaluation if row.get("split") == wanted]
    pairs = [(row["iteration"], number(row.get(name))) for row in rows]
    found = [(i, v) for i, v in pairs if v is not None]
    return [i for i, _ in found], [v for _, v in found]


def of_set(figure: Figure, name: str) -> Figure:
    """Replace the set "*" of a figure by the set `name`; other figures stay."""
    wanted, _, key = figure.key.partition("/")
    starred = figure.kind in ("evaluation", "checkpoints") and wanted == "*"
    return replace(figure, key=f"{name}/{key}") if starred else figure


def misspelt(run: Run, figure: Figure) -> str:
    """A sentence if a run's log has no column of a figure's name; else ""."""
    known, figure = _names(run, figure.kind), of_set(figure, held_out([sets_of(run)]))
    for name in (figure.key, figure.other):
        if name and known and name not in known:
            near = nearest(name, known)
            return f"There is no {name!r}" + (f"; did you mean {near!r}?" if near else ".")
    return ""


def _names(run: Run, kind: str) -> set[str]:
    if kind in ("evaluation", "checkpoints"):
        return {f"{row.get('split')}/{key}" for row in run.evaluation for key in row}
    if kind == "analysis":
        return {name for row in run.analysis for name, _ in flat(row, mark="/")}
    made = {"entropy/first", "law/change"} if kind in _PAIRS else set()
    return {*run.names, *made}


def _nested(table: Mapping[str, Any], key: str) -> Any:
    """`dict(flat(table, mark="/")).get(key)`, visiting only tables on the path."""
    for name, value in table.items():
        if name == key:
            return value
        if isinstance(value, Mapping) and key.startswith(f"{name}/"):
            found = _nested(value, key.removeprefix(f"{name}/"))
            if found is not None:
                return found
    return None


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rho; None where either side is constant."""
    from scipy.stats import spearmanr

    if any(len(set(side)) < 2 for side in zip(*pairs, strict=True)):
        return None
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)
