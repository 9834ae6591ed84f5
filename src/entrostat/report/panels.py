"""Which figures a page has: the metrics that go together, their words, their axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..logs.run import Run
from .figures import BLACK, BLUE, COLORS, DASHES, ORANGE, PURPLE, RED, Curve, Panel

POINTS = 1200  # a longer curve is averaged down to so many points


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
