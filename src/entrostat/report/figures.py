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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .runs import Run

# Okabe and Ito's colours, which colour-blind readers can tell apart; their yellow is too pale here
BLUE, RED, GREEN, PURPLE, ORANGE, SKY, BLACK = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222",
)  # fmt: skip
COLORS = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, BLACK)
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
GREY = "#8A8A8A"

POINTS = 1200  # a longer curve is averaged down to so many points

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


def scale_of(values: Iterable[float]) -> str:
    """Which axis suits a coefficient.

    "log" where all values are above 0 and span more than a factor of 20, "symlog" where the sign
    changes, else "linear".
    """
    values = list(values)
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low < 0 < high:
        return "symlog"
    return "log" if low > 0 and high > 20 * low else "linear"


def run_panels(run: Run) -> list[Panel]:
    """The figures of one run, without those that it logged nothing for."""
    groups = _setting(run, "sampling", "prompts")
    nll, target, best = (
        bool(run.series(key)[0])
        for key in ("entropy/nll", "control/target", "reward/best_in_group")
    )
    panels = [
        Panel(
            "Entropy",
            "Exact: mean of the full next-token entropy."
            + nll * " NLL: mean of -log p of the sampled tokens, an estimate of it."
            + target * " Dashed: the controller's target.",
            "nats a token",
            _curves(
                run,
                ("entropy/exact", "exact", {"color": BLUE, "width": 2.2}),
                ("entropy/nll", "NLL", {"color": BLACK, "width": 0.6}),
                ("control/target", "target", {"color": RED, "dash": "--", "width": 1.3}),
            ),
            low=0,
        ),
        Panel(
            "Reward",
            "Mean reward of an iteration's rollouts{smooth}."
            + best * " Best: mean over prompts of the group's highest reward.",
            "reward",
            (
                *_curves(run, ("reward/best_in_group", "best of group", {"color": ORANGE})),
                *_smoothed(run, "reward/mean", "mean", BLUE),
            ),
            low=0, high=1,
        ),
        *(
            Panel(
                f"Coefficient {key.removeprefix('control/')}",
                "What the controller sets, once an iteration, from the entropy it sees.",
                key.removeprefix("control/"),
                _curves(run, (key, "", {"color": PURPLE})),
                scale_of(run.series(key)[1]),
            )
            for key in run.coefficients
        ),
        Panel(
            "Clipped tokens",
            "Tokens whose ratio to the old policy is above the upper bound at a positive "
            "advantage (high), below the lower one at a negative (low).",
            "fraction of tokens",
            _curves(
                run,
                ("clip/low", "low", {"color": BLUE}),
                ("clip/high", "high", {"color": RED}),
            ),
            low=0,
        ),
        Panel(
            "Gradient norm",
            "Norm of the whole gradient before clipping, mean over the iteration's updates.",
            "norm",
            _curves(run, ("grad/norm", "", {"color": BLUE})),
            scale_of(run.series("grad/norm")[1]),
            low=0,
        ),
        Panel(
            "Groups without a signal",
            "Prompts whose rollouts all earned the same: zero advantage, nothing to learn.",
            f"groups (of {groups})" if isinstance(groups, int) else "groups",
            _curves(run, ("rollout/zero_advantage_groups", "", {"color": BLUE})),
            low=0,
        ),
        Panel(
            "Completion length",
            "Tokens of a completion, its end included.",
            "tokens",
            _curves(
                run,
                ("rollout/length_max", "longest", {"color": ORANGE, "width": 0.9}),
                ("rollout/length_mean", "mean", {"color": BLUE}),
            ),
            low=0,
        ),
        Panel(
            "Sampler and trainer",
            "How far the sampler's log-probs are from the trainer's: |difference| a token, and "
            "the KL divergence it amounts to. With the same weights, rounding.",
            "nats",
            (mismatch := _curves(
                run,
                ("mismatch/logp_abs_max", "largest", {"color": ORANGE, "width": 1.0}),
                ("mismatch/logp_abs_mean", "mean", {"color": BLUE}),
                ("mismatch/kl", "KL", {"color": PURPLE, "width": 1.0}),
            )),
            scale_of(y for curve in mismatch for y in curve.y),
            low=0,
        ),
        Panel(
            "Speed",
            "Completion tokens a second of the whole iteration: sampling, scoring, measuring, "
            "updates.",
            "tokens a second",
            _curves(run, ("time/tokens_per_second", "", {"color": BLUE})),
            low=0,
        ),
    ]  # fmt: skip
    return [_say_smoothed(panel, [run]) for panel in panels if panel.curves]


