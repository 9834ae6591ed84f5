"""Entropy flow: what raised the entropy, what lowered it, and what was to predict it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...logs.run import Run
from ..figures import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, Bars, Panel
from ..panels import scale_of
from .drawing import FEW, analysed, curves_of, legible, range_words, thirds
from .reading import at, bins_of, figure

WORDS = (
    "What raised the entropy and what lowered it in each analysed iteration. Change: entropy after "
    "the iteration's updates minus before, at the same states. Influence: what a token's gradient "
    "does to the batch's mean entropy in one optimizer step, to first order. A token may lower the "
    "batch's entropy (influence) while its own rises (change)."
)
SOURCES = (
    ("influence", "influence", BLUE, "-"),
    ("change", "true change", BLACK, "-"),
    ("opefo", "OPEFO", ORANGE, "--"),
)


def panels_of(run: Run, lines: list[Any]) -> tuple[Panel, ...]:
    """The section's figures, without those that have nothing to show."""
    panels = [
        Panel(
            "Change of entropy",
            "What an iteration's updates did to the batch's mean entropy (true), what follows "
            "from the parameters' real change (first order, Simpson's rule), and the sum of the "
            "influences, which take one step on the whole batch.",
            "nats an iteration",
            (
                *curves_of(lines, ("change/mean",), "true", BLACK, width=2.2),
                *curves_of(lines, ("change/first_order",), "first order", BLUE, width=1.2),
                *curves_of(lines, ("change/simpson",), "Simpson", GREEN, "--", 1.4),
                *curves_of(lines, ("influence/sum",), "influences", ORANGE, width=1.2),
            ),
        )
    ]
    for key, title, words, unit in (
        ("influence", "Flow by influence", "Sums over the tokens of what their gradients do to the "
         "batch's mean entropy", "nats"),
        ("change", "Flow by true change", "Sums over the tokens of how their own entropy moved",
         "nats, summed over tokens"),
        ("opefo", "Flow by OPEFO's estimate", "The same by OPEFO's Eq. 6, a number a token",
         "no unit"),
    ):  # fmt: skip
        panels.append(
            Panel(
                title,
                f"{words}: those that raise it, those that lower it (drawn below 0), the net.",
                unit,
                (
                    *curves_of(lines, ("flow", key, "increase"), "increase", GREEN),
                    *curves_of(lines, ("flow", key, "decrease"), "decrease", RED, sign=-1),
                    *curves_of(lines, ("flow", key, "net"), "net", BLACK, width=2.0),
                ),
            )
        )
    panels.append(
        Panel(
            "Flow seen by OPEFO",
            "What the method itself logged every iteration, a trained token: estimates that raise "
            "entropy and (below 0) lower it.",
            "no unit",
            (
                *curves_of(run.metrics, ("flow/increase",), "increase", GREEN),
                *curves_of(run.metrics, ("flow/decrease",), "decrease", RED, sign=-1),
            ),
        )
    )
    balances = [
        curve
        for key, label, color, dash in SOURCES
        for curve in curves_of(lines, ("flow", key, "balance"), label, color, dash)
    ]
    balances += curves_of(run.metrics, ("flow/balance",), "the method's own", PURPLE, width=1.0)
    panels.append(
        Panel(
            "Balance λ",
            "(S- - S+) / (S- + S+): above 0 what lowers entropy outweighs, 0 is balance, below 0 "
            "what raises it does. 1 + λ on the raising side and 1 - λ on the lowering one would "
            "balance them.",
            "λ",
            tuple(balances),
        )
    )
    panels += _covariance(lines)
    panels.append(
        Panel(
            "Change at clipped tokens",
            "The part of the entropy's change that lies on tokens which the ratio's upper (high) "
            "or lower bound (low) clips once the updates are done.",
            "nats",
            (
                *curves_of(lines, ("clipped", "high", "change"), "high", RED),
                *curves_of(lines, ("clipped", "low", "change"), "low", BLUE),
            ),
        )
    )
    return tuple(legible(panel) for panel in panels if not panel.empty)


def _covariance(lines: list[Any]) -> list[Panel]:
    shares = (
        ("0.0002", "top 0.02 %", RED), ("0.002", "top 0.2 %", ORANGE), ("0.02", "top 2 %", GREEN),
        ("0.2", "top 20 %", BLUE), ("1", "all", BLACK),
    )  # fmt: skip
    curves = [
        curve
        for key, label, color in shares
        for curve in curves_of(lines, ("covariance", key), label, color)
    ]
    pairs = []
    for line in lines:
        cov = figure(line.get("cov/mean"))
        cov = figure(at(line, "covariance", "1")) if cov is None else cov
        change = figure(line.get("change/mean"))
        if cov is not None and change is not None:
            pairs.append((cov, -change))
    bars, seen = _difficulty(lines)
    return [
        Panel(
            "Covariance of log-prob and advantage",
            "(log p - mean)(A - mean) of a token, averaged over the tokens where it is largest: a "
            "few carry most of it.",
            "covariance",
            tuple(curves),
            scale_of(y for curve in curves for y in curve.y),
        ),
        Panel(
            "Loss of entropy against covariance",
            "One point an analysed iteration: entropy lost in its updates against the tokens' mean "
            f"covariance, which is to predict it.{_pearson(pairs)}",
            "-change of entropy, nats",
            points=thirds([x for x, _ in pairs], [y for _, y in pairs]),
            across="mean covariance",
        ),
        Panel(
            "Covariance by difficulty",
            "Mean covariance of the prompts' tokens, by the mean reward of a prompt's group (hard "
            f"prompts left), over {analysed(seen)}.",
            "covariance",
            bars=bars,
            across="mean reward of the group",
        ),
    ]


def _pearson(pairs: Sequence[tuple[float, float]]) -> str:
    from statistics import StatisticsError, correlation

    if len(pairs) < FEW:
        return ""
    try:
        r = correlation([x for x, _ in pairs], [y for _, y in pairs])
    except (StatisticsError, OverflowError, ZeroDivisionError):
        return ""
    return f" Pearson {r:.2f}." if abs(r) <= 1.001 else ""


def _difficulty(lines: list[Any]) -> tuple[tuple[Bars, ...], int]:
    """Covariance by bins of reward, the prompts of all iterations taken together."""
    bins, seen = bins_of(lines, "difficulty", ("cov",))
    names, values = [], []
    for place, table in bins.items():
        pairs = [(figure(row.get("prompts")), figure(row.get("cov"))) for row in table]
        known = [(n, v) for n, v in pairs if n is not None and n > 0 and v is not None]
        if known:
            names.append(range_words(*place))
            values.append(sum(n * v for n, v in known) / sum(n for n, _ in known))
    return ((Bars("", names, values, BLUE),) if names else ()), seen
