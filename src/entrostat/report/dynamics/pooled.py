"""Cumulative entropy and score over several runs (REPO App. E.3: Fig. 12, Tab. 6).

Within one run the sum of the entropies so far rises with the iteration, so it adds no information.
Over runs that differ in their entropy it can. The mutual information of each with the score
measures how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, count, takewhile

from ...logs.run import Run, is_line, sets_of
from ..curves import FEW, figure, series
from ..figures import BLACK, Panel, Points, slug
from ..runs import entropy_key
from ..seeds import Entry

LEAST = 16  # minimum number of checkpoints for a histogram of 4 by 4 bins


@dataclass(frozen=True)
class Checkpoint:
    iteration: int  # the iteration before the evaluation; above 0
    entropy: float  # of that iteration's rollouts, nats per token
    cumulative: float  # sum of the entropies of iterations 1 to this one, nats per token
    score: float  # avg@k


def checkpoints(run: Run, split: str, key: str) -> list[Checkpoint]:
    """A run's evaluations on a split after training began, as far as its entropies are logged."""
    entropies = dict(zip(*series(run.metrics, key), strict=True))
    sums = list(accumulate(entropies[i] for i in takewhile(lambda i: i in entropies, count(1))))
    found = []
    for line in filter(is_line, run.evaluation):
        i, score = line["iteration"], figure(line.get("avg@k"))
        if line.get("split") == split and 0 < i <= len(sums) and score is not None:
            found.append(Checkpoint(i, entropies[i], sums[i - 1], score))
    return found


def pooled_panels(runs: Sequence[Run], entries: Sequence[Entry]) -> list[Panel]:
    """Score against cumulative entropy by split, for runs that log the first kind of entropy."""
    key = next((key for run in runs if (key := entropy_key(run))), None)
    if key is None:
        return []
    splits = dict.fromkeys(name for run in runs for name in sets_of(run))
    return [
        panel
        for split in splits
        if (panel := _panel(split, [checkpoints(run, split, key) for run in runs], entries))
    ]


def _panel(
    split: str, of_run: Sequence[Sequence[Checkpoint]], entries: Sequence[Entry]
) -> Panel | None:
    everything = [point for points in of_run for point in points]
    several = sum(bool(points) for points in of_run)
    if several < 2 or len(everything) < FEW:
        return None
    clouds = [
        Points(entry.label, [p.cumulative for p in points], [p.score for p in points], entry.color)
        for entry in entries
        if (points := [p for i in entry.members for p in of_run[i]])
    ]
    best = [max(points, key=lambda p: p.score) for points in of_run if points]
    peaks = Points(
        "best of each run", [p.cumulative for p in best], [p.score for p in best], BLACK, 4.4, 1.0
    )
    return Panel(
        f"Score against cumulative entropy, {split[:60]}",
        f"All {len(everything)} evaluations after iteration 0 of {several} runs: avg@k against the "
        "sum of the entropies of the iterations up to it (REPO, Fig. 12). " + _words(everything),
        "avg@k",
        points=(*clouds, peaks),
        across="sum of entropies so far, nats per token",
        name=f"score_against_cumulative_entropy_{slug(split[:60])}",
    )


def _words(points: Sequence[Checkpoint]) -> str:
    """Mutual information as in REPO's Tab. 6, also with the iteration's own entropy."""
    from ...evaluation.checkpoint_correlation import bins_for
    from ...evaluation.metrics import mutual_information

    if len(points) < LEAST:
        return f"Fewer than {LEAST} are too few to estimate mutual information from."
    bins, score = bins_for(len(points)), [p.score for p in points]
    shared = [
        f"{mutual_information(x, score, bins=bins, correct_bias=True):.2f} with {name}"
        for name, x in (
            ("cumulative entropy", [p.cumulative for p in points]),
            ("the iteration's entropy", [p.entropy for p in points]),
            ("the iteration's number", [float(p.iteration) for p in points]),
        )
    ]
    return (
        f"Mutual information of the score, nats: {', '.join(shared)} ({bins} by {bins} bins, "
        "corrected for chance; REPO, Tab. 6)."
    )
