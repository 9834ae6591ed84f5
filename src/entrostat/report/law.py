"""The law's section of a run's page: score against exp(H), fit, ceiling, early prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..logs.run import Run
from .figures import BLACK, BLUE, ORANGE, RED, Curve, Panel, Points
from .runs import drawable, entropy_key

if TYPE_CHECKING:
    from ..law import EarlyPrediction, EntropyLaw

SHARE = 0.15  # of the steps, for the early prediction
LEVEL = 0.95
POINTS = 400


@dataclass(frozen=True)
class Tile:
    """A figure with its name and a word on it."""

    name: str
    value: str
    more: str


@dataclass(frozen=True)
class LawSection:
    """What the page says of the law.

    Attributes:
        steps: iterations fitted.
        entropy: which entropy.
        panel: the figure; None where no fit is possible.
        tiles: the fit's figures.
        doubts: of the fit.
        why: why there is no fit; empty where there is one.
        early: figures of the early prediction.
        early_steps: iterations that it was fitted to.
        early_doubts: of the early prediction.
        early_why: why there is none; empty where there is one.
    """

    steps: int
    entropy: str
    panel: Panel | None = None
    tiles: tuple[Tile, ...] = ()
    doubts: tuple[str, ...] = ()
    why: str = ""
    early: tuple[Tile, ...] = ()
    early_steps: int = 0
    early_doubts: tuple[str, ...] = ()
    early_why: str = ""


def law_of(run: Run) -> LawSection:
    """Fit the law to an iteration's entropy and mean reward."""
    from ..law import fit, predict_early

    key = entropy_key(run)
    kind = {"entropy/exact": "exact", "entropy/nll": "estimated (NLL)"}.get(key or "", "as logged")
    if key is None:
        return LawSection(0, kind, why="No entropy is logged.")
    entropy, score = (dict(zip(*drawable(run, name), strict=True)) for name in (key, "reward/mean"))
    if not score:
        return LawSection(0, kind, why="No mean reward is logged.")
    both = [i for i in entropy if i in score]
    h, r = [entropy[i] for i in both], [score[i] for i in both]
    try:
        law = fit(h, r)
        interval = law.interval(LEVEL).ceiling
        doubts = law.doubts
    except ValueError as error:
        return LawSection(len(both), kind, why=f"No fit: {error}.")
    early: EarlyPrediction | None = None
    why = ""
    try:
        early = predict_early(h, r, SHARE, end=max(1, len(h) // 10))
    except ValueError as error:
        why = f"No early prediction: {error}."
    x = [math.exp(v) for v in h]
    return LawSection(
        len(both),
        kind,
        _panel(x, r, law, interval, early),
        _tiles(law, interval),
        doubts,
        "",
        _early_tiles(early) if early else (),
        early.steps if early else 0,
        tuple(d for d in early.doubts if d not in doubts) if early else (),
        why,
    )


def _panel(
    x: Sequence[float],
    r: Sequence[float],
    law: EntropyLaw,
    interval: tuple[float, float],
    early: EarlyPrediction | None,
) -> Panel:
    span = (max(r) - min(r)) or 1.0
    low, high = min(r) - 1.25 * span, max(r) + 1.25 * span  # a wild line must not set the axis
    first = early.steps if early else 0
    curves = [_line("fit", law, x, low, high, BLACK, "-", 1.9)]
    if early:
        curves.append(_line(f"fit of the first {first}", early.law, x, low, high, RED, "--", 1.4))
    ends = [min(max(v, low), high) for v in interval]
    if ends[0] < ends[1]:
        curves.append(Curve(f"ceiling, {LEVEL:.0%} interval", [1, 1], ends, BLACK, "-", 4.5))
    clouds = []
    for label, start, end, color in (
        (f"first {first} iterations" if first else "", 0, first, ORANGE),
        ("later ones" if first else "iterations", first, len(x), BLUE),
    ):
        step = max(1, math.ceil((end - start) / POINTS))
        if end > start:
            clouds.append(Points(label, x[start:end:step], r[start:end:step], color))
    return Panel(
        "Score against exp(entropy)",
        "One point an iteration; the law is a straight line here, and its end at exp(H) = 1 "
        "(no entropy left) the ceiling, with its interval as a bar. Training goes from right to "
        "left.",
        "mean reward",
        tuple(curve for curve in curves if curve is not None),
        points=tuple(clouds),
        across="exp(entropy)",
    )


def _line(
    label: str, law: EntropyLaw, x: Sequence[float], low: float, high: float, color: str,
    dash: str, width: float,
) -> Curve | None:  # fmt: skip
    """The fitted line from exp(H) = 1 to the data's end, as far as it lies from low to high."""
    ends = [1.0, max(x)]
    if law.a:
        crossings = sorted((law.b - v) / law.a for v in (low, high))
        ends = [max(ends[0], crossings[0]), min(ends[1], crossings[1])]
    elif not low <= law.b <= high:
        return None
    if ends[0] >= ends[1]:
        return None
    return Curve(label, ends, [law.b - law.a * v for v in ends], color, dash, width)


def _tiles(law: EntropyLaw, interval: tuple[float, float]) -> tuple[Tile, ...]:
    r2 = "—" if math.isnan(law.r2) else f"{law.r2:.2f}"
    return (
        Tile("Ceiling b - a", f"{law.ceiling:.3g}", f"{LEVEL:.0%}: {_to(*interval)}"),
        Tile("a", f"{law.a:.3g}", "score a unit of exp(H)"),
        Tile("b", f"{law.b:.3g}", "score"),
        Tile("RMSE", f"{law.rmse:.2g}", "of the score"),
        Tile("R²", r2, "share of the score's variance"),
    )


def _early_tiles(early: EarlyPrediction) -> tuple[Tile, ...]:
    last = f"last {early.end} iterations" if early.end > 1 else "last iteration"
    return (
        Tile("Ceiling, predicted early", f"{early.ceiling:.3g}", f"from {early.steps} iterations"),
        Tile("Error at the end", f"{early.end_error:+.3g}", f"predicted - seen, {last}"),
        Tile("RMSE of the rest", f"{early.rmse:.2g}", f"of {early.rest} iterations"),
        Tile("RMSE without the law", f"{early.rmse_stay:.2g}", "saying that the score stays"),
        Tile("Entropy seen", f"{early.reached:.0%}", "of the range of exp(H)"),
    )


def _to(low: float, high: float) -> str:
    return f"{low:.3g} to {high:.3g}"
