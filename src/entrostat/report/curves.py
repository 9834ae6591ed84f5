"""What logs hold as curves: found under the names that trainers give them, thinned, smoothed.

A line of an analysis may lack any part, or have something else than a number there: it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..logs.lines import number
from ..logs.run import Run
from .figures import BLACK, BLUE, SKY, Band, Curve, Panel, Points, slug

HUGE = 1e30  # nothing logged is as large: a broken log must not break an axis or a fit
POINTS = 1200  # a longer curve is averaged down to so many points
CLOUD = 400  # points of one cloud
FEW = 5  # iterations below which a cloud over the run says nothing

# our name -> what other trainers call the same; a caption says which it is
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
    """A figure of some metrics (`curves_of`); `fit` chooses the axis, `more` is a panel's own."""
    curves = curves_of(source, *parts)
    scale = scale_of(y for curve in curves for y in curve.y) if fit else "linear"
    if isinstance(source, Run):
        keys = [part if isinstance(part, str) else part[0] for part in parts]
        found = [str(name) for key in keys if (name := logged(source, key)) not in (None, key)]
        caption += f" Logged as {', '.join(found)}." if found else ""
    return Panel(title, caption, unit, curves, scale, **more)


def curves_of(source: Run | list[Any], *parts: Any) -> tuple[Curve, ...]:
    """A curve for each part that a log has a figure of.

    Args:
        source: a run, whose metrics may have another trainer's names, or lines.
        parts: (key, label, color[, dash[, width]]) each, or a key alone. A line's key may be a
            tuple: those of nested tables, one behind the other.
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
    """A finite number that an axis can show; None for anything else."""
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
    """The run's thirds in shades of their own."""
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
    """A symlog axis where one iteration, the first say, would flatten all others."""
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
    """Width of the moving average of n values, about a fifteenth of them; 1 is none."""
    return 1 if n < 30 else 2 * (n // 30) + 1


def smooth_words(runs: Sequence[Run], curves: Sequence[Curve], bands: Sequence[Band] = ()) -> str:
    """What the reward's caption says of its moving average, where one is drawn."""
    widths = sorted({window(len(series(run.metrics, "reward/mean")[1])) for run in runs} - {1})
    span = " to ".join(dict.fromkeys(map(str, [*widths[:1], *widths[-1:]])))
    if any(curve.alpha < 1 for curve in curves):
        return f" (faint) and its centred average over {span} iterations"
    # seeds alone: their values are not drawn, the average is
    return f", as a centred average over {span} iterations" if bands and widths else ""


def thin(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Averages of blocks where there are more points than a figure can show."""
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
