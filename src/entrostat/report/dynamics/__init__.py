"""The figures of entropy dynamics: what a run's `metrics` and `analysis` lines say, where they do.

Any part of a line may be missing, or be no number: it is left out, and so is a figure that has
nothing to show. `change` is what entropy did (after the iteration's updates minus before, at the
same states); `influence` is what a token's gradient does to the batch's mean entropy, to first
order.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...logs.run import Run, is_line
from ..figures import Panel
from . import agreement, course, flow, tokens
from .agreement import Estimator
from .drawing import rows
from .tokens import TokenRow


@dataclass(frozen=True)
class Section:
    """Panels under one heading; `anchor` is its place in the page."""

    anchor: str
    heading: str
    words: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dynamics:
    """All there is to show; every part may be empty.

    Attributes:
        sections: those with a panel or a table.
        estimators: lines of the estimators' table.
        estimator_lines: analysed iterations that it averages.
        by_update: whether it has anything of single updates, which older runs lack.
        tokens: lines of the tokens' table.
        token_lines: analysed iterations that it sums.
        token_limit: tokens that the longest of their lists names.
        pieces: into how many pieces a batch was cut to be analysed, at most.
        zero: where the tokens' bars have their zero, percent of their width.
    """

    sections: tuple[Section, ...]
    estimators: tuple[Estimator, ...]
    estimator_lines: int
    by_update: bool
    tokens: tuple[TokenRow, ...]
    token_lines: int
    token_limit: int
    pieces: int
    zero: float


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
        Section(
            "agreement", "Do the estimators agree?", agreement.WORDS, agreement.panels_of(lines)
        ),
    )
    table = agreement.estimators(lines)
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
