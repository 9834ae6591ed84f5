"""Do the estimators agree with what was measured? A table, and a figure where it moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..figures import Panel
from ..seeds import style_of
from .drawing import curves_of, series

WORDS = (
    "Published estimators against what was measured. Where entropy moves: against each token's "
    "change, over the tokens of one update (with the ratio and the clip as that update found them) "
    "and over a whole iteration (estimates of before its first update, when every ratio is 1 and "
    "nothing is clipped). Which token's gradient moves it: against each token's influence. 1 is "
    "full agreement, 0 none. PCC: Pearson, of values; SRCC: Spearman, of ranks."
)
# figures of a table's columns, in order
UPDATE = ("mse_eta_l", "scaled_mse", "mse", "pcc", "srcc")
WHERE = ("scaled_mse", "mse", "pcc", "srcc")
WHICH = ("pcc", "srcc", "sign")
# name -> what it is: COV Eq. 8 and Thm 1, REPO Cor. 1, STEER Eq. 2 (both), OPEFO Eq. 6, ours
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
    """One line of the estimators' table: averages over the analysed iterations, or None.

    Attributes:
        words: what it is; empty for one that is not known here.
        update: `UPDATE` against each token's change in one update, means over an iteration's
            updates. `mse_eta_l` is of the estimate times eta / L as STEER's Theorem 1 has it (the
            learning rate over the update's tokens), nats squared; `scaled_mse` after the best
            positive factor, over the truth's mean square; `mse` of the estimate as it stands.
        where: `WHERE` against each token's change in the iteration.
        which: `WHICH` against each token's influence.
    """

    name: str
    words: str
    update: tuple[float | None, ...]
    where: tuple[float | None, ...]
    which: tuple[float | None, ...]


def estimators(lines: list[Any]) -> tuple[Estimator, ...]:
    """The estimators' agreement, each figure averaged over the lines that have it."""

    def mean(*path: str) -> float | None:
        values = series(lines, "estimators", *path)[1]
        return sum(values) / len(values) if values else None

    table = [
        Estimator(
            name,
            ESTIMATORS.get(name, ""),
            tuple(mean(name, "update", key) for key in UPDATE),
            tuple(mean(name, "where", key) for key in WHERE),
            tuple(mean(name, "which", key) for key in WHICH),
        )
        for name in _names(lines)
    ]
    return tuple(
        row
        for row in table
        if any(value is not None for value in (*row.update, *row.where, *row.which))
    )


def _names(lines: list[Any]) -> list[str]:
    found = {
        name: None
        for line in lines
        if isinstance(table := line.get("estimators"), dict)
        for name, row in table.items()
        if isinstance(name, str) and isinstance(row, dict)
    }
    known = [name for name in ESTIMATORS if name in found]
    return known + [name for name in found if name not in ESTIMATORS][:12]


def panels_of(lines: list[Any]) -> tuple[Panel, ...]:
    """The section's figures; none where the table says it all."""
    if sum(isinstance(line.get("estimators"), dict) for line in lines) < 2:
        return ()  # the table says it all
    names = _names(lines)
    panels = []
    for kind, heading, against in (
        ("update", "One update", "each token's change of entropy in one update; the mean over the "
         "iteration's updates"),
        ("where", "Where", "each token's change of entropy in the whole iteration, over its "
         "tokens"),
        ("which", "Which", "each token's influence on the batch's entropy, over an iteration's "
         "tokens"),
    ):  # fmt: skip
        for key, title, words in (
            ("pcc", "Pearson", "of the estimates"),
            ("srcc", "Spearman", "of their ranks"),
        ):
            parts = [
                (("estimators", name, kind, key), name, *style_of(i), 1.4)
                for i, name in enumerate(names)
            ]
            panels.append(
                Panel(
                    f"{heading}: {title}",
                    f"Correlation {words} with {against}.",
                    "correlation",
                    curves_of(lines, *parts),
                    low=0,
                    high=1,
                )
            )
    return tuple(panel for panel in panels if not panel.empty)
