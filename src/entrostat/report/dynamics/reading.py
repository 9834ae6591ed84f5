"""Reading a run's lines, of which any part may be missing or be no number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...logs.lines import number
from ..runs import HUGE


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
