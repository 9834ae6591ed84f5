"""Curves that a reader can choose, smooth, zoom and hide; `js/curves.js` draws them.

The page has all numeric metrics of the runs as JSON, each under one name, thinned to the resolution
of a figure and bounded in bytes; `Explore.notes` lists what was left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ..logs.run import Run, is_line
from .curves import ALIASES, POINTS, figure, series
from .figures import DASHES
from .runs import entropy_key
from .seeds import Entry
from .tokens.encoding import digits, pack, script_json

ENTROPY = "entropy"  # each run's most exact entropy
EVALUATION = "evaluation"  # the group of evaluation metrics
FIRST = ("entropy", "reward", EVALUATION, "control", "thermostat", "flow", "clip", "kl", "loss")

# unit by metric name; the first matching pattern wins
_UNITS = (
    (r"entropy/logged", ""),  # may be a sum; the notes describe it
    (r"entropy($|/exact|/nll|/response_mean)|touched/entropy|control/target", "nats per token"),
    (r"entropy/|flow/|thermostat/|mismatch/logp", "nats"),
    (r"kl/|kl$|mismatch/kl", "nats per token"),
    (r"reward/failed", "answers"),
    (r"reward/|reward", "reward"),
    (r"clip/|touched/share|quadrant/", "fraction of tokens"),
    (r"rollout/length|completions/.*length|response_length", "tokens"),
    (r"rollout/truncated", "share of completions"),
    (r"rollout/zero_advantage_groups", "groups"),
    (r"time/tokens_per_second", "tokens per second"),
    (r"time/", "seconds"),
)
_EVALUATED = ("avg@k", "pass@k", "distinct", "entropy", "prompt_entropy")

Points = dict[int, float]  # iteration -> value
SPARSE = 0.5  # a metric with values at a smaller share of the grid is stored with its indices
# alternative horizontal axes of a run: the running sum of a metric that every line has
AXES = {"updates": "optim/updates", "tokens": "rollout/tokens", "time": "time/iteration"}
BYTES = 2_500_000  # of all curves together
LEAST = 300  # minimum points per curve before metrics are left out
KEPT = ("entropy", "reward/mean", "control/target")  # kept even if constant


@dataclass(frozen=True)
class Metric:
    key: str  # our name, or the trainer's if we have none
    group: str  # its heading in a list
    unit: str  # unit of the values; empty if unknown
    values: tuple[Points, ...]  # one per run; empty if the run does not log it
    # index of a run -> the name under which it was logged, if different
    names: dict[int, str]

    @property
    def constant(self) -> float | None:
        """The metric's value if it never changes; else None."""
        found = {value for points in self.values for value in points.values()}
        return found.pop() if len(found) == 1 else None


def metrics_of(runs: Sequence[Run]) -> list[Metric]:
    """All numeric metrics of the runs, by group; `ENTROPY` is each run's most exact entropy."""
    logged = [_logged(run) for run in runs]
    found = [
        _metric(key, key.partition("/")[0] if "/" in key else "other", logged)
        for key in _names(logged)
    ]
    evaluated = [_evaluated(run) for run in runs]
    keys = dict.fromkeys(key for run in evaluated for key in run)
    found += [_metric(key, EVALUATION, evaluated) for key in keys]
    groups = [*FIRST, *dict.fromkeys(metric.group for metric in found)]
    found.sort(key=lambda metric: groups.index(metric.group))
    best = [entropy_key(run) for run in runs]
    if len({*best} - {None}) < 2:
        return found
    entropy = Metric(
        ENTROPY, ENTROPY, unit_of(ENTROPY),
        tuple(run.get(key, {}) if key else {} for run, key in zip(logged, best, strict=True)),
        {i: key for i, key in enumerate(best) if key not in (None, "entropy/exact")},
    )  # fmt: skip
    return [entropy, *found]


def unit_of(key: str) -> str:
    return next((unit for name, unit in _UNITS if re.match(name, key)), "")


def _names(logged: Sequence[Mapping[str, Points]]) -> list[str]:
    ours = {theirs: key for key, names in ALIASES.items() for theirs in names}
    found: dict[str, None] = {}
    for run in logged:
        for key in run:
            other = ours.get(key, key)
            # a run that logs both names keeps both
            found[key if other in run else other] = None
    return list(found)


def _metric(key: str, group: str, logged: Sequence[Mapping[str, Points]]) -> Metric:
    names = [next((n for n in (key, *ALIASES.get(key, ())) if n in run), key) for run in logged]
    return Metric(
        key,
        group,
        unit_of(key),
        tuple(run.get(name, {}) for run, name in zip(logged, names, strict=True)),
        {i: name for i, name in enumerate(names) if name != key},
    )


def _logged(run: Run) -> dict[str, Points]:
    names = (name for name in run.names if name != "iteration")
    found = {name: dict(zip(*series(run.metrics, name), strict=True)) for name in names}
    return {name: points for name, points in found.items() if points}


def _evaluated(run: Run) -> dict[str, Points]:
    """Evaluation metrics by set and name; iteration 0 is before training."""
    found: dict[str, Points] = {}
    for line in filter(is_line, run.evaluation):
        for key in _EVALUATED:
            if (value := figure(line.get(key))) is not None:
                name = f"{line.get('split', '')}/{key}".lstrip("/")
                found.setdefault(name, {})[line["iteration"]] = value
    return found


