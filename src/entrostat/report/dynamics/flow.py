"""Entropy flow: terms that raised or lowered the entropy, and its predictors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...logs.run import Run
from ..curves import FEW, at, below, curves_of, figure, legible, panel, thirds
from ..figures import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, Curve, Panel

WORDS = (
    "What raised the entropy and what lowered it in each analysed iteration. Change: entropy after "
    "the iteration's updates minus before, at the same states. Influence: what a token's gradient "
    "does to the batch's mean entropy in one optimizer step, to first order. A token may lower the "
    "batch's entropy (influence) while its own rises (change)."
)
ESTIMATED = (
    "What the updates ask of entropy, estimated in closed form at every one of them; --analyze "
    "measures what became of it."
)
SOURCES = (
    ("influence", "influence", BLUE, "-"),
    ("change", "true change", BLACK, "-"),
    ("opefo", "Eq. 6, before the updates", ORANGE, "--"),
)


def panels_of(run: Run, lines: list[Any]) -> tuple[Panel, ...]:
    of_tokens = "of the iteration's updates, under the policy that its update starts from"
    if run.source != "entrostat":
        of_tokens = "of a dump, by the log-probs and entropies dumped"
    balances = [(("flow", key, "balance"), *looks) for key, *looks in SOURCES]
    every = ("flow/balance", "Eq. 6, every iteration", PURPLE, "-", 1.0)
    panels = [
        panel(
            lines, "Change of entropy", "nats per iteration",
            "What an iteration's updates did to the batch's mean entropy (true), what follows "
            "from the parameters' real change (first order, Simpson's rule), and the sum of the "
            "influences, which take one step on the whole batch.",
            ("change/mean", "true", BLACK, "-", 2.2),
            ("change/first_order", "first order", BLUE, "-", 1.2),
            ("change/simpson", "Simpson", GREEN, "--", 1.4),
            ("influence/sum", "influences", ORANGE, "-", 1.2),
        ),
        _flow(lines, "influence", "Flow by influence", "nats", "Sums over the tokens of what their "
              "gradients do to the batch's mean entropy"),
        _flow(lines, "change", "Flow by true change", "nats, summed over tokens", "Sums over the "
              "tokens of how their own entropy moved"),
        _flow(lines, "opefo", "Flow by OPEFO's estimate", "no unit, summed over tokens", "The same "
              "by OPEFO's Eq. 6, a number per token, of before the iteration's updates"),
        Panel(
            "Flow of the updates, by Eq. 6",
            f"OPEFO's estimate for each token {of_tokens}: S+, the sum over those that raise "
            "entropy, and S-, over those that lower it (drawn below 0), both over the number of "
            "tokens.", "no unit, per token",
            (
                *curves_of(run.metrics, ("flow/increase", "increase", GREEN)),
                *below(curves_of(run.metrics, ("flow/decrease", "decrease", RED))),
            ),
            name="flow_updates",
        ),
        Panel(
            "Balance λ",
            "(S- - S+) / (S- + S+), where S+ is what the tokens that raise entropy add to it and "
            "S- what the others take: above 0 what lowers it outweighs, 0 is balance, below 0 "
            "what raises it does. 1 + λ on the raising side and 1 - λ on the lowering one would "
            "balance them.", "λ",
            (*curves_of(lines, *balances), *curves_of(run.metrics, every)),
        ),
        *_covariance(run, lines),
        panel(
            lines, "Eq. 6 at clipped tokens", "no unit, summed over tokens",
            "OPEFO's Fig. 2(c): its estimate of the change of entropy, summed over the tokens that "
            "the ratio's upper (high) or lower bound (low) clips in an update, and over the "
            "iteration's updates. It is what the clip holds back, up to a factor.",
            *_clipped("opefo"), name="clipped_estimate",
        ),
        panel(
            lines, "Change at clipped tokens, in the update", "nats, summed over tokens",
            "What the entropy of the same tokens did in the same updates, although the clip left "
            "them no policy gradient of their own: what other tokens' gradients and the "
            "optimizer's momentum did there.", *_clipped("in_update"), name="clipped_change",
        ),
        panel(
            lines, "Change at tokens clipped in the end", "nats",
            "The part of the batch's change of entropy, over all updates of the iteration, that "
            "lies on tokens beyond the ratio's upper (high) or lower bound (low) once the updates "
            "are done. It holds what took them there.",
            *_clipped("change"), name="clipped_change_in_the_end",
        ),
    ]  # fmt: skip
    return tuple(legible(one) for one in panels if not one.empty)


def _flow(lines: list[Any], key: str, title: str, unit: str, words: str) -> Panel:
    return Panel(
        title,
        f"{words}: S+, of those that raise it; S-, of those that lower it (drawn below 0); the "
        "net S+ - S-.",
        unit,
        (
            *curves_of(lines, (("flow", key, "increase"), "increase", GREEN)),
            *below(curves_of(lines, (("flow", key, "decrease"), "decrease", RED))),
            *curves_of(lines, (("flow", key, "net"), "net", BLACK, "-", 2.0)),
        ),
    )


def _clipped(key: str) -> list[tuple[Any, ...]]:
    return [(("clipped", side, key), side, color) for side, color in (("high", RED), ("low", BLUE))]


def _covariance(run: Run, lines: list[Any]) -> list[Panel]:
    shares = (
        ("0.0002", "top 0.02 %", RED), ("0.002", "top 0.2 %", ORANGE), ("0.02", "top 2 %", GREEN),
        ("0.2", "top 20 %", BLUE), ("1", "all", BLACK),
    )  # fmt: skip
    if run.series("cov/top_2")[0]:  # metrics of every iteration have their own figure
        shares = ()
    pairs, under_pg = [], []
    for line in lines:
        cov = figure(line.get("cov/mean"))
        cov = figure(at(line, "covariance", "1")) if cov is None else cov
        of_pg, change = figure(line.get("cov/pg_mean")), figure(line.get("change/mean"))
        if cov is not None and change is not None:
            pairs.append((cov, -change))
        if of_pg is not None and change is not None:
            under_pg.append((of_pg, -change))
    return [
        panel(
            lines, "Covariance of log-prob and advantage", "covariance",
            "(log p - mean)(A - mean) of a token, means over the batch's tokens (COV Eq. 8), "
            "averaged over the tokens where it is largest: a few carry most of it.",
            *((("covariance", key), *looks) for key, *looks in shares), fit=True,
        ),
        Panel(
            "Loss of entropy against covariance",
            "One point an analysed iteration: entropy lost in its updates against the tokens' mean "
            "covariance (COV Thm 2, PAR Eq. 17), which is to predict it."
            f"{_together(pairs)}{_together(under_pg, 'That of COV Thm 1 (PAR Eq. 16): ')}",
            "-change of entropy, nats",
            points=thirds([x for x, _ in pairs], [y for _, y in pairs]),
            across="mean covariance",
        ),
        Panel(
            "Covariance of whole responses",
            "COV's Eq. 7: the covariance, over a prompt's responses, of the log-prob per token and "
            "the probability (of a token, geometric mean) times the advantage; means over the "
            "prompts with a signal, and over the third of them with the lowest mean reward (hard), "
            "the middle and the highest (easy), as in COV's Fig. 12.",
            "covariance", _whole_responses(run, lines),
        ),
    ]  # fmt: skip


def _whole_responses(run: Run, lines: list[Any]) -> tuple[Curve, ...]:
    """COV Eq. 7, for every iteration if logged, else for the analysed ones."""
    parts = (
        ("cov/prompt", ("mean",), "all prompts", BLACK),
        ("cov/prompt_hard", ("hard", "cov"), "hard", RED),
        ("cov/prompt_middle", ("middle", "cov"), "middle", ORANGE),
        ("cov/prompt_easy", ("easy", "cov"), "easy", GREEN),
    )
    return tuple(
        curve
        for key, path, label, color in parts
        for curve in curves_of(run.metrics, (key, label, color))
        or curves_of(lines, (("prompt_covariance", *path), label, color))
    )


def _together(pairs: Sequence[tuple[float, float]], lead: str = "") -> str:
    """Pearson's and Spearman's correlation as a sentence; "" for few points or a constant."""
    from statistics import StatisticsError, correlation

    from ...evaluation.checkpoint_correlation import spearman

    if len(pairs) < FEW:
        return ""
    try:
        r = correlation([x for x, _ in pairs], [y for _, y in pairs])
    except (StatisticsError, OverflowError, ZeroDivisionError):
        return ""
    ranks = spearman(*zip(*pairs, strict=True))
    if abs(r) > 1.001 or ranks is None:
        return ""
    return f" {lead}Pearson {r:.2f}, Spearman {ranks.rho:.2f}."
