"""Curves as SVG images inside `data:` addresses, drawn by matplotlib's object interface.

Text in a figure may come from untrusted directory or method names. So it is never parsed as
mathematics, and the figure is an image, which cannot run scripts. The background is transparent;
on a dark page a filter inverts the lightness and keeps the hues (base.html.jinja).
"""

from __future__ import annotations

import base64
import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._text import cut
from ..errors import extra

if TYPE_CHECKING:
    from .picture import Picture

# Okabe and Ito's color-blind safe palette, without their yellow, which is too pale here
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
    "grid.color": "#DCDCDC",
    "grid.linewidth": 0.7,
    "lines.solid_capstyle": "round",
    "text.parse_math": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "entrostat",  # the same run gives the same page, byte for byte
}

# caption text about the vertical axis
AXES = {
    "linear": "",
    "log": "Logarithmic axis.",
    "symlog": "Axis: logarithmic on both sides of 0.",
}


@dataclass(frozen=True)
class Curve:
    """One line: positions `x` (iterations), values `y`, both [n]."""

    label: str  # empty: omitted from the legend
    x: Sequence[float]
    y: Sequence[float]
    color: str = BLUE
    dash: Any = "-"
    width: float = 1.7
    alpha: float = 1.0
    marked: bool = False  # a dot at each point; curves of few points have dots anyway
    name: str = ""  # column name in exported data; defaults to the label


@dataclass(frozen=True)
class Band:
    """A shaded range: positions `x`, lower and upper values, all [n]; `name` as for a curve."""

    label: str
    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    color: str = BLUE
    alpha: float = 0.2
    name: str = ""


@dataclass(frozen=True)
class Points:
    """A cloud: positions `x`, values `y`, both [n]; `name` as for a curve, `shape` a marker."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: str = BLUE
    size: float = 3.2
    alpha: float = 0.7
    name: str = ""
    shape: str = "o"
    tag: str = ""  # a text beside each point, if there are too many sets for a legend


@dataclass(frozen=True)
class Bars:
    """Vertical bars: names and values, both [n]; the sets of one panel share their names."""

    label: str
    names: Sequence[str]
    values: Sequence[float]
    color: str = BLUE


@dataclass(frozen=True)
class Panel:
    title: str
    caption: str  # one line that explains the figure
    unit: str  # label of the vertical axis
    curves: tuple[Curve, ...] = ()
    scale: str = "linear"  # "linear", "log" or "symlog"
    low: float | None = None  # start of a linear axis, unless a value lies below
    high: float | None = None  # end of a linear axis, unless a value lies above
    bands: tuple[Band, ...] = ()  # ranges under the curves
    points: tuple[Points, ...] = ()  # scatter plots over the curves
    bars: tuple[Bars, ...] = ()  # bars, in a panel without anything else
    across: str = "iteration"  # label of the horizontal axis
    # minimum linear range of a symlog axis, as a share of the largest value: a value near 0 must
    # not stretch the axis
    floor: float = 1e-5
    part: str = ""  # heading on the page
    # name in commands and file names; defaults to the title's `slug`, which suits only titles that
    # never change
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", slug(self.title))

    @property
    def empty(self) -> bool:
        return not (self.curves or self.bands or self.points or self.bars)

    @property
    def values(self) -> list[float]:
        parts = [c.y for c in self.curves] + [p.y for p in self.points]
        parts += [b.low for b in self.bands] + [b.high for b in self.bands]
        parts += [b.values for b in self.bars]
        return [v for part in parts for v in part]


@dataclass(frozen=True)
class Image:
    """A drawn figure: heading, caption, alternative text, `data:` address."""

    title: str
    caption: str
    alt: str
    src: str


def alt_text(panel: Panel) -> str:
    kinds = {"Bars": panel.bars, "Curves": panel.curves, "Points": panel.points, "Ranges": True}
    kind = next(word for word, some in kinds.items() if some)
    parts = []
    for bars in panel.bars:
        pairs = zip(bars.names, bars.values, strict=True)
        each = ", ".join(f"{name} {value:.3g}" for name, value in pairs)
        parts.append(f"{bars.label}: {each}" if bars.label else each)
    for curve in panel.curves:
        if curve.alpha < 1 or (not curve.label and len(panel.curves) > 1):
            continue
        name = curve.label or panel.title
        first, last = curve.y[0], curve.y[-1]
        parts.append(
            f"{name} goes from {first:.4g} at {panel.across} {curve.x[0]:g} to {last:.4g} at "
            f"{curve.x[-1]:g}, between {min(curve.y):.4g} and {max(curve.y):.4g}"
        )
    for band in panel.bands:
        if band.label:
            parts.append(f"{band.label} reaches from {min(band.low):.4g} to {max(band.high):.4g}")
    for cloud in panel.points:
        name = cloud.label or cloud.name or panel.title
        parts.append(
            f"{name}: {len(cloud.x)} points, {min(cloud.y):.4g} to "
            f"{max(cloud.y):.4g} over {min(cloud.x):.4g} to {max(cloud.x):.4g}"
        )
    return f"{kind} of {panel.title.lower()} ({panel.unit}) by {panel.across}: {'; '.join(parts)}."


def slug(text: str) -> str:
    """Turn a text into a name that can be typed: score_against_entropy."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "figure"


