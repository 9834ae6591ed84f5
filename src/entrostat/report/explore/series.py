"""Metrics as the numbers that a page carries: thinned alike for all runs, four characters each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from ...logs.run import Run, is_line
from ..curves import POINTS
from ..runs import drawable
from ..tokens.encoding import digits, pack
from .metrics import Metric, Points

SPARSE = 0.5  # share of the places: a metric that has a value at fewer names them
# what a run can be drawn along beside its iterations: the sum of a metric that every line has
AXES = {"updates": "optim/updates", "tokens": "rollout/tokens", "time": "time/iteration"}


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
    found = {}
    for name, key in AXES.items():
        iterations, spent = drawable(run, key)
        if len(iterations) < len(run.metrics) or any(value < 0 for value in spent):
            continue
        sums = dict(zip(iterations, accumulate(spent), strict=True))
        last, ends = 0.0, {}
        for iteration in sorted(sums):
            ends[_block(iteration, size)] = sums[iteration]
        values = []
        for block in grid:
            last = ends.get(block, last)  # an evaluation between two lines costs nothing here
            values.append(digits(last))
        found[name] = values
    return found


def run_data(run: Run, label: str, metrics: Sequence[Metric], place: int, size: int) -> Any:
    """One run of the page's JSON, with the values of each metric."""
    iterations = {line["iteration"] for line in run.metrics}
    for metric in metrics:
        iterations |= metric.values[place].keys()
    grid = grid_of(iterations, size)
    return {
        "label": label,
        "x": list(grid.values()),
        "axes": axes_of(run, grid, size),
        "analysed": sorted({line["iteration"] for line in run.analysis if is_line(line)}),
        "values": [packed(thinned(metric.values[place], grid, size)) for metric in metrics],
    }
