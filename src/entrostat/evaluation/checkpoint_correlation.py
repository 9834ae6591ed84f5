"""Relation of entropy and score over the checkpoints of runs.

Computes Spearman's rank correlation of entropy with every metric of the evaluations (PAR Tab. 1 and
4), and the mutual information of the score with the cumulative entropy and with the iteration, over
the checkpoints of all runs together (REPO App. E.3, Tab. 6).

A checkpoint is a policy evaluated after some iteration, in training (evaluation.jsonl) or later
(results.json of `entrostat eval`). Its entropies are

    rollouts    of the policy's own training rollouts, which the next iteration samples (as in
                `law.pairs`); the policy after the last iteration has none
    responses   of its responses in the evaluation
    prompts     of the evaluation's prompts themselves (PAR App. C.2)

and its cumulative entropy is the sum of the rollout entropies of the iterations up to it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import extra
from ..law.pairs import ROLLOUTS
from ..law.steps import rank_correlation
from ..logs.lines import number, read_json
from ..logs.run import Run, read_run
from .metrics import mutual_information

ENTROPIES = ("rollouts", "responses", "prompts")
FEW = 10  # points below which a correlation says little
LEAST = 16  # points below which a histogram of 4 by 4 bins says nothing
SHUFFLES = 999
_NEIGHBOURS = 3
_OWN = {"entropy": "responses", "prompt_entropy": "prompts"}
# values of an evaluation that are not scores
_NO_FIGURE = re.compile(r"iteration|prompts|problems|k|failed|n|(base_)?prompt_entropy.*|entropy.*")


@dataclass(frozen=True)
class Checkpoint:
    run: str  # its path; in an `OfSet` a name, equal for checkpoints of one run
    iteration: int  # iterations trained so far
    figures: Mapping[str, float]  # avg@16, pass@16, ... of the evaluation
    # the known ones of `ENTROPIES`, nats per token
    entropies: Mapping[str, float]
    # sum of the rollout entropies up to it, nats per token; None if one is missing
    cumulative: float | None


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation of n points.

    p is two-sided: an exact permutation test up to 8 points, else Student's t.
    """

    rho: float
    p: float
    n: int


@dataclass(frozen=True)
class Shared:
    """Mutual information of n points, nats."""

    histogram: float  # from a histogram, with the first-order bias subtracted (`metrics`)
    bins: int  # bins of each variable
    p: float  # permutation test with 999 random orders of the scores
    # by the three nearest neighbours (Kraskov et al. 2004), as in scikit-learn; at least 0
    neighbours: float
    n: int


@dataclass(frozen=True)
class OfSet:
    name: str
    points: tuple[Checkpoint, ...]  # checkpoints of all runs
    # metric -> kind of entropy -> correlation over all checkpoints
    pooled: Mapping[str, Mapping[str, Correlation]]
    runs: Mapping[str, Mapping[str, Mapping[str, Correlation]]]  # run -> the same within it
    score: str | None  # the metric used in `shared`, avg@k
    # "cumulative" and "iteration" -> mutual information with the score; empty with too few points
    shared: Mapping[str, Shared] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # sentences

    def mean_of_runs(self, figure: str, kind: str) -> float | None:
        """Mean of the correlations within runs, as in PAR App. C.1; None for fewer than two."""
        found = [one[figure][kind].rho for one in self.runs.values() if kind in one.get(figure, {})]
        return sum(found) / len(found) if len(found) > 1 else None


def over(paths: Sequence[str | Path]) -> list[OfSet]:
    """Read runs and results, and relate entropy and score on every evaluation set.

    A path is the directory of a run, of a study (all its runs), or of `entrostat eval` (results of
    one or more models). If a run and its results are both named, both count.
    """
    every: list[tuple[str, Checkpoint]] = []
    for path in map(Path, paths):
        results = sorted(path.rglob("results.json")) if path.is_dir() else []
        runs = sorted(p.parent for p in path.glob("*/metrics.jsonl"))
        runs = [path] if (path / "metrics.jsonl").is_file() else runs
        pairs = [pair for run in runs for pair in checkpoints_of_run(read_run(run))]
        pairs += [pair for one in results for pair in checkpoints_of_results(one)]
        if not pairs:
            raise ValueError(
                f"{str(path)!r} holds no evaluation of a run's checkpoints: name a run's directory "
                "(eval.every says how often it evaluates), or one that `entrostat eval RUN "
                "--checkpoints` wrote"
            )
        every += pairs
    names = _names({Path(point.run) for _, point in every})
    found: dict[str, list[Checkpoint]] = {}
    for name, point in every:
        found.setdefault(name, []).append(replace(point, run=names[Path(point.run)]))
    return [of_set(name, points) for name, points in found.items()]


def _names(runs: Collection[Path]) -> dict[Path, str]:
    """The names of directories, with as much of their paths as tells all of them apart."""
    parts = next(n for n in count(1) if len({run.parts[-n:] for run in runs}) == len(runs))
    return {run: "/".join(run.parts[-parts:]) for run in runs}


def checkpoints_of_run(run: Run) -> list[tuple[str, Checkpoint]]:
    entropy = rollout_entropies(run)
    found = []
    for row in run.evaluation:
        k = number(row.get("k"))
        at_k = "@k" if k is None else f"@{k:g}"
        values = {str(key).replace("@k", at_k): row[key] for key in row}
        found.append((str(row.get("split")), _point(run.path, row["iteration"], values, entropy)))
    return found


