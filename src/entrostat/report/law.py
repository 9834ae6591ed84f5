"""The law's section of a run's page: score against exp(H), fit, ceiling, early prediction."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .._text import counted
from ..logs.run import Run
from .curves import CLOUD, HUGE
from .figures import BLACK, BLUE, ORANGE, RED, Curve, Panel, Points

if TYPE_CHECKING:
    from ..law import EarlyPrediction, EntropyLaw, Pairs

LEVEL = 0.95


@dataclass(frozen=True)
class Tile:
    name: str
    value: str
    more: str


@dataclass(frozen=True)
class LawSection:
    steps: str = ""  # the fitted data: "30 evaluations"
    entropy: str = ""  # entropy, score: their kinds, in words
    score: str = ""
    notes: tuple[str, ...] = ()  # why they differ from COV's, what is left out
    panel: Panel | None = None  # the figure; None if no fit is possible
    tiles: tuple[Tile, ...] = ()
    doubts: tuple[str, ...] = ()
    why: str = ""  # why there is no fit; empty if there is one
    early: tuple[Tile, ...] = ()
    early_steps: str = ""  # data of the early prediction: "5 evaluations"
    early_doubts: tuple[str, ...] = ()
    early_why: str = ""  # why there is no early prediction; empty if there is one


def law_of(run: Run) -> LawSection:
    from ..law import LawError, early_of, fit, pairs_of

    said = LawSection()
    try:
        pairs = _drawable(pairs_of(run))
        steps = counted(len(pairs.score), pairs.point)
        said = LawSection(steps, pairs.entropy_is, pairs.score_is, pairs.notes)
        law = fit(pairs.entropy, pairs.score)
    except LawError as error:
        return replace(said, why=f"No fit: {error.why}.")
    interval = law.interval(LEVEL).ceiling
    early: EarlyPrediction | None = None
    try:
        early = early_of(law)
        said = replace(
            said,
            early=_early_tiles(early, pairs.point),
            early_steps=counted(early.steps, pairs.point),
            early_doubts=tuple(d for d in early.doubts if d not in law.doubts),
        )
    except LawError as error:
        said = replace(said, early_why=f"No early prediction: {error.why}.")
    return replace(
        said,
        panel=_panel(pairs, law, interval, early),
        tiles=_tiles(law, interval, early, pairs.point),
        doubts=law.doubts,
    )


def _drawable(pairs: Pairs) -> Pairs:
    both = zip(pairs.entropy, pairs.score, strict=True)
    kept = [(h, r) for h, r in both if abs(h) < HUGE and abs(r) < HUGE]
    return replace(pairs, entropy=tuple(h for h, _ in kept), score=tuple(r for _, r in kept))


def _panel(
    pairs: Pairs, law: EntropyLaw, interval: tuple[float, float], early: EarlyPrediction | None
) -> Panel:
    x, r = [math.exp(h) for h in pairs.entropy], pairs.score
    span = (max(r) - min(r)) or 1.0
    # the axis covers the data, the ceiling and its interval; lines are clipped to it
    held = [*r, *(v for v in (law.ceiling, *interval) if abs(v) < HUGE)]
    low, high = min(min(held), min(r) - 1.25 * span), max(max(held), max(r) + 1.25 * span)
    first = early.steps if early else 0
    fits = [("fit, in-sample", law, (BLACK, "-", 1.9))]
    if early:
        fits.append((f"fit of the first {first}, predicting", early.law, (RED, "--", 1.4)))
    curves = [
        Curve(label, ends, [fitted.b - fitted.a * v for v in ends], *looks)
        for label, fitted, looks in fits
        if (ends := _ends(fitted, max(x), low, high))
    ]
    ends = [min(max(v, low), high) for v in interval]
    if ends[0] < ends[1]:
        curves.append(Curve(f"ceiling, {LEVEL:.0%} interval", [1, 1], ends, BLACK, "-", 4.5))
    points = f"{pairs.point}s"
    parts = [("later ones" if first else points, x[first:], r[first:], BLUE)]
    if first:
        parts.insert(0, (f"first {first} {points}", x[:first], r[:first], ORANGE))
    clouds = [
        Points(label, h[:: math.ceil(len(h) / CLOUD)], score[:: math.ceil(len(h) / CLOUD)], color)
        for label, h, score, color in parts
        if h
    ]
    return Panel(
        "Score against exp(entropy)",
        f"One point an {pairs.point}; the law is a straight line here, and its end at exp(H) = 1 "
        "(no entropy left) the ceiling, with its interval as a bar. The solid line is fitted to "
        "all points (in-sample), the broken one to the first and predicts the later ones. Training "
        "goes from right to left.",
        "mean reward" if pairs.score_key == "reward/mean" else pairs.score_key,
        tuple(curves),
        points=tuple(clouds),
        across="exp(entropy)",
        name="law",
    )


def _ends(law: EntropyLaw, last: float, low: float, high: float) -> list[float]:
    """The line's ends, from exp(H) = 1 to the data's end, clipped to [low, high]; else []."""
    ends = [1.0, last]
    if law.a:
        crossings = sorted((law.b - v) / law.a for v in (low, high))
        ends = [max(1.0, crossings[0]), min(last, crossings[1])]
    elif not low <= law.b <= high:
        return []
    return ends if ends[0] < ends[1] else []


def _tiles(
    law: EntropyLaw, interval: tuple[float, float], early: EarlyPrediction | None, point: str
) -> tuple[Tile, ...]:
    value, more = "—", "none"
    if early is not None:
        value = f"{early.rmse:.2g}"
        more = f"of the later {early.rest}, from the first {early.steps}"
    low, high = interval
    r2 = "—" if math.isnan(law.r2) else f"{law.r2:.2f}"
    return (
        Tile("Ceiling b - a", f"{law.ceiling:.3g}", f"{LEVEL:.0%}: {low:.3g} to {high:.3g}"),
        Tile("a", f"{law.a:.3g}", "score per unit of exp(H)"),
        Tile("b", f"{law.b:.3g}", "score"),
        Tile("R²", r2, "share of the score's variance"),
        Tile("RMSE, in-sample", f"{law.rmse:.2g}", f"of all {counted(len(law.score), point)}"),
        Tile("RMSE, predicted", value, more),
    )


def _early_tiles(early: EarlyPrediction, point: str) -> tuple[Tile, ...]:
    first = counted(early.steps, point)
    last = f"last {early.end} {point}s" if early.end > 1 else f"last {point}"
    return (
        Tile("Ceiling, predicted early", f"{early.ceiling:.3g}", f"from {first}"),
        Tile("Error at the end", f"{early.end_error:+.3g}", f"predicted - seen, {last}"),
        Tile("RMSE, predicted", f"{early.rmse:.2g}", f"of the later {early.rest}"),
        Tile("RMSE without the law", f"{early.rmse_stay:.2g}", "saying that the score stays"),
        Tile("Entropy seen", f"{early.reached:.0%}", "of the range of exp(H)"),
    )