def block_of(iterations: Iterable[Sequence[int]], most: int = POINTS) -> int:
    """Iterations averaged to one point, on a page whose runs logged these iterations.

    The size is the same for all runs, so that the points of seeds align. It leaves no run more than
    `most` points.
    """
    iterations, size = list(iterations), 1
    while True:
        count = max((len({_block(i, size) for i in some}) for some in iterations), default=0)
        if count <= most:
            return size
        size = math.ceil(size * count / most)


def grid_of(iterations: Iterable[int], size: int) -> dict[int, int]:
    """Map each block of `size` iterations to its mean iteration, in rising order."""
    blocks: dict[int, list[int]] = {}
    for iteration in sorted(iterations):
        blocks.setdefault(_block(iteration, size), []).append(iteration)
    return {block: round(sum(some) / len(some)) for block, some in blocks.items()}


def _block(iteration: int, size: int) -> int:
    # iterations count from 1; iteration 0, before training, is not averaged with others
    return -1 if iteration == 0 else (iteration - 1) // size


def thinned(points: Points, grid: Mapping[int, int], size: int) -> list[float | None]:
    """Mean of the points in each block of the grid; None if a block has none."""
    blocks: dict[int, list[float]] = {}
    for iteration, value in points.items():
        blocks.setdefault(_block(iteration, size), []).append(value)
    return [sum(b) / len(b) if (b := blocks.get(block)) else None for block in grid]


def packed(values: Sequence[float | None]) -> Any:
    """Pack values over a grid for the page; if few are known, with their indices."""
    import numpy as np

    known = [i for i, value in enumerate(values) if value is not None]
    if not known:
        return None
    if len(known) < SPARSE * len(values):
        few = np.array([values[i] for i in known], np.float32)
        return {"at": known, "values": pack(few)}
    return pack(np.array([math.nan if v is None else v for v in values], np.float32))


def axes_of(run: Run, grid: Mapping[int, int], size: int) -> dict[str, list[float | None]]:
    """A run's running sums at each point of the grid, of the metrics that every line logs."""
    found: dict[str, list[float | None]] = {}
    for name, key in AXES.items():
        iterations, spent = series(run.metrics, key)
        if len(iterations) < len(run.metrics) or any(value < 0 for value in spent):
            continue
        sums = dict(zip(iterations, accumulate(spent), strict=True))
        ends = {_block(iteration, size): sums[iteration] for iteration in sorted(sums)}
        last, found[name] = 0.0, []
        for block in grid:
            last = ends.get(block, last)  # an evaluation between two lines adds nothing
            found[name].append(digits(last))
    return found


def run_data(run: Run, label: str, metrics: Sequence[Metric], place: int, size: int) -> Any:
    iterations = {line["iteration"] for line in run.metrics}
    iterations.update(*(metric.values[place] for metric in metrics))
    grid = grid_of(iterations, size)
    return {
        "label": label,
        "x": list(grid.values()),
        "axes": axes_of(run, grid, size),
        "analysed": sorted({line["iteration"] for line in run.analysis if is_line(line)}),
        "values": [packed(thinned(metric.values[place], grid, size)) for metric in metrics],
    }


@dataclass(frozen=True)
class Explore:
    data: str  # JSON that is safe inside a script element; empty without curves
    notes: tuple[str, ...]  # sentences about omissions and averages
    # name and value of the constant metrics, which are left out
    constants: tuple[tuple[str, str], ...]


def explore_of(runs: Sequence[Run], entries: Sequence[Entry], labels: Sequence[str]) -> Explore:
    every = metrics_of(runs)
    constants = [m for m in every if m.constant is not None and not m.key.startswith(KEPT)]
    metrics = [metric for metric in every if metric not in constants]
    named = tuple((m.key, f"{m.constant:.6g}") for m in constants)
    if not metrics:
        return Explore("", (), named)
    curves = sum(bool(points) for metric in metrics for points in metric.values)
    size = block_of(
        ([line["iteration"] for line in run.metrics] for run in runs),
        max(LEAST, min(POINTS, BYTES // (4 * curves))),
    )
    written = [
        run_data(run, label, metrics, place, size)
        for place, (run, label) in enumerate(zip(runs, labels, strict=True))
    ]
    left = _beyond(written, len(metrics))
    notes = (size > 1) * [f"Each point is the mean of {size} iterations."]
    if left:
        notes.append(
            f"To keep this page small, the last {left} of {len(metrics)} metrics are left out."
        )
        metrics = metrics[:-left]
        for run in written:
            del run["values"][-left:]
    data = {
        "entries": [
            {
                "label": e.label, "color": e.color, "members": list(e.members),
                # lengths of the strokes and gaps; empty for a solid line
                "dash": [] if e.dash == DASHES[0] else [2 * part for part in e.dash[1]],
            }
            for e in entries
        ],
        "metrics": [
            {"key": m.key, "group": m.group, "unit": m.unit, "names": m.names} for m in metrics
        ],
        "runs": written,
        "shown": _shown([metric.key for metric in metrics]),
    }  # fmt: skip
    return Explore(script_json(data), tuple(notes), named)


def _shown(keys: Sequence[str]) -> list[str]:
    entropies = (ENTROPY, "entropy/exact", "entropy/nll", "entropy/logged")
    best = [key for key in entropies if key in keys][:1]
    return best + ["reward/mean"] * ("reward/mean" in keys) or list(keys[:1])


def _beyond(runs: Sequence[dict[str, Any]], count: int) -> int:
    """Number of trailing metrics that exceed the page's size limit."""
    spent = 0
    for place in range(count):
        spent += sum(len(json.dumps(run["values"][place])) for run in runs)
        if spent > BYTES and place > 0:
            return count - place
    return 0
