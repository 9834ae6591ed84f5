"""Results of studies: metrics of every group over its seeds, and decided claims, as data.

Each run is read once and then released, so a study of a thousand runs needs the memory of one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ..logs.files import atomic
from ..logs.run import held_out, read_run, sets_of
from .claims import VERDICTS, Claims, Decided, decide
from .figures import Figure, misspelt, of_set, value
from .plan import Plan

LEVEL = 0.95
FILE = "results.json"
# default columns of every group; evaluations are of one set of the experiment (`held_out`)
LEADERBOARD: dict[str, Figure] = {
    "entropy, end": Figure("metric", "entropy/exact", "last"),
    "kept": Figure("metric", "entropy/exact", "kept"),
    "cumulative": Figure("metric", "entropy/exact", "sum"),
    "reward, end": Figure("metric", "reward/mean", "last"),
    "avg@k": Figure("evaluation", "*/avg@k", "last"),
    "pass@k": Figure("evaluation", "*/pass@k", "last"),
    "distinct": Figure("evaluation", "*/distinct", "last"),
}
SCORE, KEPT = "avg@k", "kept"


@dataclass(frozen=True)
class Interval:
    """A mean over `n` seeds, and half the width of its 95% interval; 0 for one seed."""

    mean: float
    half: float
    n: int

    def cell(self, digits: int = 3, sign: str = "") -> str:
        reach = f" ± {self.half:.{digits}f}" if self.n > 1 else ""
        return f"{self.mean:{sign}.{digits}f}{reach}"


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95% Student interval of at least one value: mean +- t s / sqrt(n).

    s is the unbiased standard deviation. The interval covers seeds of this job, not other jobs.
    """
    from scipy.stats import t

    n = len(values)
    half = float(t.ppf((1 + LEVEL) / 2, n - 1)) * stdev(values) / n**0.5 if n > 1 else 0.0
    return Interval(fmean(values), half, n)


def spread(values: Sequence[float]) -> Interval | None:
    return interval(values) if values else None


@dataclass(frozen=True)
class Group:
    """Runs of one experiment that differ only by their seed."""

    name: str
    seeds: tuple[int, ...]  # seeds of finished runs
    planned: int  # number of planned seeds
    # one number per seed, in the order of `seeds`, for each figure of `LEADERBOARD` and of the
    # file that every run has
    values: Mapping[str, tuple[float, ...]]

    @cached_property
    def figures(self) -> dict[str, Interval]:
        return {word: interval(values) for word, values in self.values.items()}

    def minus(self, other: Group, word: str) -> Interval | None:
        """Difference of a figure from another group's, per seed; None without common seeds."""
        if word not in self.values or word not in other.values:
            return None
        theirs = dict(zip(other.seeds, other.values[word], strict=True))
        pairs = zip(self.seeds, self.values[word], strict=True)
        return spread([mine - theirs[seed] for seed, mine in pairs if seed in theirs])


@dataclass(frozen=True)
class Experiment:
    name: str  # the file's stem
    title: str
    groups: tuple[Group, ...]  # highest score first, groups without a score last
    failed: tuple[tuple[str, str], ...]  # name and reason of failed runs
    held_out: str = ""  # the set of its scores; "" if nothing was evaluated


@dataclass(frozen=True)
class Results:
    experiments: tuple[Experiment, ...]
    decided: tuple[Decided, ...] = ()
    claims: Claims | None = None

    @property
    def told(self) -> tuple[Decided, ...]:
        """Claims that do not wait for trainings; decided ones first."""
        some = [one for one in self.decided if not one.waits]
        return tuple(sorted(some, key=lambda one: VERDICTS.index(one.verdict)))

    @property
    def waiting(self) -> tuple[Decided, ...]:
        return tuple(one for one in self.decided if one.waits)


def results_of(
    plan: Plan,
    done: Collection[str],
    failed: Mapping[str, str],
    claims: Claims | None = None,
    asked: Mapping[str, Mapping[str, Figure]] | None = None,
) -> Results:
    columns = {name: LEADERBOARD | dict((asked or {}).get(name, {})) for name in plan.titles}
    wanted = {figure for figures in columns.values() for figure in figures.values()}
    wanted |= {each for claim in (claims.claims if claims else ()) for each in claim.figures}
    known, sets = _figures(plan, done, wanted)
    place = {(n.experiment, n.group, n.seed): n.address for n in plan.named if n.address in done}
    scored = {
        name: held_out(sets[each.address] for each in plan.of(name) if each.address in sets)
        for name in plan.titles
    }
    experiments = tuple(
        _experiment(plan, name, known, scored[name], failed, columns[name]) for name in plan.titles
    )
    if claims is None:
        return Results(experiments)

    def figure_of(experiment: str, group: str, seed: int, figure: Figure) -> float | None:
        return known[place[experiment, group, seed]].get(of_set(figure, scored[experiment]))

    def hint_of(experiment: str, group: str, seed: int, figure: Figure) -> str:
        run = read_run(plan.trainings[place[experiment, group, seed]].path)
        return misspelt(run, of_set(figure, scored[experiment]))

    def seeds(among: Collection[str]) -> Callable[[str, str], list[int]]:
        """By experiment and group, the seeds whose trainings are in the given set."""
        return lambda experiment, group: [
            n.seed for n in plan.of(experiment) if n.group == group and n.address in among
        ]

    decided = decide(claims, figure_of, seeds(done), seeds(failed), hint_of, seeds(plan.trainings))
    return Results(experiments, tuple(decided), claims)


