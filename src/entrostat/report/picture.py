"""The matplotlib figure used for all drawings, and its axis labels."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import Formatter

DPI = 200  # of PNG files; notebooks show half of it


class Picture(Figure):
    """A figure that a notebook shows by itself, without pyplot's list of open figures."""

    def png(self, dpi: int = DPI) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
        return data.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png(DPI // 2)


class Labels(Formatter):
    def __call__(self, x: float, pos: int | None = None) -> str:
        return tick_labels([x])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        return tick_labels([float(value) for value in values])


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Powers of ten from `low` to `high`, at most `most`; if few fit, also 2 and 5 times them."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / most))
    powers = [10.0**i for i in range(first, last + 1, step)]
    if len(powers) >= 3:
        return powers
    fine = [m * 10.0**i for i in range(first - 1, last + 1) for m in (1, 2, 5)]
    fine = [t for t in fine if low * 0.999 <= t <= high * 1.001]
    return fine if len(fine) <= most else powers


def tick_labels(values: Sequence[float]) -> list[str]:
    """Label each tick as shortly as keeps the labels distinct, also for ratios at 1.0000002."""
    for digits in range(6, 13):
        found = [tick(value, digits) for value in values]
        if len(set(found)) == len(set(values)):
            break
    return found


def tick(value: float, digits: int = 6) -> str:
    """Format a short label: 0.25, 15000, 1e-7."""
    text = f"{value:.{digits}g}"
    if "e" in text:
        mantissa, _, exponent = text.partition("e")
        text = f"{mantissa}e{int(exponent)}"
    return text
