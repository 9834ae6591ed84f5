"""Curves as SVG images inside `data:` addresses, drawn by matplotlib's object interface.

Text in a figure may come from anyone's directory or method names, so it is never read as
mathematics, and the figure sits in an image, where nothing in it could run.
"""

from __future__ import annotations

import base64
import io
import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Okabe and Ito's colours, which colour-blind readers can tell apart; their yellow is too pale here
BLUE, RED, GREEN, PURPLE, ORANGE, SKY, BLACK = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222",
)  # fmt: skip
COLORS = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, BLACK)
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
GREY = "#8A8A8A"

_STYLE: dict[str, Any] = {
    "font.size": 9.5,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.labelcolor": "#222222",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "xtick.labelcolor": "#222222",
    "ytick.labelcolor": "#222222",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "lines.solid_capstyle": "round",
    "text.parse_math": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "entrostat",  # the same run gives the same page, byte for byte
}


@dataclass(frozen=True)
class Curve:
    """One line: iterations `x`, values `y`, both [n]; an empty label stays out of the legend."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: str = BLUE
    dash: Any = "-"
    width: float = 1.7
    alpha: float = 1.0


@dataclass(frozen=True)
class Panel:
    """A figure to be drawn.

    Attributes:
        title: its heading.
        caption: one line that says what it means.
        unit: label of the vertical axis.
        curves: at least one.
        scale: "linear", "log" or "symlog".
        low: where a linear axis begins, unless a value lies below.
        high: where it ends, unless a value lies above.
    """

    title: str
    caption: str
    unit: str
    curves: tuple[Curve, ...]
    scale: str = "linear"
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Image:
    """A drawn figure: heading, caption, text for those who do not see it, `data:` address."""

    title: str
    caption: str
    alt: str
    src: str


def describe(panel: Panel) -> str:
    """The figure in words, for its alt text."""
    parts = []
    for curve in panel.curves:
        if curve.alpha < 1 or (not curve.label and len(panel.curves) > 1):
            continue
        name = curve.label or panel.title
        first, last = curve.y[0], curve.y[-1]
        parts.append(
            f"{name} goes from {first:.4g} at iteration {curve.x[0]:g} to {last:.4g} at "
            f"{curve.x[-1]:g}, between {min(curve.y):.4g} and {max(curve.y):.4g}"
        )
    return f"Curves of {panel.title.lower()} ({panel.unit}) by iteration: {'; '.join(parts)}."


def draw(panel: Panel) -> Image:
    """Draw a panel."""
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    named = [curve for curve in panel.curves if curve.label]
    texts = [_short(curve.label) for curve in named]
    columns = max(1, min(len(texts), 60 // (6 + max(map(len, texts), default=1))))
    lines = math.ceil(len(texts) / columns)
    # after_reset: a reader's own matplotlib settings must not change the page
    with warnings.catch_warnings(), style.context(_STYLE, after_reset=True):
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script the font lacks
        figure = Figure(figsize=(4.7, 2.75 + 0.2 * max(1, lines)), layout="constrained")
        axes = figure.add_subplot()
        for curve in panel.curves:
            axes.plot(
                curve.x, curve.y, color=curve.color, linestyle=curve.dash, alpha=curve.alpha,
                linewidth=curve.width, marker="o" if len(curve.x) < 8 and curve.dash != "--" else
                "", markersize=2.0 + curve.width,
            )  # fmt: skip
        _set_axes(axes, panel)
        if named:
            handles = [
                Line2D([], [], color=c.color, linestyle=c.dash, linewidth=c.width) for c in named
            ]
            # set afterwards: matplotlib 3.9 leaves out a label that begins with "_"
            box = figure.legend(
                handles, ["."] * len(handles), loc="outside lower center", ncols=columns,
                frameon=False, handlelength=2.4, columnspacing=1.6, borderaxespad=0.2,
            )  # fmt: skip
            for text, words in zip(box.get_texts(), texts, strict=True):
                text.set_text(words)
        svg = io.BytesIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(svg, format="svg", metadata=nothing)
    src = "data:image/svg+xml;base64," + base64.b64encode(svg.getvalue()).decode("ascii")
    return Image(panel.title, panel.caption, describe(panel), src)


def _short(label: str) -> str:
    """One line of printable characters: SVG is XML, which has no place for control characters."""
    label = "".join(c if c.isprintable() else "?" for c in " ".join(label.split()))
    return label if len(label) <= 48 else label[:47] + "…"


def _set_axes(axes: Any, panel: Panel) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    values = list(itertools.chain.from_iterable(curve.y for curve in panel.curves))
    axes.set_xlabel("iteration")
    axes.set_ylabel(_short(panel.unit))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    axes.margins(x=0.02)
    if panel.scale == "linear":
        low, high = axes.get_ylim()
        if panel.low is not None and min(values) >= panel.low:
            low = panel.low
            if max(values) == low:
                high = low + 1
        if panel.high is not None and max(values) <= panel.high and min(values) >= 0:
            high = panel.high * 1.02
        axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: tick(v)))
        return
    sizes = [abs(v) for v in values if v]
    least, most = max(min(sizes), max(sizes) * 1e-9), max(sizes)
    if panel.scale == "log":
        axes.set_yscale("log", nonpositive="mask")
        ticks = log_ticks(least, most)
    else:
        least = max(least, most * 1e-5)  # a value near 0 on its way through must not stretch it
        axes.set_yscale("symlog", linthresh=least, linscale=0.6)
        above = log_ticks(least, most, 4)
        ticks = [-t for t in reversed(above)] + [0.0] + above
        axes.axhline(0, color=GREY, linewidth=0.8, zorder=1)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: tick(v)))


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Powers of ten from `low` to `high`, at most `most`; with 2 and 5 times them where few fit."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / most))
    powers = [10.0**i for i in range(first, last + 1, step)]
    if len(powers) >= 3:
        return powers
    fine = [m * 10.0**i for i in range(first - 1, last + 1) for m in (1, 2, 5)]
    fine = [t for t in fine if low * 0.999 <= t <= high * 1.001]
    return fine if len(fine) <= most else powers


def tick(value: float) -> str:
    """A short label: 0.25, 15000, 1e-7."""
    text = f"{value:.6g}"
    if "e" in text:
        mantissa, _, exponent = text.partition("e")
        text = f"{mantissa}e{int(exponent)}"
    return text
