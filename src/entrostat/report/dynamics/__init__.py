"""The figures of entropy dynamics, from a run's `metrics` and `analysis` lines.

Any part of a line may be missing or not a number. Such parts, and figures without data, are left
out. `change` is the entropy after the iteration's updates minus before, at the same states.
`influence` is the first-order effect of a token's gradient on the batch's mean entropy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...logs.run import Run, is_line
from ..curves import panel, rows, series
from ..figures import Panel
from ..seeds import style_of
from . import course, flow, tokens
from .tokens import TokenRow

AGREEMENT = (
    "Published estimators against what was measured. Where entropy moves: against each token's "
    "change, over the tokens of one update (with the ratio and the clip as that update found them) "
    "and over a whole iteration (estimates of before its first update, when every ratio is 1 and "
    "nothing is clipped). Which token's gradient moves it: against each token's influence. 1 is "
    "full agreement, 0 none. PCC: Pearson, of values; SRCC: Spearman, of ranks."
)
# reference that an estimator is compared with -> values of the table's columns, in order
AGREEMENTS = {
    "update": ("mse_eta_l", "scaled_mse", "mse", "pcc", "srcc"),
    "where": ("scaled_mse", "mse", "pcc", "srcc"),
    "which": ("pcc", "srcc", "sign"),
}
# name -> description: COV Eq. 8 and Thm 1, REPO Cor. 1, STEER Eq. 2 (both), OPEFO Eq. 6, ours
ESTIMATORS = {
    "cov": "-(log p - mean)(A - mean): Clip-Cov's and KL-Cov's",
    "cov_pg": "-(log p - mean)(pA - mean): the same under policy gradient",
    "corollary1": "-A · L · p: REPO's",
    "omega": "STEER's, as its code estimates it",
    "omega_realised": "STEER's sum with only the sampled token",
    "opefo": "-A (1 - p)² (log p + H): OPEFO's",
    "tabular": "exact to first order where states share no weights",
    "first_order": "derivative along the real update, shared weights included",
    "simpson": "the same averaged along the step",
}


@dataclass(frozen=True)
class Estimator:
    """One line of the estimators' table: averages over the analysed iterations, or None."""

    name: str
    words: str  # its description; empty if the estimator is unknown here
    # values of `AGREEMENTS` against each token's change in one update, averaged over updates;
    # `mse_eta_l` is of the estimate times eta / L, as in STEER's Theorem 1 (the learning rate over
    # the update's tokens), nats squared; `scaled_mse` is after the best positive factor, over the
    # truth's mean square; `mse` is of the estimate unscaled.
    update: tuple[float | None, ...]
    where: tuple[float | None, ...]  # against each token's change in the iteration
    which: tuple[float | None, ...]  # against each token's influence


def estimators(lines: list[Any]) -> tuple[Estimator, ...]:
    table = []
    for name in _names(lines):
        found = {
            group: tuple(_mean(lines, name, group, key) for key in keys)
            for group, keys in AGREEMENTS.items()
        }
        if any(value is not None for values in found.values() for value in values):
            table.append(Estimator(name, ESTIMATORS.get(name, ""), **found))
    return tuple(table)


def _mean(lines: list[Any], *path: str) -> float | None:
    values = series(lines, "estimators", *path)[1]
    return sum(values) / len(values) if values else None


def _names(lines: list[Any]) -> list[str]:
    found = {
        name: None
        for line in lines
        if isinstance(table := line.get("estimators"), dict)
        for name, row in table.items()
        if isinstance(row, dict)
    }
    known = [name for name in ESTIMATORS if name in found]
    return known + [name for name in found if name not in ESTIMATORS][:12]


def _agreement_panels(lines: list[Any]) -> tuple[Panel, ...]:
    if sum(isinstance(line.get("estimators"), dict) for line in lines) < 2:
        return ()  # the table shows everything
    names = _names(lines)
    against = {
        "update": "each token's change of entropy in one update; the mean over the iteration's "
        "updates",
        "where": "each token's change of entropy in the whole iteration, over its tokens",
        "which": "each token's influence on the batch's entropy, over an iteration's tokens",
    }
    headings = {"update": "One update", "where": "Where", "which": "Which"}
    panels = [
        panel(
            lines, f"{headings[kind]}: {title}", "correlation",
            f"Correlation {words} with {against[kind]}.",
            *((("estimators", name, kind, key), name, *style_of(i), 1.4)
              for i, name in enumerate(names)),
            low=0, high=1,
        )
        for kind in AGREEMENTS
        for key, title, words in (
            ("pcc", "Pearson", "of the estimates"), ("srcc", "Spearman", "of their ranks"),
        )
    ]  # fmt: skip
    return tuple(one for one in panels if not one.empty)


@dataclass(frozen=True)
class Section:
    """Panels under one heading; `anchor` is its link target on the page."""

    anchor: str
    heading: str
    words: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dynamics:
    sections: tuple[Section, ...]  # those with a panel or a table
    estimators: tuple[Estimator, ...]  # lines of the estimators' table
    estimator_lines: int  # analysed iterations that the table averages
    by_update: bool  # whether it has values of single updates, which older runs lack
    tokens: tuple[TokenRow, ...]  # lines of the tokens' table
    token_lines: int  # analysed iterations that the table sums
    token_limit: int  # length of the longest token list
    pieces: int  # maximum number of pieces in which a batch was analysed
    zero: float  # position of zero of the tokens' bars, percent of their width


def dynamics_of(run: Run) -> Dynamics:
    lines = [line for line in run.analysis if is_line(line)]
    sections = (
        Section("course", "Entropy and score", course.WORDS, course.panels_of(run, lines)),
        Section(
            "flow",
            "Entropy flow",
            flow.WORDS if lines else flow.ESTIMATED,
            flow.panels_of(run, lines),
        ),
        Section("tokens", "Which tokens move entropy", tokens.WORDS, tokens.panels_of(lines)),
        Section("agreement", "Do the estimators agree?", AGREEMENT, _agreement_panels(lines)),
    )
    table = estimators(lines)
    by_text, zero = tokens.token_rows(lines)
    tables = {"tokens": by_text, "agreement": table}
    listed = [n for line in lines if (n := len(rows(line, "tokens")))]
    return Dynamics(
        tuple(s for s in sections if s.panels or tables.get(s.anchor)),
        table,
        sum(isinstance(line.get("estimators"), dict) for line in lines),
        any(value is not None for row in table for value in row.update),
        by_text,
        len(listed),
        max(listed, default=0),
        max((n for line in lines if type(n := line.get("pieces")) is int), default=1),
        zero,
    )