def checkpoints_of_results(path: Path) -> list[tuple[str, Checkpoint]]:
    """Checkpoint in a results.json of `entrostat eval`; empty if the model is not from a run.

    The rollout entropies are read from the run, if it still exists.
    """
    data = read_json(path)
    try:
        run, iteration = Path(data["run"]), data["iteration"]
        sets = {
            name: {key: one.get("value") for key, one in entry["metrics"].items()}
            for name, entry in data["sets"].items()
        }
    except (LookupError, TypeError, AttributeError):
        return []
    if type(iteration) is not int:
        return []
    entropy: dict[int, float] = {}
    with suppress(ValueError):
        entropy = rollout_entropies(read_run(run))
    return [(name, _point(run, iteration, values, entropy)) for name, values in sets.items()]


def rollout_entropies(run: Run) -> dict[int, float]:
    """Rollout entropy by iteration: exact, else sampled, else as logged."""
    for key in ROLLOUTS:
        x, y = run.series(key)
        if x:
            return dict(zip(x, y, strict=True))
    return {}


def _point(
    run: Path, iteration: int, values: Mapping[str, Any], rollouts: Mapping[int, float]
) -> Checkpoint:
    known = {key: v for key, value in values.items() if (v := number(value)) is not None}
    entropies = {name: known[key] for key, name in _OWN.items() if key in known}
    if iteration + 1 in rollouts:
        entropies["rollouts"] = rollouts[iteration + 1]
    sums = list(accumulate(rollouts[i] for i in takewhile(lambda i: i in rollouts, count(1))))
    cumulative = sums[iteration - 1] if 0 < iteration <= len(sums) else None
    figures = {key: v for key, v in known.items() if not _NO_FIGURE.fullmatch(key)}
    return Checkpoint(os.path.abspath(run), iteration, figures, entropies, cumulative)


def of_set(name: str, points: Sequence[Checkpoint]) -> OfSet:
    runs = list(dict.fromkeys(point.run for point in points))
    pooled = _correlations(points)
    each = {run: _correlations([p for p in points if p.run == run]) for run in runs}
    score = next((key for point in points for key in point.figures if key.startswith("avg@")), None)
    shared = {}
    trained = [
        (p.cumulative, p.iteration, p.figures[score])
        for p in points
        if score in p.figures and p.cumulative is not None
    ]
    if len(trained) >= LEAST and len({scored for *_, scored in trained}) > 1:
        cumulative, iteration, scores = zip(*trained, strict=True)
        shared = {
            "cumulative": shared_information(cumulative, scores),
            "iteration": shared_information(iteration, scores),
        }
    notes = tuple(_notes(len(points), runs, len(trained), shared, pooled))
    return OfSet(name, tuple(points), pooled, each, score, shared, notes)


def _correlations(points: Sequence[Checkpoint]) -> dict[str, dict[str, Correlation]]:
    table: dict[str, dict[str, Correlation]] = {}
    for figure in dict.fromkeys(key for point in points for key in point.figures):
        for kind in ENTROPIES:
            pairs = [
                (point.entropies[kind], point.figures[figure])
                for point in points
                if kind in point.entropies and figure in point.figures
            ]
            if pairs and (found := spearman(*zip(*pairs, strict=True))) is not None:
                table.setdefault(figure, {})[kind] = found
    return table


def _notes(
    n: int, runs: Sequence[str], trained: int, shared: Mapping[str, Any], pooled: Mapping[str, Any]
) -> Iterable[str]:
    if n < FEW:
        yield f"{n} checkpoints are few: a rank correlation of so many says little."
    if not pooled:
        yield "No figure changes along with an entropy that is known, or there are fewer than 3."
    else:
        yield (
            "p takes checkpoints as independent; those of one run follow each other, so that any "
            "two trends correlate."
        )
    if trained < LEAST:
        yield f"{trained} checkpoints after training began: mutual information takes {LEAST}."
    elif shared and len(runs) == 1:
        yield (
            "Of one run, cumulative entropy rises with the iteration and says the same; REPO pools "
            "runs of several methods."
        )


def spearman(x: ArrayLike, y: ArrayLike) -> Correlation | None:
    """Spearman's rank correlation of x [n] and y [n]; None for n < 3 or a constant.

    Example:
        >>> spearman([1, 2, 3, 4], [2, 4, 8, 16])  # p: 2 of 24 orders
        Correlation(rho=1.0, p=0.08333333333333333, n=4)
    """
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(a) < 3 or not np.ptp(a) or not np.ptp(b):
        return None
    return Correlation(*rank_correlation(a, b), len(a))


def shared_information(x: ArrayLike, score: ArrayLike) -> Shared:
    """Mutual information of x [n] and the score [n], n >= `LEAST`, estimated in two ways.

    REPO uses histograms and states neither bins nor unit; here there is at least one point per cell
    on average (`bins_for`). With few points the two estimates differ, which shows how uncertain
    they are.
    """
    with extra("eval", "mutual information"):
        from sklearn.feature_selection import mutual_info_regression

    a, b = np.asarray(x, np.float64), np.asarray(score, np.float64)
    n, bins = len(a), bins_for(len(a))
    rng = np.random.default_rng(0)
    found = mutual_information(a, b, bins=bins)
    orders: list[NDArray[np.float64]] = [rng.permutation(b) for _ in range(SHUFFLES)]
    as_much = sum(mutual_information(a, order, bins=bins) >= found - 1e-12 for order in orders)
    (near,) = mutual_info_regression(a[:, None], b, n_neighbors=_NEIGHBOURS, random_state=0)
    corrected = mutual_information(a, b, bins=bins, correct_bias=True)
    return Shared(corrected, bins, (as_much + 1) / (SHUFFLES + 1), float(near), n)


def bins_for(points: int) -> int:
    """Bins per variable of a 2-D histogram: 2 to 10, on average a point or more per cell."""
    return max(2, min(10, math.isqrt(points)))
