"""Assertions on a run's logged figures, at its end: `[expect] "reward/mean" = "last10 > 0.5"`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_TEXT = re.compile(r"(last|first|mean|min|max|all)(\d*)\s*(<=|>=|<|>)\s*(\S+)")
_FORMS = "'last10 > 0.5': last, lastN, first, firstN, mean, min, max or all; <, <=, > or >="
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


@dataclass(frozen=True)
class Expectation:
    """What a figure's iterations must show.

    Attributes:
        figure: the metric's name.
        text: as written.
    """

    figure: str
    text: str

    def __post_init__(self) -> None:
        self._read()

    def _read(self) -> tuple[str, int, str, float]:
        found = _TEXT.fullmatch(self.text.strip()) if isinstance(self.text, str) else None
        try:
            assert found is not None
            kind, count, sign, bound = found.groups()
            assert not count or (kind in ("last", "first") and int(count) > 0)
            return kind, int(count or 1), sign, float(bound)
        except (AssertionError, ValueError):
            raise ValueError(
                f"expect: {self.figure!r} = {self.text!r} is no assertion; write {_FORMS}"
            ) from None

    def broken(self, values: Sequence[float]) -> str | None:
        """Why the iterations' values do not show it, in a sentence; None where they do."""
        kind, count, sign, bound = self._read()
        if not values:
            return f"expected {self.figure} {self.text}, but no iteration has it"
        part = {"last": values[-count:], "first": values[:count]}.get(kind, values)
        seen = {"min": min(part), "max": max(part)}.get(kind, sum(part) / len(part))
        checked = list(part) if kind == "all" else [seen]
        wrong = [value for value in checked if not _COMPARE[sign](value, bound)]
        return f"expected {self.figure} {self.text}, got {wrong[0]:.6g}" if wrong else None


def expectations(table: Mapping[str, str]) -> list[Expectation]:
    return [Expectation(figure, text) for figure, text in table.items()]
