"""What the sections' figures have in common: curves, clouds, axes, words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ..figures import BLACK, BLUE, SKY, Curve, Panel, Points
from .reading import series

FEW = 5  # iterations below which a cloud over the run says nothing
CLOUD = 400  # points of one set


def curves_of(lines: Iterable[Any], *parts: tuple[Any, ...]) -> tuple[Curve, ...]:
    """A curve for each (keys, label, color[, dash[, width]]) that a line has a figure of.

    The keys are those of nested tables, one behind the other.
    """
    lines, curves = list(lines), []
    for keys, *looks in parts:
        x, y = series(lines, *([keys] if isinstance(keys, str) else keys))
        if x:
            label, *others = looks
            curves.append(Curve(label, x, y, *others))
    return tuple(curves)


def below(curves: Iterable[Curve]) -> tuple[Curve, ...]:
    """Curves with their signs turned."""
    return tuple(replace(curve, y=[-v for v in curve.y]) for curve in curves)


def thirds(x: Sequence[float], y: Sequence[float]) -> tuple[Points, ...]:
    """The run's thirds in shades of their own."""
    n = len(x)
    cuts = (0, n // 3, 2 * n // 3, n)
    looks = (("first third", SKY), ("second", BLUE), ("last", BLACK))
    clouds = []
    for (start, end), (label, color) in zip(pairwise(cuts), looks, strict=True):
        step = max(1, -(-(end - start) // (CLOUD // 3)))
        if end > start:
            size = 3.2 if n > 60 else 5.0
            clouds.append(Points(label, x[start:end:step], y[start:end:step], color, size))
    return tuple(clouds)


def legible(panel: Panel) -> Panel:
    """A symlog axis where one iteration, the first say, would flatten all others."""
    sizes = sorted(abs(v) for v in panel.values if v)
    if panel.scale != "linear" or panel.bars or panel.points or not sizes:
        return panel
    if sizes[-1] <= 20 * sizes[len(sizes) // 2]:
        return panel
    return replace(panel, scale="symlog", floor=0.01)


def analysed(n: int) -> str:
    """How many analysed iterations, in words."""
    return f"{n} analysed iteration{'s' if n != 1 else ''}"


def range_words(low: float, high: float) -> str:
    return (
        f"{low:.3g}"
        if low == high
        else f"{low:.3g} to {high:.3g}"
        if low < 0
        else f"{low:.3g}-{high:.3g}"
    )
