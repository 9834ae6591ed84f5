"""Curves that a reader can choose, smooth, zoom and hide: what `js/curves.js` draws.

All numeric metrics of the runs, under one name each, are on the page as JSON, thinned to what a
figure can show and bounded by bytes; `Explore.notes` says what was left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...logs.run import Run
from ..curves import POINTS
from ..figures import DASHES
from ..seeds import Entry
from ..tokens.encoding import script_json
from .metrics import ENTROPY, Metric, metrics_of
from .series import block_of, run_data

BYTES = 2_500_000  # of all curves together
LEAST = 300  # points that a curve keeps before metrics are left out
KEPT = ("entropy", "reward/mean", "control/target")  # though they never change


@dataclass(frozen=True)
class Explore:
    """What the page needs.

    Attributes:
        data: JSON that is safe inside a script element; empty where there is nothing to draw.
        notes: sentences on what was left out or averaged.
        constants: name and value of the metrics that never change, which are left out.
    """

    data: str
    notes: tuple[str, ...]
    constants: tuple[tuple[str, str], ...]


def explore_of(runs: Sequence[Run], entries: Sequence[Entry], labels: Sequence[str]) -> Explore:
    """The curves of some runs, each with its label; an entry is a run, or several seeds."""
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
            {"label": e.label, "color": e.color, "dash": _dash(e), "members": list(e.members)}
            for e in entries
        ],
        "metrics": [_described(metric) for metric in metrics],
        "runs": written,
        "shown": _shown(metrics),
    }
    return Explore(script_json(data), tuple(notes), named)


def _described(metric: Metric) -> dict[str, Any]:
    names = {str(place): name for place, name in metric.names.items()}
    return {"key": metric.key, "group": metric.group, "unit": metric.unit, "names": names}


def _shown(metrics: Sequence[Metric]) -> list[str]:
    keys = [metric.key for metric in metrics]
    entropies = (ENTROPY, "entropy/exact", "entropy/nll", "entropy/logged")
    first = [key for key in entropies if key in keys][:1]
    return [*first, *(key for key in ("reward/mean",) if key in keys)] or keys[:1]


def _beyond(runs: Sequence[dict[str, Any]], count: int) -> int:
    """How many of the last metrics exceed what a page has room for."""
    spent = 0
    for place in range(count):
        spent += sum(len(json.dumps(run["values"][place])) for run in runs)
        if spent > BYTES and place > 0:
            return count - place
    return 0


def _dash(entry: Entry) -> list[float]:
    """Lengths of the strokes and gaps; none for a whole line."""
    return [] if entry.dash == DASHES[0] else [2 * part for part in entry.dash[1]]
