"""A run's metrics as curves: thinned, smoothed, found under the names that trainers give them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..logs.run import Run
from .figures import Curve, Panel, slug
from .runs import drawable

POINTS = 1200  # a longer curve is averaged down to so many points

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


def logged(run: Run, key: str) -> str | None:
    """The name under which a run has a metric as a number; None where it has none."""
    names = (key, *ALIASES.get(key, ()))
    return next((name for name in names if drawable(run, name)[0]), None)


def curves_of(run: Run, *parts: tuple[str, str, dict[str, Any]]) -> tuple[Curve, ...]:
    """A curve for each (metric, label, looks) that the run has."""
    curves = []
    for key, label, looks in parts:
        if (name := logged(run, key)) is not None:
            curves.append(Curve(label, *thin(*drawable(run, name)), **looks))
    return tuple(curves)


def named(run: Run, *keys: str) -> str:
    """Of another trainer's metrics, under which names they were logged: for a caption."""
    found = [name for key in keys if (name := logged(run, key)) not in (None, key)]
    return f" Logged as {', '.join(map(str, found))}." if found else ""


def smoothed(run: Run, key: str, label: str, color: str, dash: Any = "-") -> tuple[Curve, ...]:
    """The values faintly and their moving average; only the values where there are few."""
    x, y = drawable(run, key)
    if window(len(y)) == 1:
        return curves_of(run, (key, label, {"color": color, "dash": dash}))
    return (
        Curve("", *thin(x, y), color=color, width=0.8, alpha=0.35, name=f"{label}, unsmoothed"),
        Curve(label, *thin(x, average(y)), color=color, dash=dash, width=1.9),
    )


def coefficient(key: str) -> str:
    """The name of the figure of a controller's coefficient."""
    return f"coefficient_{slug(key.removeprefix('control/'))}"


def average(y: Sequence[float]) -> list[float]:
    half = window(len(y)) // 2
    mean = []
    for i in range(len(y)):
        part = y[max(0, i - half) : i + half + 1]  # shorter at both ends
        mean.append(sum(part) / len(part))
    return mean


def window(n: int) -> int:
    """Width of the moving average of n values, about a fifteenth of them; 1 is none."""
    return 1 if n < 30 else 2 * (n // 30) + 1


def say_smoothed(panel: Panel, runs: Sequence[Run]) -> Panel:
    """Fill in the caption's {smooth}."""
    widths = sorted({window(len(drawable(run, "reward/mean")[1])) for run in runs} - {1})
    span = " to ".join(dict.fromkeys(map(str, [*widths[:1], *widths[-1:]])))
    words = f" (faint) and its centred average over {span} iterations"
    if not any(curve.alpha < 1 for curve in panel.curves):
        # seeds alone: their values are not drawn, the average is
        words = words.replace(" (faint) and its", ", as a") if panel.bands and widths else ""
    return replace(panel, caption=panel.caption.replace("{smooth}", words))


def thin(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Averages of blocks where there are more points than a figure can show."""
    size = math.ceil(len(x) / POINTS)
    if size <= 1:
        return list(x), list(y)
    blocks = [slice(i, i + size) for i in range(0, len(x), size)]
    return [sum(x[b]) / len(x[b]) for b in blocks], [sum(y[b]) / len(y[b]) for b in blocks]


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
