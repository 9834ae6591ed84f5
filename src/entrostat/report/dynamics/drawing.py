"""What the sections have in common: lines, of which any part may be missing; curves; words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ...logs.lines import number
from ..figures import BLACK, BLUE, SKY, Curve, Panel, Points
from ..runs import HUGE

FEW = 5  # iterations below which a cloud over the run says nothing
CLOUD = 400  # points of one set


def at(value: Any, *path: str) -> Any:
    """What lies under keys of nested tables; None where there is no such table or key."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def figure(value: Any) -> float | None:
    """A finite number that an axis can show; None for anything else."""
    found = number(value)
    return found if found is not None and abs(found) < HUGE else None


def series(lines: Iterable[Any], *path: str) -> tuple[list[int], list[float]]:
    """Iterations and values of one figure, where a line has it."""
    pairs = [(line["iteration"], figure(at(line, *path))) for line in lines]
    kept = [(x, y) for x, y in pairs if y is not None]
    return [x for x, _ in kept], [y for _, y in kept]


def rows(line: Any, key: str) -> list[dict[str, Any]]:
    """The tables of a list; none where it is no list."""
    found = line.get(key)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def bins_of(
    lines: list[Any], key: str, names: Sequence[str]
) -> tuple[dict[tuple[float, float], list[dict[str, Any]]], int]:
    """Rows by (from, to), of the last line that has any and of those whose bins fit with its own.

    They do where no two bins overlap: a line may lack a bin, and have one that others lack.
    """
    found: dict[tuple[float, float], list[dict[str, Any]]] = {}
    seen = 0
    for line in reversed(lines):
        table = {
            (low, high): row
            for row in rows(line, key)
            if (low := figure(row.get("from"))) is not None
            and (high := figure(row.get("to"))) is not None
            and any(figure(row.get(name)) is not None for name in names)
        }
        apart = all(a == b or a[1] <= b[0] or b[1] <= a[0] for a in table for b in found)
        if not table or not apart:
            continue
        seen += 1
        for place, row in table.items():
            found.setdefault(place, []).append(row)
    return dict(sorted(found.items())), seen


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
