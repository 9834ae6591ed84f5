"""Figures that overlay several runs: a line per run, a band for the seeds of one setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..logs.run import Run
from .curves import average, coefficient, curves_of, scale_of, series, smooth_words, smoothed, thin
from .figures import Band, Curve, Panel
from .runs import entropy_key
from .seeds import Entry


def comparison_panels(runs: Sequence[Run], entries: Sequence[Entry]) -> list[Panel]:
    said = ""
    if any(entry.is_band for entry in entries):
        said = (
            " Line in a band: the mean over seeds at the iterations that all of them logged; band: "
            "the lowest to the highest."
        )
    words = "Exact: mean of the full next-token entropy over an iteration's rollouts."
    if any(entropy_key(run) not in ("entropy/exact", None) for run in runs):
        words = (
            "Mean over an iteration's rollouts, as each run has it: not the same figure in all of "
            "them (see the notes)."
        )
    if targets := _targets(runs, entries):
        words += " Dashed: the controllers' target, in a run's colour where they differ."
    entropy, bands = _drawn(runs, entries)
    panels = [
        Panel("Entropy", words + said, "nats per token", (*targets, *entropy), low=0, bands=bands)
    ]
    reward, bands = _drawn(runs, entries, "reward/mean", smooth=True)
    words = f"Mean reward of an iteration's rollouts{smooth_words(runs, reward, bands)}."
    words += said and f"{said[:-1]}, of the seeds' averages."
    panels.append(Panel("Reward", words, "reward", reward, low=0, high=1, bands=bands))
    for key in dict.fromkeys(key for run in runs for key in run.coefficients):
        curves, bands = _drawn(runs, entries, key)
        name = key.removeprefix("control/")
        words = "What the controller sets, once per iteration, from the entropy it sees."
        panel = Panel(
            f"Coefficient {name}", words + said * bool(bands), name, curves, bands=bands,
            name=coefficient(key),
        )  # fmt: skip
        panels.append(replace(panel, scale=scale_of(panel.values)))
    return [panel for panel in panels if panel.curves]


def metric_panel(runs: Sequence[Run], entries: Sequence[Entry], key: str) -> Panel:
    """Panel of one metric under its own name; empty if no run logged it as a number."""
    curves, bands = _drawn(runs, entries, key)
    return Panel(key, f"{key}, as it was logged.", key, curves, bands=bands)


def _drawn(
    every: Sequence[Run], entries: Sequence[Entry], key: str | None = None, smooth: bool = False
) -> tuple[tuple[Curve, ...], tuple[Band, ...]]:
    """Lines and bands of all entries; without a key, of each entry's own entropy."""
    curves: list[Curve] = []
    bands: list[Band] = []
    for entry in entries:
        runs = entry.of(every)
        of, looks = key or entropy_key(runs[0]) or "", (entry.color, entry.dash)
        if not entry.is_band:
            if smooth:
                curves += smoothed(runs[0], of, entry.label, *looks)
            else:
                curves += curves_of(runs[0], (of, entry.label, *looks))
            continue
        found = [series(run.metrics, of) for run in runs]
        columns = [dict(zip(x, average(y) if smooth else y, strict=True)) for x, y in found]
        shared = sorted(set(columns[0]).intersection(*columns[1:]))
        if not shared:
            for run in runs:
                label = f"{entry.label} (seed {run.config.get('seed')})"
                curves += curves_of(run, (of, label, *looks))
            continue
        values = [[column[i] for column in columns] for i in shared]
        label = f"{entry.label} ({len(runs)} seeds)"
        x, mean = thin(shared, [sum(some) / len(some) for some in values])
        low, high = (thin(shared, list(map(end, values)))[1] for end in (min, max))
        curves.append(Curve(label, x, mean, *looks, 2.0))
        bands.append(Band("", x, low, high, entry.color, name=label))
    return tuple(curves), tuple(bands)


def _targets(runs: Sequence[Run], entries: Sequence[Entry]) -> list[Curve]:
    """The controllers' targets: one line if they are all equal, else one per entry."""
    curves = [
        replace(curve, name=f"{entry.label}: target")
        for entry in entries
        for curve in curves_of(
            max(entry.of(runs), key=lambda run: run.done),
            ("control/target", "", entry.color, "--", 1.1),
        )
    ]
    if len({y for curve in curves for y in curve.y}) == 1:
        longest = max(curves, key=lambda curve: curve.x[-1])
        return [replace(longest, label="target", name="", color="#555555")]
    return curves
