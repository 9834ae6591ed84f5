"""The page of an evaluation: tables with intervals, pass@k curves, entropy against accuracy.

`figure_of` draws score against entropy over checkpoints, for `entrostat eval --over`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._text import cut
from ..evaluation.checkpoint_correlation import ENTROPIES, Checkpoint, OfSet
from ..evaluation.results import of_problem, shown, side_by_side
from ..logs.lines import JsonLines
from .figures import COLORS, Band, Curve, Panel, Points, draw, short, styled, svg_of
from .page import _write

PROBLEMS, RESPONSES, TEXT = 10, 4, 600  # at most: problems, responses of one, characters
MOST = 12  # maximum number of sets drawn over checkpoints
PAGE = "eval.html"
# name of the metric in a table, its meaning
SCORES = (("avg@{k}", "mean score"), ("pass@{k}", "any of k right"), ("maj@{k}", "the majority"))
DIVERSITY = (
    ("distinct", "right answers, a problem"), ("ngram_diversity", "1: none twice"),
    ("self_bleu", "1: all alike"), ("clusters", "meanings, a problem"),
)  # fmt: skip
LENGTH = (("length", "tokens"), ("truncated", "share"), ("failed", "share"))
ENTROPY = (
    ("entropy", "responses, nats"), ("prompt_entropy", "prompts, nats"),
    ("prompt_entropy_ratio", "to the base's"), ("logp_gap", "right - wrong, nats"),
    ("auroc", "of log-probs"), ("ece", "of exp(log-prob)"),
)  # fmt: skip


def write_page(root: Path, results: Sequence[tuple[Path, Mapping[str, Any]]]) -> Path:
    """Write the page of results, each with its directory, into `root`; return its path."""
    sets: dict[str, list[Any]] = {}
    for i, (path, one) in enumerate(results):
        for name, entry in one["sets"].items():
            of_model = (one["model"], COLORS[i % len(COLORS)], entry, path)
            sets.setdefault(name, []).append(of_model)
    whose = results[0][1]["model"] if len(results) == 1 else f"{len(results)} models"
    return _write(
        "evaluation.html.jinja",
        root / PAGE,
        title=f"Evaluation of {whose}",
        rows=results,
        sets=[_part(name, entries) for name, entries in sets.items()],
        settings=[
            (f"{one['model']}: {name}", json.dumps(entry["settings"], indent=1))
            for _, one in results
            for name, entry in one["sets"].items()
        ],
    )


def _part(name: str, entries: Sequence[Any]) -> dict[str, Any]:
    """A set's content on the page; `entries`: (model, color, its results, their directory)."""
    lines = [JsonLines(path / entry["responses"]).read() for _, _, entry, path in entries]
    first = entries[0][2]
    own = first["settings"]
    how = f"temperature {own['temperature']:g}, top-p {own['top_p']:g}"
    words = (
        f"{first['n']} problems, {first['k']} responses each, "
        f"{'greedy' if own['greedy'] else how}, {own['max_new_tokens']} tokens at most."
    )
    if own["preset"] != "none":
        words += f" Preset: {own['preset']}."
    tables = [_table(entries, columns) for columns in (SCORES, DIVERSITY, ENTROPY, LENGTH)]
    panels = [_curves(entries), _scatter(entries, lines)]
    return {
        "name": name, "words": words, "tables": [t for t in tables if t[0]],
        "images": [draw(panel) for panel in panels if not panel.empty],
        "examples": _examples(lines[-1]), "whose": entries[-1][0],
    }  # fmt: skip


def _table(
    entries: Sequence[Any], columns: Sequence[tuple[str, str]]
) -> tuple[list[tuple[str, str]], list[dict[str, Any]]]:
    """Headings of the columns with values, and a row per model: (value, interval) each."""
    names = [column for column, _ in columns]
    found = side_by_side([entry for *_, entry, _ in entries], names)
    head = [(found[name][0], meaning) for name, meaning in columns if name in found]
    rows = [
        {"name": name, "color": color, "cells": [_cell(cells[i]) for _, cells in found.values()]}
        for i, (name, color, *_) in enumerate(entries)
    ]
    return head, rows


def _cell(figure: Mapping[str, Any] | None) -> tuple[str, str]:
    if figure is None:
        return "—", ""
    between = "" if figure["low"] is None else f"{figure['low']:.3f} to {figure['high']:.3f}"
    return f"{figure['value']:.3f}", between


