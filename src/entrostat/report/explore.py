"""Curves that a reader can choose, smooth, zoom and hide: what `js/curves.js` draws.

All numeric metrics of the runs, under one name each, are on the page as JSON, thinned to what a
figure can show and bounded by bytes; `Explore.notes` says what was left out.
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

ENTROPY = "entropy"  # of each run the one that tells it best
EVALUATION = "evaluation"  # the group of what evaluations came to
FIRST = ("entropy", "reward", EVALUATION, "control", "thermostat", "flow", "clip", "kl", "loss")

# the unit of what a name fits, the first that does
_UNITS = (
    (r"entropy/logged", ""),  # of a sum, say: the notes tell what it is
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
SPARSE = 0.5  # share of the places: a metric that has a value at fewer names them
# what a run can be drawn along beside its iterations: the sum of a metric that every line has
AXES = {"updates": "optim/updates", "tokens": "rollout/tokens", "time": "time/iteration"}
BYTES = 2_500_000  # of all curves together
LEAST = 300  # points that a curve keeps before metrics are left out
KEPT = ("entropy", "reward/mean", "control/target")  # though they never change


@dataclass(frozen=True)
class Metric:
    key: str  # our name of it, or the trainer's where we have none
    group: str  # what it stands under in a list
    unit: str  # of its values; empty where it is not known
    values: tuple[Points, ...]  # of each run; empty where the run does not log it
    # place of a run -> the name under which it was logged, where that is another
    names: dict[int, str]

    @property
    def constant(self) -> float | None:
        """The one value that it has everywhere; None where it has several."""
        found = {value for points in self.values for value in points.values()}
        return found.pop() if len(found) == 1 else None


def metrics_of(runs: Sequence[Run]) -> list[Metric]:
    """All that the runs log as numbers, group by group; `ENTROPY` is of each run its best."""
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
            # a run that logs both keeps both
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
    """What evaluations came to, by set and figure; iteration 0 is before training."""
    found: dict[str, Points] = {}
    for line in filter(is_line, run.evaluation):
        for key in _EVALUATED:
            if (value := figure(line.get(key))) is not None:
                name = f"{line.get('split', '')}/{key}".lstrip("/")
                found.setdefault(name, {})[line["iteration"]] = value
    return found


def block_of(iterations: Iterable[Sequence[int]], most: int = POINTS) -> int:
    """How many iterations are averaged to one point, on a page whose runs logged these.

    One size for all, so that the points of seeds lie above each other. It leaves no run more than
    `most` points.
    """
    iterations, size = list(iterations), 1
    while True:
        count = max((len({_block(i, size) for i in some}) for some in iterations), default=0)
        if count <= most:
            return size
        size = math.ceil(size * count / most)


def grid_of(iterations: Iterable[int], size: int) -> dict[int, int]:
    """Block of `size` iterations -> the iteration that stands for it, rising."""
    blocks: dict[int, list[int]] = {}
    for iteration in sorted(iterations):
        blocks.setdefault(_block(iteration, size), []).append(iteration)
    return {block: round(sum(some) / len(some)) for block, some in blocks.items()}


def _block(iteration: int, size: int) -> int:
    # iterations count from 1; 0, before training, is no mean of others
    return -1 if iteration == 0 else (iteration - 1) // size


def thinned(points: Points, grid: Mapping[int, int], size: int) -> list[float | None]:
    """The mean of the points of each block of the grid; None where there are none."""
    blocks: dict[int, list[float]] = {}
    for iteration, value in points.items():
        blocks.setdefault(_block(iteration, size), []).append(value)
    return [sum(b) / len(b) if (b := blocks.get(block)) else None for block in grid]


def packed(values: Sequence[float | None]) -> Any:
    """Values over a grid as a page carries them: packed, where few are known with their places."""
    import numpy as np

    known = [i for i, value in enumerate(values) if value is not None]
    if not known:
        return None
    if len(known) < SPARSE * len(values):
        few = np.array([values[i] for i in known], np.float32)
        return {"at": known, "values": pack(few)}
    return pack(np.array([math.nan if v is None else v for v in values], np.float32))


def axes_of(run: Run, grid: Mapping[int, int], size: int) -> dict[str, list[float | None]]:
    """What a run had spent by each place of the grid, of what every line of its log says."""
    found: dict[str, list[float | None]] = {}
    for name, key in AXES.items():
        iterations, spent = series(run.metrics, key)
        if len(iterations) < len(run.metrics) or any(value < 0 for value in spent):
            continue
        sums = dict(zip(iterations, accumulate(spent), strict=True))
        ends = {_block(iteration, size): sums[iteration] for iteration in sorted(sums)}
        last, found[name] = 0.0, []
        for block in grid:
            last = ends.get(block, last)  # an evaluation between two lines costs nothing here
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
    data: str  # JSON that is safe inside a script element; empty where there is nothing to draw
    notes: tuple[str, ...]  # sentences on what was left out or averaged
    # name and value of the metrics that never change, which are left out
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
                # lengths of the strokes and gaps; none for a whole line
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
    """How many of the last metrics exceed what a page has room for."""
    spent = 0
    for place in range(count):
        spent += sum(len(json.dumps(run["values"][place])) for run in runs)
        if spent > BYTES and place > 0:
            return count - place
    return 0
