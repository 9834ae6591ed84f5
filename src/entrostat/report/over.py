"""Score against entropy over checkpoints, as one SVG file: a row per set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..evaluation.checkpoint_correlation import ENTROPIES, Checkpoint, OfSet
from .figures import COLORS, short, styled, svg_of

MOST = 12  # sets drawn


def figure_of(sets: Sequence[OfSet]) -> bytes | None:
    """Scatter plots of the sets' scores, coloured by run; None where no set has a score.

    On the left against the entropy (of the rollouts, or of the responses where that is known of
    more checkpoints), on the right against the cumulative entropy (REPO Fig. 12).
    """
    drawn = [one for one in sets if one.score is not None][:MOST]
    if not drawn:
        return None
    from matplotlib.figure import Figure

    runs = list(dict.fromkeys(point.run for one in drawn for point in one.points))
    colors = {run: COLORS[i % len(COLORS)] for i, run in enumerate(runs)}
    with styled():
        figure = Figure(figsize=(9.4, 0.5 + 3.1 * len(drawn)), layout="constrained")
        axes = figure.subplots(len(drawn), 2, squeeze=False)
        for (left, right), one in zip(axes, drawn, strict=True):
            kind = entropy_kind(one)
            _scatter(left, one, colors, lambda p, kind=kind: p.entropies.get(kind))
            left.set(xlabel=f"entropy of {kind}, nats per token", ylabel=short(one.score or ""))
            left.set_title(short(one.name), loc="left", fontsize=10)
            _scatter(right, one, colors, lambda p: p.cumulative)
            right.set(xlabel="sum of the rollouts' entropies so far, nats per token")
        handles = axes[0][0].get_lines()
        if len(runs) > 1:
            figure.legend(
                handles, [short(run) for run in runs][: len(handles)], ncols=3,
                loc="outside lower center", frameon=False,
            )  # fmt: skip
        return svg_of(figure)


def entropy_kind(one: OfSet) -> str:
    """The entropy that a set is drawn over: of the rollouts, unless others are known of more."""
    return max(ENTROPIES, key=lambda kind: sum(kind in point.entropies for point in one.points))


def _scatter(
    axes: Any, one: OfSet, colors: dict[str, str], of: Callable[[Checkpoint], float | None]
) -> None:
    score = one.score or ""
    for run, color in colors.items():
        known = [
            (x, point.figures[score])
            for point in one.points
            if point.run == run and score in point.figures and (x := of(point)) is not None
        ]
        axes.plot(
            [x for x, _ in known], [y for _, y in known], color=color, linestyle="", marker="o",
            markersize=4.5, alpha=0.75, markeredgewidth=0,
        )  # fmt: skip
