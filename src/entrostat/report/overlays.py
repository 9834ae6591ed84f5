"""Figures that lay several runs over each other: a line per run, a band where seeds differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..logs.run import Run
from .curves import average, coefficient, curves_of, say_smoothed, scale_of, smoothed, thin
from .figures import Band, Curve, Panel
from .runs import drawable, entropy_key
from .seeds import Entry


def comparison_panels(runs: Sequence[Run], entries: Sequence[Entry]) -> list[Panel]:
    """Entropy, reward, coefficients of several runs: a line per run, a band where seeds differ."""
    shown = [([runs[i] for i in entry.members], entry) for entry in entries]
    bands = any(entry.is_band for entry in entries)
    said = (
        bands * " Line in a band: the mean over seeds at the iterations that all of them logged; "
        "band: the lowest to the highest."
    )
    exact = all(entropy_key(run) in ("entropy/exact", None) for run in runs)
    targets = _targets(shown)
    entropy, entropy_bands = _drawn(shown)
    reward, reward_bands = _drawn(shown, "reward/mean", smooth=True)
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
            "nats per token", (*targets, *entropy), low=0, bands=entropy_bands,
        ),
        Panel(
            "Reward",
            "Mean reward of an iteration's rollouts{smooth}."
            + (said and f"{said[:-1]}, of the seeds' averages."),
            "reward", reward, low=0, high=1, bands=reward_bands,
        ),
    ]  # fmt: skip
    for key in dict.fromkeys(key for run in runs for key in run.coefficients):
        curves, in_bands = _drawn(shown, key)
        values = [curve.y for curve in curves]
        values += [part for band in in_bands for part in (band.low, band.high)]
        name = key.removeprefix("control/")
        caption = "What the controller sets, once per iteration, from the entropy it sees."
        panels.append(
            Panel(
                f"Coefficient {name}", caption + said * bool(in_bands), name, curves,
                scale_of(y for some in values for y in some), bands=in_bands,
                name=coefficient(key),
            )
        )  # fmt: skip
    return [say_smoothed(panel, runs) for panel in panels if panel.curves]


def metric_panel(runs: Sequence[Run], entries: Sequence[Entry], key: str) -> Panel:
    """One metric under its own name; empty where no run logged it as a number."""
    curves, bands = _drawn([([runs[i] for i in entry.members], entry) for entry in entries], key)
    return Panel(key, f"{key}, as it was logged.", key, curves, bands=bands)


def _drawn(
    shown: Sequence[tuple[Sequence[Run], Entry]], key: str | None = None, smooth: bool = False
) -> tuple[tuple[Curve, ...], tuple[Band, ...]]:
    """The lines and bands of all entries; without a key each one's own entropy."""
    parts = [
        _entry(runs, entry, key or entropy_key(runs[0]) or "", smooth) for runs, entry in shown
    ]
    curves = tuple(curve for some, _ in parts for curve in some)
    return curves, tuple(band for _, some in parts for band in some)


def _entry(
    runs: Sequence[Run], entry: Entry, key: str, smooth: bool = False
) -> tuple[tuple[Curve, ...], tuple[Band, ...]]:
    if not entry.is_band:
        if smooth:
            return smoothed(runs[0], key, entry.label, entry.color, entry.dash), ()
        return curves_of(runs[0], (key, entry.label, entry.color, entry.dash)), ()
    series = [drawable(run, key) for run in runs]
    columns = [dict(zip(x, average(y) if smooth else y, strict=True)) for x, y in series]
    shared = sorted(set(columns[0]).intersection(*columns[1:]))
    if not shared:
        names = [f"{entry.label} (seed {run.config.get('seed')})" for run in runs]
        curves = (
            curves_of(run, (key, name, entry.color, entry.dash))
            for run, name in zip(runs, names, strict=True)
        )
        return tuple(curve for some in curves for curve in some), ()
    mean, low, high = (
        [measure([column[i] for column in columns]) for i in shared]
        for measure in (lambda values: sum(values) / len(values), min, max)
    )
    label = f"{entry.label} ({len(runs)} seeds)"
    x, mean = thin(shared, mean)
    edges = thin(shared, low)[1], thin(shared, high)[1]
    band = Band("", x, *edges, entry.color, name=label)
    return (Curve(label, x, mean, entry.color, entry.dash, 2.0),), (band,)


def _targets(shown: Sequence[tuple[Sequence[Run], Entry]]) -> list[Curve]:
    """The controllers' targets: one line where all of them hold the same, else one per entry."""
    curves = [
        replace(curve, name=f"{entry.label}: target")
        for runs, entry in shown
        for curve in curves_of(
            max(runs, key=lambda run: run.done), ("control/target", "", entry.color, "--", 1.1)
        )
    ]
    if len({y for curve in curves for y in curve.y}) == 1:
        longest = max(curves, key=lambda curve: curve.x[-1])
        return [replace(longest, label="target", name="", color="#555555")]
    return curves
