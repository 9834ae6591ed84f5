"""Which figures a page has: the metrics that go together, their words, their axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..logs.run import Run
from .figures import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, Band, Curve, Panel
from .runs import drawable, entropy_key
from .seeds import Entry
from .tokens.choice import choose_iterations
from .tokens.reading import read_dump

POINTS = 1200  # a longer curve is averaged down to so many points
DUMPS = 16  # dumps that are read for what a run did not log


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
    exact, nll, logged, target, best = (
        bool(drawable(run, key)[0])
        for key in (
            "entropy/exact", "entropy/nll", "entropy/logged", "control/target",
            "reward/best_in_group",
        )
    )  # fmt: skip
    panels = [
        Panel(
            "Entropy",
            " ".join(
                exact * ["Exact: mean of the full next-token entropy."]
                + nll * ["NLL: mean of -log p of the sampled tokens, an estimate of it."]
                + logged * [f"Logged: {run.entropy_is}"[:300]]
                + target * ["Dashed: the controller's target."]
            ),
            "nats a token",
            _curves(
                run,
                ("entropy/exact", "exact", {"color": BLUE, "width": 2.2}),
                ("entropy/nll", "NLL", {"color": BLACK, "width": 0.6 if exact else 1.7}),
                ("entropy/logged", "logged", {"color": BLUE, "width": 1.7}),
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
                scale_of(drawable(run, key)[1]),
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
                ("numerics/clip_low_exact", "low, not rounded", {"color": BLUE, "dash": "--"}),
                ("numerics/clip_high_exact", "high, not rounded", {"color": RED, "dash": "--"}),
            ),
            low=0,
        ),
        Panel(
            "Gradient norm",
            "Norm of the whole gradient before clipping, mean over the iteration's updates.",
            "norm",
            _curves(run, ("grad/norm", "", {"color": BLUE})),
            scale_of(drawable(run, "grad/norm")[1]),
            low=0,
        ),
        Panel(
            "Groups without a signal",
            "Prompts whose rollouts all earned the same: zero advantage, nothing to learn.",
            f"groups (of {groups})" if isinstance(groups, int) else "groups",
            _curves(run, ("rollout/zero_advantage_groups", "", {"color": BLUE})),
            low=0,
        ),
        *_dynamics(run),
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
            "Sampler and trainer: probability ratio",
            "The least and the largest ratio, over an iteration's tokens, of the trainer's "
            "probability to the sampler's (REPO Fig. 6). 1: they agree.",
            "ratio",
            _curves(
                run,
                ("mismatch/ratio_max", "largest", {"color": ORANGE, "width": 1.0}),
                ("mismatch/ratio_min", "least", {"color": BLUE, "width": 1.0}),
            ),
        ),
        Panel(
            "Sampler and trainer: probability difference",
            "Mean |difference| of a token's probability under sampler and trainer (REPO Fig. 6).",
            "probability",
            _curves(run, ("mismatch/prob_abs_mean", "", {"color": BLUE})),
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


def _dynamics(run: Run) -> list[Panel]:
    """Entropy dynamics of every update, but for the flow, which has a section of its own."""
    tokens = _curves(
        run,
        ("cov/top_0.02", "top 0.02 %", {"color": RED}),
        ("cov/top_0.2", "top 0.2 %", {"color": ORANGE}),
        ("cov/top_2", "top 2 %", {"color": GREEN}),
        ("cov/top_20", "top 20 %", {"color": BLUE}),
        ("cov/mean", "all", {"color": BLACK}),
        ("cov/update", "all, in the updates", {"color": PURPLE, "dash": ":"}),
    )
    touched = _curves(run, ("touched/entropy", "touched", {"color": RED}))
    return [
        Panel(
            "Token covariance",
            "(log p - mean)(A - mean) of the tokens that are trained on, under the policy that "
            "sampled them, averaged over those where it is largest (COV Table 1)."
            + bool(drawable(run, "cov/update")[0])
            * " In the updates: over their tokens, each under the policy that its update starts "
            "from.",
            "covariance",
            tokens,
            scale_of(y for curve in tokens for y in curve.y),
        ),
        Panel(
            "Touched tokens",
            "Tokens of the iteration's updates that a method touched: weighted, frozen, penalised, "
            "clipped, or given another advantage than the estimator's.",
            "fraction of tokens",
            _curves(run, ("touched/share", "", {"color": BLUE})),
            low=0,
        ),
        Panel(
            "Entropy of touched tokens",
            "Mean entropy of the tokens that a method touched, beside that of all sampled tokens.",
            "nats per token",
            touched and (
                *touched,
                *_curves(run, ("entropy/exact", "all", {"color": BLACK, "width": 1.2})),
            ),
            low=0,
        ),
        Panel(
            "Quadrants",
            "Tokens of the iteration's updates by advantage and probability (STEER Fig. 2). I: "
            "A > 0, p > .8; II: A > 0, p < .2; III: A < 0, p < .2; IV: A < 0, p > .8. In a softmax "
            "table I and III lower entropy, II and IV raise it.",
            "fraction of tokens",
            _curves(
                run,
                ("quadrant/I", "I", {"color": BLUE}),
                ("quadrant/II", "II", {"color": GREEN}),
                ("quadrant/III", "III", {"color": ORANGE}),
                ("quadrant/IV", "IV", {"color": RED}),
            ),
            low=0,
        ),
    ]  # fmt: skip


def with_dumps(run: Run) -> Run:
    """Another trainer's run with the entropy dynamics of its dumped rollouts, if it logged none.

    At most `DUMPS` are read, of iterations that have a line of metrics; what a line has stays. A
    note says so.
    """
    if run.source == "entrostat" or run.keys("flow") or run.keys("quadrant"):
        return run
    lines = {line["iteration"]: line for line in run.metrics}
    found = {}
    for iteration in choose_iterations(run.dumps.keys() & lines.keys(), (), DUMPS):
        if (rollouts := read_dump(run, iteration, {})) is not None:
            from .dumped import of_dump  # torch, which a log of numbers does not need

            if figures := of_dump(rollouts):
                found[iteration] = figures | lines[iteration]
    if not found:
        return run
    which = f"{len(found)} iteration" + "s" * (len(found) > 1)
    note = (
        "Entropy flow, covariances and quadrants are not logged: they were computed for this page "
        f"from the rollouts of {which}, under the policy whose log-probs the dump has, over the "
        "groups with a signal."
    )
    metrics = [found.get(line["iteration"], line) for line in run.metrics]
    return replace(run, metrics=metrics, notes=(*run.notes, note))


def comparison_panels(runs: Sequence[Run], entries: Sequence[Entry]) -> list[Panel]:
    """Entropy, reward and coefficients of several runs: a line a run, a band where seeds differ."""
    shown = [([runs[i] for i in entry.members], entry) for entry in entries]
    bands = any(entry.is_band for entry in entries)
    said = (
        bands * " Line in a band: the mean over seeds at the iterations that all of them logged; "
        "band: the lowest to the highest."
    )
    exact = all(entropy_key(run) in ("entropy/exact", None) for run in runs)
    targets = _targets(shown)
    entropy = [_entry(some, entry, entropy_key(some[0]) or "") for some, entry in shown]
    reward = [_entry(some, entry, "reward/mean", smooth=True) for some, entry in shown]
    panels = [
        Panel(
            "Entropy",
            (
                "Exact: mean of the full next-token entropy over an iteration's rollouts."
                if exact
                else "Mean over an iteration's rollouts, as each run has it: not the same figure "
                "in all of them (see the notes)."
            )
            + bool(targets)
            * " Dashed: the controllers' target, in a run's colour where they differ."
            + said,
            "nats a token",
            (*targets, *(curve for curves, _ in entropy for curve in curves)),
            low=0,
            bands=tuple(band for _, some in entropy for band in some),
        ),
        Panel(
            "Reward",
            "Mean reward of an iteration's rollouts{smooth}."
            + (said and f"{said[:-1]}, of the seeds' averages."),
            "reward",
            tuple(curve for curves, _ in reward for curve in curves),
            low=0,
            high=1,
            bands=tuple(band for _, some in reward for band in some),
        ),
    ]
    for key in dict.fromkeys(key for run in runs for key in run.coefficients):
        parts = [_entry(some, entry, key) for some, entry in shown]
        curves = tuple(curve for curves, _ in parts for curve in curves)
        in_bands = tuple(band for _, some in parts for band in some)
        panels.append(
            Panel(
                f"Coefficient {key.removeprefix('control/')}",
                "What the controller sets, once an iteration, from the entropy it sees."
                + (said if in_bands else ""),
                key.removeprefix("control/"),
                curves,
                scale_of(
                    [y for curve in curves for y in curve.y]
                    + [y for band in in_bands for part in (band.low, band.high) for y in part]
                ),
                bands=in_bands,
            )
        )
    return [_say_smoothed(panel, runs) for panel in panels if panel.curves]


def _entry(
    runs: Sequence[Run], entry: Entry, key: str, smooth: bool = False
) -> tuple[tuple[Curve, ...], tuple[Band, ...]]:
    """One run's line, or the mean line and the band of several seeds."""
    looks = {"color": entry.color, "dash": entry.dash}
    if not entry.is_band:
        if smooth:
            return _smoothed(runs[0], key, entry.label, entry.color, entry.dash), ()
        return _curves(runs[0], (key, entry.label, looks)), ()
    series = [drawable(run, key) for run in runs]
    columns = [dict(zip(x, _average(y) if smooth else y, strict=True)) for x, y in series]
    shared = sorted(set(columns[0]).intersection(*columns[1:]))
    if not shared:
        curves = (
            _curves(run, (key, f"{entry.label} (seed {run.config.get('seed')})", looks))
            for run in runs
        )
        return tuple(curve for some in curves for curve in some), ()
    mean, low, high = (
        [measure([column[i] for column in columns]) for i in shared]
        for measure in (lambda values: sum(values) / len(values), min, max)
    )
    label = f"{entry.label} ({len(runs)} seeds)"
    x, mean = _thin(shared, mean)
    band = Band("", x, _thin(shared, low)[1], _thin(shared, high)[1], entry.color)
    return (Curve(label, x, mean, width=2.0, **looks),), (band,)


