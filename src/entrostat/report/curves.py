"""Turn logs into curves: find metrics under trainers' names, thin and smooth them.

A line of an analysis may lack any part or hold a non-number there; such parts are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..logs.lines import number
from ..logs.run import Run
from .figures import BLACK, BLUE, SKY, Band, Curve, Panel, Points, slug

HUGE = 1e30  # upper limit for a logged value: a broken log must not break an axis or a fit
POINTS = 1200  # longer curves are averaged down to this many points
CLOUD = 400  # points of one scatter plot
FEW = 5  # minimum number of iterations for a scatter plot over the run

# our name -> other trainers' names of the metric; a caption gives the one used
ALIASES = {
    "clip/both": ("clip_ratio/region_mean", "actor/pg_clipfrac", "train/pg_clipfrac"),
    "kl/old_new": ("actor/ppo_kl", "train/ppo_kl"),
    "kl/ref": ("kl", "actor/kl_loss", "train/kl_loss"),
    "loss/total": ("loss", "train/loss"),
    "loss/policy": ("actor/pg_loss", "train/pg_loss"),
    "optim/lr": ("learning_rate", "actor/lr", "train/lr-pg_0"),
    "rollout/truncated": (
        "completions/clipped_ratio", "response_length/clip_ratio", "rollout/truncated_ratio",
    ),
    "rollout/zero_advantage_share": ("frac_reward_zero_std",),
}  # fmt: skip


def panel(
    source: Run | list[Any], title: str, unit: str, caption: str, *parts: Any, fit: bool = False,
    **more: Any,
) -> Panel:  # fmt: skip
    """Build a panel (`curves_of`); `fit` chooses the scale, `more` are fields of the panel."""
    curves = curves_of(source, *parts)
    scale = scale_of(y for curve in curves for y in curve.y) if fit else "linear"
    if isinstance(source, Run):
        keys = [part if isinstance(part, str) else part[0] for part in parts]
        found = [str(name) for key in keys if (name := logged(source, key)) not in (None, key)]
        caption += f" Logged as {', '.join(found)}." if found else ""
    return Panel(title, caption, unit, curves, scale, **more)


def curves_of(source: Run | list[Any], *parts: Any) -> tuple[Curve, ...]:
    """Build a curve for each part that the log has values of.

    Args:
        source: a run, whose metrics may have another trainer's names, or lines.
        parts: (key, label, color[, dash[, width]]) each, or a key alone. For lines, a key may be a
            tuple: a path through nested tables.
    """
    curves = []
    for part in parts:
        key, label, *looks = (part, "") if isinstance(part, str) else part
        if isinstance(source, Run):
            x, y = thin(*series(source.metrics, logged(source, key) or key))
        else:
            x, y = series(source, *([key] if isinstance(key, str) else key))
        if x:
            curves.append(Curve(label, x, y, *looks))
    return tuple(curves)


def logged(run: Run, key: str) -> str | None:
    names = (key, *ALIASES.get(key, ()))
    return next((name for name in names if series(run.metrics, name)[0]), None)


def at(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def figure(value: Any) -> float | None:
    """Return a finite number that an axis can show; None for anything else."""
    found = number(value)
    return found if found is not None and abs(found) < HUGE else None


def series(lines: Iterable[Any], *path: str) -> tuple[list[int], list[float]]:
    pairs = [(line["iteration"], figure(at(line, *path))) for line in lines]
    kept = [(x, y) for x, y in pairs if y is not None]
    return [x for x, _ in kept], [y for _, y in kept]


def rows(line: Any, key: str) -> list[dict[str, Any]]:
    found = line.get(key)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def below(curves: Iterable[Curve]) -> tuple[Curve, ...]:
    return tuple(replace(curve, y=[-v for v in curve.y]) for curve in curves)


def thirds(x: Sequence[float], y: Sequence[float]) -> tuple[Points, ...]:
    """Scatter plot of a run, its three thirds in different shades."""
    n = len(x)
    size = 3.2 if n > 60 else 5.0
    looks = (("first third", SKY), ("second", BLUE), ("last", BLACK))
    clouds = []
    for i, (label, color) in enumerate(looks):
        start, end = i * n // 3, (i + 1) * n // 3
        some = slice(start, end, max(1, math.ceil((end - start) / (CLOUD // 3))))
        if end > start:
            clouds.append(Points(label, x[some], y[some], color, size))
    return tuple(clouds)


def legible(drawn: Panel) -> Panel:
    """Use a symlog axis if an outlier, such as the first iteration, would flatten the rest."""
    sizes = sorted(abs(v) for v in drawn.values if v)
    if drawn.scale != "linear" or drawn.bars or drawn.points or not sizes:
        return drawn
    if sizes[-1] <= 20 * sizes[len(sizes) // 2]:
        return drawn
    return replace(drawn, scale="symlog", floor=0.01)


def smoothed(run: Run, key: str, label: str, color: str, dash: Any = "-") -> tuple[Curve, ...]:
    x, y = series(run.metrics, key)
    if window(len(y)) == 1:
        return curves_of(run, (key, label, color, dash))
    return (
        Curve("", *thin(x, y), color=color, width=0.8, alpha=0.35, name=f"{label}, unsmoothed"),
        Curve(label, *thin(x, average(y)), color=color, dash=dash, width=1.9),
    )


def coefficient(key: str) -> str:
    return f"coefficient_{slug(key.removeprefix('control/'))}"


def average(y: Sequence[float]) -> list[float]:
    half = window(len(y)) // 2
    parts = [y[max(0, i - half) : i + half + 1] for i in range(len(y))]  # shorter at both ends
    return [sum(part) / len(part) for part in parts]


def window(n: int) -> int:
    """Width of the moving average of n values, about a fifteenth of them; 1 means no averaging."""
    return 1 if n < 30 else 2 * (n // 30) + 1


def smooth_words(runs: Sequence[Run], curves: Sequence[Curve], bands: Sequence[Band] = ()) -> str:
    """Describe the reward's moving average for its caption, if one is drawn."""
    widths = sorted({window(len(series(run.metrics, "reward/mean")[1])) for run in runs} - {1})
    span = " to ".join(dict.fromkeys(map(str, [*widths[:1], *widths[-1:]])))
    if any(curve.alpha < 1 for curve in curves):
        return f" (faint) and its centred average over {span} iterations"
    # for seeds only the average is drawn
    return f", as a centred average over {span} iterations" if bands and widths else ""


def thin(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Average blocks if there are more points than a figure can show."""
    size = math.ceil(len(x) / POINTS)
    if size <= 1:
        return list(x), list(y)
    blocks = [slice(i, i + size) for i in range(0, len(x), size)]
    return [sum(x[b]) / len(x[b]) for b in blocks], [sum(y[b]) / len(y[b]) for b in blocks]


def scale_of(values: Iterable[float]) -> str:
    values = list(values) or [0.0]
    low, high = min(values), max(values)
    if low < 0 < high:
        return "symlog"
    return "log" if low > 0 and high > 20 * low else "linear"
