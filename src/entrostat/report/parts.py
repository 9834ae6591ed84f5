"""What a page is made of, each part made when it is asked for: by the page, or to be exported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..logs.run import Run
from .answers import Answers, BarFigure, answers_of, answers_of_all
from .dynamics import Dynamics, dynamics_of
from .dynamics.pooled import pooled_panels
from .figures import BLUE, Panel
from .law import LawSection, law_of
from .overlays import comparison_panels, metric_panel
from .panels import run_panels
from .runs import Row, rows_of
from .seeds import Entry, Spread, entries_of, spread_of
from .tables import Table, answers_table, estimators, evaluation, results, runs_table, seeds, tokens

if TYPE_CHECKING:
    from ..diagnosis import Diagnosis

Figure = Panel | BarFigure


@dataclass(frozen=True)
class RunParts:
    """The page of one run; `run` is what it is of, with what its dumps say (`with_dumps`)."""

    run: Run

    @cached_property
    def row(self) -> Row:
        return rows_of([self.run])[0]

    @cached_property
    def diagnosis(self) -> Diagnosis:
        from ..diagnosis import diagnose_run  # numpy, which a list of names does not need

        return diagnose_run(self.run)

    @cached_property
    def panels(self) -> list[Panel]:
        return run_panels(self.run)

    @cached_property
    def dynamics(self) -> Dynamics:
        return dynamics_of(self.run)

    @cached_property
    def law(self) -> LawSection:
        return law_of(self.run)

    @cached_property
    def answers(self) -> Answers | None:
        return answers_of(self.run)

    def figures(self) -> Iterator[Figure]:
        """Every figure; those that cost most to make come last."""
        yield from self.panels
        yield from self.answers.figures if self.answers else ()
        for section in self.dynamics.sections:
            yield from section.panels
        if self.law.panel:
            yield self.law.panel

    def metric(self, key: str) -> Panel:
        """One metric as it was logged; empty where it was not."""
        return metric_panel([self.run], [Entry("", (0,), BLUE, "-")], key)

    def tables(self) -> Iterator[Table]:
        """Every table, also those without a row."""
        yield results([self.row])
        yield evaluation(self.run)
        if self.answers:
            yield answers_table(self.answers)
        yield tokens(self.dynamics)
        yield estimators(self.dynamics)


@dataclass(frozen=True)
class ComparisonParts:
    """The page that compares several runs."""

    runs: tuple[Run, ...]

    @cached_property
    def rows(self) -> list[Row]:
        return rows_of(self.runs)

    @cached_property
    def entries(self) -> list[Entry]:
        """What is shown as one: a run, or the seeds of the same settings."""
        return entries_of(self.runs, [row.label for row in self.rows])

    @cached_property
    def verdicts(self) -> list[tuple[str, Diagnosis]]:
        """Of each run its label and what became of its entropy."""
        from ..diagnosis import diagnose_run

        found = zip(self.rows, self.runs, strict=True)
        return [(row.label, diagnose_run(run)) for row, run in found]

    @cached_property
    def curves(self) -> list[Panel]:
        return comparison_panels(self.runs, self.entries)

    @cached_property
    def pooled(self) -> list[Panel]:
        """Figures that take the runs together."""
        return pooled_panels(self.runs, self.entries)

    @cached_property
    def bands(self) -> list[Spread]:
        return [spread_of(e, self.rows, self.runs) for e in self.entries if e.is_band]

    @cached_property
    def answers(self) -> Answers | None:
        return answers_of_all(self.runs, self.entries)

    def figures(self) -> Iterator[Figure]:
        yield from self.curves
        yield from self.pooled
        yield from self.answers.figures if self.answers else ()

    def metric(self, key: str) -> Panel:
        return metric_panel(self.runs, self.entries, key)

    def tables(self) -> Iterator[Table]:
        yield results(self.rows)
        yield seeds(self.bands, self.rows)
        if self.answers:
            yield answers_table(self.answers)
        yield runs_table(self.runs, self.rows)


Parts = RunParts | ComparisonParts


def named(figures: Iterable[Figure]) -> Iterator[tuple[str, Figure]]:
    """Figures under names that differ: of a name that comes again, the second gets `_2`."""
    seen: dict[str, int] = {}
    for figure in figures:
        seen[figure.name] = seen.get(figure.name, 0) + 1
        again = seen[figure.name]
        yield figure.name + (f"_{again}" if again > 1 else ""), figure