def _targets(shown: Sequence[tuple[Sequence[Run], Entry]]) -> list[Curve]:
    """The controllers' targets: one line where all of them hold the same, else one an entry."""
    looks = {"dash": "--", "width": 1.1}
    curves = [
        curve
        for runs, entry in shown
        for curve in _curves(
            max(runs, key=lambda run: run.done),
            ("control/target", "", {"color": entry.color, **looks}),
        )
    ]
    if len({y for curve in curves for y in curve.y}) == 1:
        longest = max(curves, key=lambda curve: curve.x[-1])
        return [replace(longest, label="target", color="#555555")]
    return curves


def _curves(run: Run, *parts: tuple[str, str, dict[str, Any]]) -> tuple[Curve, ...]:
    curves = []
    for key, label, looks in parts:
        x, y = drawable(run, key)
        if x:
            curves.append(Curve(label, *_thin(x, y), **looks))
    return tuple(curves)


def _smoothed(run: Run, key: str, label: str, color: str, dash: Any = "-") -> tuple[Curve, ...]:
    """The values faintly and their moving average; only the values where there are few."""
    x, y = drawable(run, key)
    window = _window(len(y))
    if window == 1:
        return _curves(run, (key, label, {"color": color, "dash": dash}))
    return (
        Curve("", *_thin(x, y), color=color, width=0.8, alpha=0.35),
        Curve(label, *_thin(x, _average(y)), color=color, dash=dash, width=1.9),
    )


def _average(y: Sequence[float]) -> list[float]:
    """The centred moving average."""
    half = _window(len(y)) // 2
    mean = []
    for i in range(len(y)):
        part = y[max(0, i - half) : i + half + 1]  # shorter at both ends
        mean.append(sum(part) / len(part))
    return mean


def _window(n: int) -> int:
    return 1 if n < 30 else 2 * (n // 30) + 1


def _say_smoothed(panel: Panel, runs: Sequence[Run]) -> Panel:
    windows = {_window(len(drawable(run, "reward/mean")[1])) for run in runs} - {1}
    span = str(windows.pop()) if len(windows) == 1 else "several"
    words = f" (faint) and its centred average over {span} iterations" if span != "several" else (
        " (faint) and its centred average over about a fifteenth of the run"
    )  # fmt: skip
    if not any(curve.alpha < 1 for curve in panel.curves):
        # seeds alone: their values are not drawn, the average is
        words = words.replace(" (faint) and its", ", as a") if panel.bands and windows else ""
    return replace(panel, caption=panel.caption.replace("{smooth}", words))


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