def misspelt_figures(
    plan: Plan, done: Collection[str], claims: Claims | None,
    asked: Mapping[str, Mapping[str, Figure]] | None = None,
) -> list[str]:  # fmt: skip
    """A sentence for each misspelt figure, by one finished run of each group."""
    found: dict[str, str] = {}
    first = {(n.experiment, n.group): n for n in reversed(plan.named) if n.address in done}
    for (experiment, group), named in first.items():
        wanted: dict[str, tuple[Figure, ...]] = {
            f"study {experiment!r}, figures.{word}": (figure,)
            for word, figure in (asked or {}).get(experiment, {}).items()
        }
        for claim in claims.claims if claims else ():
            if claim.experiment == experiment and group in claim.every_group:
                wanted[f"claim {claim.id!r}, figure"] = claim.figures
        run = read_run(plan.trainings[named.address].path) if wanted else None
        for whose, figures in wanted.items():
            if run and (why := next(filter(None, (misspelt(run, each) for each in figures)), "")):
                found[whose] = why
    return [f"{whose}: {why}" for whose, why in found.items()]


def write_results(results: Results, path: Path) -> None:
    """Write the results as JSON; the same logs always give the same bytes."""
    data: dict[str, Any] = {
        "experiments": {
            each.name: {
                "title": each.title,
                "groups": {group.name: _plain(group) for group in each.groups},
                "failed": dict(each.failed),
            }
            for each in results.experiments
        },
    }
    if results.claims is not None:
        data["claims"] = {
            "sha256": results.claims.sha256,
            "alpha": results.claims.alpha,
            "decided": [_decided(one) for one in results.decided],
        }
    with atomic(path) as part:
        part.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _figures(
    plan: Plan, done: Collection[str], wanted: Collection[Figure]
) -> tuple[dict[str, dict[Figure, float]], dict[str, tuple[str, ...]]]:
    """By address, the run's figures (for the set *, of each of its sets), and its sets."""
    found: dict[str, dict[Figure, float]] = {}
    sets: dict[str, tuple[str, ...]] = {}
    for address in (a for a in plan.trainings if a in done):
        run = read_run(plan.trainings[address].path)
        sets[address] = sets_of(run)
        each = {of_set(figure, name) for figure in wanted for name in sets[address] or ("",)}
        values = {figure: value(run, figure) for figure in each}
        found[address] = {figure: v for figure, v in values.items() if v is not None}
    return found, sets


def _experiment(
    plan: Plan,
    name: str,
    known: Mapping[str, Mapping[Figure, float]],
    scored: str,
    failed: Mapping[str, str],
    columns: Mapping[str, Figure],
) -> Experiment:
    named = plan.of(name)
    groups = []
    for group in dict.fromkeys(each.group for each in named):
        mine = [each for each in named if each.group == group]
        there = [each for each in mine if each.address in known]
        values = {}
        for word, asked in columns.items():
            figure = of_set(asked, scored)
            found = tuple(known[e.address][figure] for e in there if figure in known[e.address])
            if there and len(found) == len(there):
                values[word] = found
        seeds = tuple(e.seed for e in there)
        groups.append(Group(group, seeds, len(mine), values))
    groups.sort(key=lambda g: -g.figures[SCORE].mean if SCORE in g.figures else math.inf)
    why = tuple((each.name, failed[each.address]) for each in named if each.address in failed)
    return Experiment(name, plan.titles[name], tuple(groups), why, scored)


def _plain(group: Group) -> dict[str, Any]:
    figures = {word: [some.mean, some.half] for word, some in group.figures.items()}
    return {"seeds": group.seeds, "planned": group.planned, "figures": figures}


def _decided(one: Decided) -> dict[str, Any]:
    ends = (one.low, one.high)
    low, high = (None if end is None or math.isinf(end) else end for end in ends)
    return {
        "id": one.claim.id, "verdict": one.verdict, "robust": one.robust,
        "estimate": one.estimate, "low": low, "high": high, "least": one.claim.least,
        "p_holds": one.p_holds, "p_not": one.p_not, "effects": one.effects, "why": one.why,
    }  # fmt: skip
