"""The matplotlib figure that everything here draws on."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import Formatter

DPI = 200  # of PNG files; a notebook shows half of it


class Picture(Figure):
    """A figure that a notebook shows by itself, without pyplot and its list of open figures."""

    def png(self, dpi: int = DPI) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
        return data.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png(DPI // 2)


class Labels(Formatter):
    """Labels of an axis, made of all its places together."""

    def __init__(self, make: Callable[[Sequence[float]], list[str]]) -> None:
        self._make = make

    def __call__(self, x: float, pos: int | None = None) -> str:
        return self._make([x])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        return self._make([float(value) for value in values])