def _curves(entries: Sequence[Any]) -> Panel:
    curves, bands = [], []
    for name, color, entry, _ in entries:
        if entry["k"] < 2:
            continue
        places = list(range(1, entry["k"] + 1))
        found = [entry["metrics"][f"pass@{j}"] for j in places]
        curves.append(Curve(f"{name}: pass@k", places, [f["value"] for f in found], color))
        if found[0]["low"] is not None:
            low, high = ([f[end] for f in found] for end in ("low", "high"))
            bands.append(Band("", places, low, high, color))
        votes = {j: entry["metrics"].get(f"maj@{j}", {}).get("value") for j in shown(entry["k"])}
        votes = {j: value for j, value in votes.items() if value is not None}
        if votes:
            values = list(votes.values())
            curves.append(Curve(f"{name}: maj@k", list(votes), values, color, "--", 1.3))
    return Panel(
        "Right within k responses",
        "pass@k: at least one of k is right (unbiased). maj@k: the answer that most of k give is. "
        "Bands are 95% intervals over problems.",
        "share of problems", tuple(curves), low=0.0, high=1.0, bands=tuple(bands), across="k",
    )  # fmt: skip


def _scatter(entries: Sequence[Any], lines: Sequence[Sequence[Mapping[str, Any]]]) -> Panel:
    clouds = []
    for (name, color, entry, _), own in zip(entries, lines, strict=True):
        known = [line for line in own[: entry["n"]] if line.get("entropy") is not None]
        if known:
            x = [_mean_entropy(line) for line in known]
            y = [of_problem(line)[f"avg@{entry['k']}"] or 0.0 for line in known]
            clouds.append(Points(name, x, y, color))
    return Panel(
        "Accuracy against entropy",
        "A point is a problem: the mean entropy of its responses' tokens, and their mean score.",
        "mean score", low=0.0, high=1.0, points=tuple(clouds), across="entropy (nats per token)",
    )  # fmt: skip


def _mean_entropy(line: Mapping[str, Any]) -> float:
    tokens = line["tokens"]
    nats = sum(t * h for t, h in zip(tokens, line["entropy"], strict=True))
    return nats / max(1, sum(tokens))


def _examples(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for line in lines[:PROBLEMS]:
        scores, answers = (
            dict(zip(line["responses"], line[key], strict=True)) for key in ("scores", "extracted")
        )
        common = Counter(line["responses"]).most_common(RESPONSES)
        right = sum(score >= 1 for score in line["scores"])
        answer = line["answer"]
        found.append({
            "prompt": cut(line["prompt"], TEXT),
            "answer": cut(answer if isinstance(answer, str) else json.dumps(answer), TEXT),
            # text, count, correctness, answer extracted by the grader
            "responses": [(cut(text, TEXT), count, scores[text] >= 1,
                           cut(answers[text] or "none", TEXT)) for text, count in common],
            "right": f"{right} of {len(line['scores'])}",
        })  # fmt: skip
    return found


def figure_of(sets: Sequence[OfSet]) -> bytes | None:
    """Scatter plots of the sets' scores, colored by run; None if no set has a score.

    The left plots show entropy (of the rollouts, or of the responses if more checkpoints have it),
    the right ones cumulative entropy (REPO Fig. 12).
    """
    drawn = [one for one in sets if one.score is not None][:MOST]
    if not drawn:
        return None
    from matplotlib.figure import Figure

    runs = list(dict.fromkeys(point.run for one in drawn for point in one.points))
    colors = {run: COLORS[i % len(COLORS)] for i, run in enumerate(runs)}
    with styled():
        figure = Figure(figsize=(9.4, 0.5 + 3.1 * len(drawn)), layout="constrained")
        axes = figure.subplots(len(drawn), 2, squeeze=False)
        for (left, right), one in zip(axes, drawn, strict=True):
            # of the rollouts, unless more points have the other kind
            kind = max(ENTROPIES, key=lambda k, one=one: sum(k in p.entropies for p in one.points))
            _cloud(left, one, colors, lambda p, kind=kind: p.entropies.get(kind))
            left.set(xlabel=f"entropy of {kind}, nats per token", ylabel=short(one.score or ""))
            left.set_title(short(one.name), loc="left", fontsize=10)
            _cloud(right, one, colors, lambda p: p.cumulative)
            right.set(xlabel="sum of the rollouts' entropies so far, nats per token")
        handles = axes[0][0].get_lines()
        if len(runs) > 1:
            figure.legend(
                handles, [short(run) for run in runs][: len(handles)], ncols=3,
                loc="outside lower center", frameon=False,
            )  # fmt: skip
        return svg_of(figure)


def _cloud(
    axes: Any, one: OfSet, colors: dict[str, str], of: Callable[[Checkpoint], float | None]
) -> None:
    score = one.score or ""
    for run, color in colors.items():
        known = [
            (x, point.figures[score])
            for point in one.points
            if point.run == run and score in point.figures and (x := of(point)) is not None
        ]
        axes.plot(
            [x for x, _ in known], [y for _, y in known], color=color, linestyle="", marker="o",
            markersize=4.5, alpha=0.75, markeredgewidth=0,
        )  # fmt: skip