def comparison_panels(runs: Sequence[Run], names: Sequence[str]) -> list[Panel]:
    """Entropy, reward and coefficients of several runs, one curve a run."""
    styles = [run_style(i) for i in range(len(runs))]
    named = list(zip(runs, names, styles, strict=True))
    panels = [
        Panel(
            "Entropy",
            "Exact: mean of the full next-token entropy over an iteration's rollouts."
            + bool(targets := _targets(runs))
            * " Dashed: the controllers' target, in a run's colour where they differ.",
            "nats a token",
            (
                *targets,
                *(c for run, name, (color, dash) in named for c in _curves(
                    run, ("entropy/exact", name, {"color": color, "dash": dash})
                )),
            ),
            low=0,
        ),
        Panel(
            "Reward",
            "Mean reward of an iteration's rollouts{smooth}.",
            "reward",
            tuple(
                curve
                for run, name, (color, dash) in named
                for curve in _smoothed(run, "reward/mean", name, color, dash)
            ),
            low=0, high=1,
        ),
    ]  # fmt: skip
    keys = dict.fromkeys(key for run in runs for key in run.coefficients)
    for key in keys:
        curves = tuple(
            curve
            for run, name, (color, dash) in named
            for curve in _curves(run, (key, name, {"color": color, "dash": dash}))
        )
        panels.append(
            Panel(
                f"Coefficient {key.removeprefix('control/')}",
                "What the controller sets, once an iteration, from the entropy it sees.",
                key.removeprefix("control/"),
                curves,
                scale_of(y for curve in curves for y in curve.y),
            )
        )
    return [_say_smoothed(panel, runs) for panel in panels if panel.curves]


def _targets(runs: Sequence[Run]) -> list[Curve]:
    """The controllers' targets: one line where all of them hold the same, else one a run."""
    looks = {"dash": "--", "width": 1.1}
    curves = [
        curve
        for i, run in enumerate(runs)
        for curve in _curves(run, ("control/target", "", {"color": run_style(i)[0], **looks}))
    ]
    if len({y for curve in curves for y in curve.y}) == 1:
        longest = max(curves, key=lambda curve: curve.x[-1])
        return [replace(longest, label="target", color="#555555")]
    return curves


def run_style(i: int) -> tuple[str, Any]:
    """Colour and dash of the i-th run; colours repeat after seven, then with another dash."""
    return COLORS[i % len(COLORS)], DASHES[i // len(COLORS) % len(DASHES)]


def _curves(run: Run, *parts: tuple[str, str, dict[str, Any]]) -> tuple[Curve, ...]:
    curves = []
    for key, label, looks in parts:
        x, y = run.series(key)
        if x:
            curves.append(Curve(label, *_thin(x, y), **looks))
    return tuple(curves)


def _smoothed(run: Run, key: str, label: str, color: str, dash: Any = "-") -> tuple[Curve, ...]:
    """The values faintly and their moving average; only the values where there are few."""
    x, y = run.series(key)
    window = _window(len(y))
    if window == 1:
        return _curves(run, (key, label, {"color": color, "dash": dash}))
    half = window // 2
    mean = []
    for i in range(len(y)):
        part = y[max(0, i - half) : i + half + 1]  # shorter at both ends
        mean.append(sum(part) / len(part))
    return (
        Curve("", *_thin(x, y), color=color, width=0.8, alpha=0.35),
        Curve(label, *_thin(x, mean), color=color, dash=dash, width=1.9),
    )


def _window(n: int) -> int:
    return 1 if n < 30 else 2 * (n // 30) + 1


def _say_smoothed(panel: Panel, runs: Sequence[Run]) -> Panel:
    windows = {_window(len(run.series("reward/mean")[1])) for run in runs} - {1}
    span = str(windows.pop()) if len(windows) == 1 else "several"
    words = f" (faint) and its centred average over {span} iterations" if span != "several" else (
        " (faint) and its centred average over about a fifteenth of the run"
    )  # fmt: skip
    used = any(curve.alpha < 1 for curve in panel.curves)
    return replace(panel, caption=panel.caption.replace("{smooth}", words if used else ""))


def _thin(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Averages of blocks where there are more points than a figure can show."""
    size = math.ceil(len(x) / POINTS)
    if size <= 1:
        return list(x), list(y)
    blocks = [slice(i, i + size) for i in range(0, len(x), size)]
    return [sum(x[b]) / len(x[b]) for b in blocks], [sum(y[b]) / len(y[b]) for b in blocks]


def _setting(run: Run, table: str, key: str) -> Any:
    values = run.config.get(table)
    return values.get(key) if isinstance(values, dict) else None


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