def draw(panel: Panel) -> Image:
    with styled():
        src = address(picture_of(panel))
    caption = " ".join(filter(None, (panel.caption, AXES[panel.scale])))
    return Image(panel.title, caption, alt_text(panel), src)


def picture_of(panel: Panel, size: tuple[float, float] | None = None) -> Picture:
    """Draw a non-empty panel within `styled`; without `size` (inches) it has the pages' size."""
    from .picture import Picture

    entries = _legend_entries(panel)
    texts = [short(label) for label, _ in entries]
    columns = max(1, min(len(texts), 60 // (6 + max(map(len, texts), default=1))))
    lines = math.ceil(len(texts) / columns)
    tagged = 1.2 * any(cloud.tag for cloud in panel.points)
    size = size or (4.7, 2.75 + 0.2 * max(1, lines) + tagged)
    figure = Picture(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    _plot(axes, panel)
    _set_axes(axes, panel)
    if entries:
        # set afterwards: matplotlib 3.9 omits labels that begin with "_"
        box = figure.legend(
            [handle for _, handle in entries], ["."] * len(entries), ncols=columns,
            loc="outside lower center", frameon=False, handlelength=2.4, columnspacing=1.6,
            borderaxespad=0.2,
        )  # fmt: skip
        for text, words in zip(box.get_texts(), texts, strict=True):
            text.set_text(words)
    return figure


@contextmanager
def styled() -> Iterator[None]:
    """Apply the pages' style, independent of a user's matplotlib settings."""
    with extra("page", "a figure"):
        from matplotlib import style

    with warnings.catch_warnings(), style.context(_STYLE, after_reset=True):
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script that the font lacks
        yield


def address(figure: Any) -> str:
    """Encode a figure as an SVG image in a `data:` address, within `styled`."""
    svg = svg_of(figure, transparent=True)
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii")


def svg_of(figure: Any, transparent: bool = False) -> bytes:
    """Render a figure as SVG with text as paths, within `styled`."""
    svg = io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(svg, format="svg", metadata=nothing, transparent=transparent)
    return _rounded(svg.getvalue())


def _rounded(svg: bytes) -> bytes:
    """Round coordinates to a hundredth of a point: half the size, no visible difference."""
    numbers = re.compile(rb"(\d\.\d\d)\d+")
    return re.sub(rb'(?<= )(?:d|x|y)="[^"]*"', lambda m: numbers.sub(rb"\1", m[0]), svg)


def _plot(axes: Any, panel: Panel) -> None:
    for band in panel.bands:
        axes.fill_between(
            band.x, band.low, band.high, color=band.color, alpha=band.alpha, linewidth=0, zorder=1.5
        )
    for curve in panel.curves:
        few = len(curve.x) < 8 and curve.dash != "--" and panel.across == "iteration"
        axes.plot(
            curve.x, curve.y, color=curve.color, linestyle=curve.dash, alpha=curve.alpha,
            linewidth=curve.width, marker="o" if few or curve.marked else "",
            markersize=2.0 + curve.width,
        )  # fmt: skip
    for cloud in panel.points:
        axes.plot(
            cloud.x, cloud.y, color=cloud.color, linestyle="", marker=cloud.shape,
            alpha=cloud.alpha, markersize=cloud.size, markeredgewidth=0,
        )  # fmt: skip
        for place in zip(cloud.x, cloud.y, strict=True) if cloud.tag else ():
            axes.annotate(
                short(cloud.tag), place, (3, 3), textcoords="offset points", fontsize=6.5, zorder=5
            )
    width = 0.8 / max(1, len(panel.bars))
    for i, bars in enumerate(panel.bars):
        left = (i - (len(panel.bars) - 1) / 2) * width
        places = [place + left for place in range(len(bars.values))]
        axes.bar(places, bars.values, width=width, color=bars.color)


def _legend_entries(panel: Panel) -> list[tuple[str, Any]]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[tuple[str, Any]] = [
        (c.label, Line2D([], [], color=c.color, linestyle=c.dash, linewidth=c.width))
        for c in panel.curves
    ]
    entries += [(b.label, Patch(color=b.color, alpha=b.alpha, linewidth=0)) for b in panel.bands]
    entries += [
        (p.label, Line2D([], [], color=p.color, linestyle="", marker=p.shape, markersize=5))
        for p in panel.points
    ]
    entries += [(b.label, Patch(color=b.color, linewidth=0)) for b in panel.bars]
    return [(label, handle) for label, handle in entries if label]


def short(label: str, most: int = 48) -> str:
    """One line of printable characters, because SVG is XML, which forbids control characters."""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(label.split()))
    return cut(line, most)


def _set_axes(axes: Any, panel: Panel) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    from .picture import Labels, log_ticks

    values = panel.values
    axes.set_xlabel(short(panel.across))
    axes.set_ylabel(short(panel.unit))
    if panel.bars:
        names = [short(name) for name in panel.bars[0].names]
        step = math.ceil(len(names) / 12)
        axes.set_xticks(range(0, len(names), step), names[::step])
        axes.grid(False, axis="x")
        if sum(map(len, names[::step])) > 48:
            axes.tick_params(axis="x", labelrotation=35)
    elif panel.across == "iteration":
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(Labels())
    axes.margins(x=0.02)
    if panel.scale == "linear":
        if min(values) < 0 < max(values):
            axes.axhline(0, color=GREY, linewidth=0.8, zorder=1)
        low, high = axes.get_ylim()
        if panel.low is not None and min(values) >= panel.low:
            low = panel.low
            if max(values) == low:
                high = low + 1
        if panel.high is not None and max(values) <= panel.high and min(values) >= 0:
            high = panel.high * 1.02
        axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(Labels())
        return
    sizes = [abs(v) for v in values if v]
    least, most = max(min(sizes), max(sizes) * 1e-9), max(sizes)
    if panel.scale == "log":
        axes.set_yscale("log", nonpositive="mask")
        ticks = log_ticks(least, most)
    else:
        least = max(least, most * panel.floor)
        axes.set_yscale("symlog", linthresh=least, linscale=0.6)
        above = log_ticks(least, most, 4)
        ticks = [-t for t in reversed(above)] + [0.0] + above
        axes.axhline(0, color=GREY, linewidth=0.8, zorder=1)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(Labels())
