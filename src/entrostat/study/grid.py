"""The grid of a study file: lists over any setting, every combination, a word for each value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any


def axes_of(where: str, data: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The grid's settings, dotted, and the values of each; none where the file has no [grid]."""
    found: dict[str, list[Any]] = {}

    def collect(prefix: str, table: Any) -> None:
        if not isinstance(table, Mapping) or not table:
            raise ValueError(f"{where}: {prefix} is a table of lists, got {table!r}")
        for key, value in table.items():
            name = f"{prefix}.{key}"
            if isinstance(value, Mapping):
                collect(name, value)
            elif isinstance(value, list) and value:
                if (setting := name.removeprefix("grid.")) in found:
                    raise ValueError(f"{where}: two lists of [grid] vary {setting}")
                found[setting] = value
            else:
                raise ValueError(f"{where}: {name} is a list of the values to try, got {value!r}")

    if "grid" in data:
        collect("grid", data["grid"])
    for key in found:
        for other in found:
            if other.startswith(f"{key}."):
                raise ValueError(f"{where}: grid.{key} and grid.{other} vary the same setting")
    return found


def points_of(axes: Mapping[str, list[Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A label and the settings of each combination; one without either where there is no grid."""
    labels = [_labels(key, values) for key, values in axes.items()]
    for words, values in zip(product(*labels), product(*axes.values()), strict=True):
        settings: dict[str, Any] = {}
        for key, value in zip(axes, values, strict=True):
            *tables, last = key.split(".")
            place = settings
            for table in tables:
                place = place.setdefault(table, {})
            place[last] = value
        yield "-".join(words), settings


def refuse_axes(where: str, table: Mapping[str, Any], axes: Mapping[str, Any], of: str) -> None:
    """Refuse a setting that the grid varies and a run's own table, or [quick] (`of`), sets."""
    for key in axes:
        value: Any = table
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            raise ValueError(f"{where}: {of}{key} is set, and the grid varies it; give one of them")


def _labels(key: str, values: Sequence[Any]) -> list[str]:
    """A word for each value of a setting: lr0.001, grpo; numbered where words would be equal."""
    last = key.rpartition(".")[2]
    words = [re.sub(r"[^A-Za-z0-9._+-]+", "_", _word(last, value)) for value in values]
    found = [word.lstrip("._+-") or last for word in words]
    return found if len(set(found)) == len(found) else [f"{last}{i + 1}" for i in range(len(found))]


def _word(last: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return str(value.get("name", last))
    if isinstance(value, list):
        return "+".join(_word("", member) for member in value)
    return f"{last}{str(value).lower()}"
