"""What a page is made of, by name; its figures and tables as files of their own.

What a figure's CSV holds is what is drawn: places across in the first column, a column per curve,
cloud or set of bars, two per band. A curve of more than `curves.POINTS` points is drawn, and
written, in means of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from .._names import nearest, unknown
from ..logs.files import atomic
from ..logs.run import Run
from . import tables
from .answers import Answers, Bar, BarFigure, answers_of, answers_of_all, picture_of_bars
from .dynamics import Dynamics, dynamics_of
from .dynamics.pooled import pooled_panels
from .figures import BLUE, Panel, picture_of, styled, svg_of
from .law import LawSection, law_of
from .overlays import comparison_panels, metric_panel
from .panels import run_panels
from .runs import Row, rows_of
from .seeds import Entry, Spread, entries_of, spread_of
from .tables import Table, Value, as_csv, as_latex, as_markdown, csv_text
from .tokens import with_dumps

if TYPE_CHECKING:
    from .picture import Picture

Figure = Panel | BarFigure
FIGURES = (".svg", ".png", ".csv")
TABLES = {".md": as_markdown, ".tex": as_latex, ".csv": as_csv}


@dataclass(frozen=True)
class RunParts:
    """The page of one run; `run` is what it is of, with what its dumps say (`with_dumps`)."""

    run: Run

    @cached_property
    def row(self) -> Row:
        return rows_of([self.run])[0]

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
        yield from run_panels(self.run)
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
        yield tables.results([self.row])
        yield tables.evaluation(self.run)
        if self.answers:
            yield tables.answers_table(self.answers)
        yield tables.tokens(self.dynamics)
        yield tables.estimators(self.dynamics)


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
    def bands(self) -> list[Spread]:
        return [spread_of(e, self.rows, self.runs) for e in self.entries if e.is_band]

    @cached_property
    def answers(self) -> Answers | None:
        return answers_of_all(self.runs, self.entries)

    def figures(self) -> Iterator[Figure]:
        yield from comparison_panels(self.runs, self.entries)
        yield from pooled_panels(self.runs, self.entries)
        yield from self.answers.figures if self.answers else ()

    def metric(self, key: str) -> Panel:
        return metric_panel(self.runs, self.entries, key)

    def tables(self) -> Iterator[Table]:
        yield tables.results(self.rows)
        yield tables.seeds(self.bands, self.rows)
        if self.answers:
            yield tables.answers_table(self.answers)
        yield tables.runs_table(self.runs, self.rows)


Parts = RunParts | ComparisonParts


def named(figures: Iterable[Figure]) -> Iterator[tuple[str, Figure]]:
    """Figures under names that differ: of a name that comes again, the second gets `_2`."""
    seen: dict[str, int] = {}
    for figure in figures:
        seen[figure.name] = seen.get(figure.name, 0) + 1
        again = seen[figure.name]
        yield figure.name + (f"_{again}" if again > 1 else ""), figure


def parts_of(runs: Run | Sequence[Run]) -> Parts:
    """What the page of a run is made of, or of a sequence, also of one, that is compared."""
    if isinstance(runs, Run):
        return RunParts(with_dumps(runs))
    if not runs:
        raise ValueError("runs is empty; name at least one run")
    return ComparisonParts(tuple(runs))


def names_of(parts: Parts) -> tuple[dict[str, str], dict[str, str]]:
    """Name and title of the figures that a page has, and of its tables."""
    figures = {name: figure.title for name, figure in named(parts.figures())}
    return figures, {table.name: table.title for table in parts.tables() if table.rows}


def figure_named(parts: Parts, name: str) -> Figure:
    """A figure of a page, or one of a metric that a run logs, under the metric's own name."""
    asked, found = _plain(name), []
    for known, figure in named(parts.figures()):
        if known == asked:
            return figure
        found.append(known)
    if not (panel := parts.metric(name)).empty:
        return panel
    metrics = dict.fromkeys(key for run in _runs(parts) for line in run.metrics for key in line)
    also = f" Or a metric that is logged{_like(name, metrics)}."
    if any(asked == table.name for table in parts.tables()):
        also = f" {asked!r} is a table."
    raise ValueError(unknown("figure", name, found) + also)


def table_named(parts: Parts, name: str) -> Table:
    """A table of a page that is not empty."""
    known = {table.name: table for table in parts.tables() if table.rows}
    if (found := known.get(_plain(name))) is not None:
        return found
    raise ValueError(unknown("table", name, known))


def write_figure(parts: Parts, name: str, output: Path) -> Path:
    """Write a figure as SVG, PNG (200 dpi) or CSV, as the file's name ends; returns its path."""
    suffix = _suffix(output, FIGURES, "a figure")
    figure = figure_named(parts, name)
    if suffix == ".csv":
        return write_file(output, csv_text(numbers_of(figure)).encode("utf-8"))
    with styled():
        drawn = picture(figure)
        return write_file(output, drawn.png() if suffix == ".png" else svg_of(drawn))


def write_table(parts: Parts, name: str, output: Path) -> Path:
    """Write a table as Markdown, LaTeX or CSV, as the file's name ends; returns its path."""
    suffix = _suffix(output, TABLES, "a table")
    return write_file(output, TABLES[suffix](table_named(parts, name)).encode("utf-8"))


def picture(figure: Figure, size: tuple[float, float] | None = None) -> Picture:
    """A figure drawn by matplotlib, to be called within `styled`; `size` in inches is a panel's."""
    if isinstance(figure, BarFigure):
        return picture_of_bars(figure.bars, figure.color)
    return picture_of(figure, size)


def numbers_of(figure: Figure) -> list[list[Value]]:
    if isinstance(figure, BarFigure):
        head: list[Value] = ["prompt", "kind", "answer", "count"]
        return [head, *(row for bar in figure.bars for row in _answers(bar))]
    return _of_panel(figure)


def _answers(bar: Bar) -> Iterator[list[Value]]:
    for answer, count in bar.right:
        yield [bar.label, "right", answer, count]
    if bar.others:
        yield [bar.label, "right", f"({bar.more} more)", bar.others]
    if bar.wrong:
        yield [bar.label, "wrong", None, bar.wrong]


def _of_panel(panel: Panel) -> list[list[Value]]:
    """The places across, sorted, and what each curve, cloud, band or set of bars has there."""
    if panel.bars:
        series = [(b.label or panel.name, b.names, b.values) for b in panel.bars]
    else:
        lines = (*panel.curves, *panel.points)
        series = [(_name(line.name, line.label, panel), line.x, line.y) for line in lines]
        for band in panel.bands:
            name = _name(band.name, band.label, panel)
            series += [(f"{name}: low", band.x, band.low), (f"{name}: high", band.x, band.high)]
    columns: list[dict[tuple[float | str, int], float]] = []
    for _, x, y in series:
        column: dict[tuple[float | str, int], float] = {}
        times: dict[float | str, int] = {}
        for place, value in zip(x, y, strict=True):
            times[place] = times.get(place, 0) + 1  # a cloud may have several values at one place
            column[place, times[place]] = value
        columns.append(column)
    keys = dict.fromkeys(key for column in columns for key in column)
    places = list(keys) if panel.bars else sorted(keys)
    head = _distinct([panel.across, *(name for name, *_ in series)])
    return [[*head], *([key[0], *(column.get(key) for column in columns)] for key in places)]


def _name(name: str, label: str, panel: Panel) -> str:
    return name or label or panel.name


def _distinct(names: Sequence[str]) -> list[str]:
    times: dict[str, int] = {}
    found = []
    for name in names:
        times[name] = times.get(name, 0) + 1
        found.append(f"{name} ({times[name]})" if times[name] > 1 else name)
    return found


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def _like(name: str, metrics: Iterable[str]) -> str:
    guess = nearest(name, metrics) or next((key for key in metrics if "/" in key), None)
    return f", as {guess}" if guess else ""


def _runs(parts: Parts) -> Sequence[Run]:
    return (parts.run,) if isinstance(parts, RunParts) else parts.runs


def _suffix(output: Path, known: Iterable[str], what: str) -> str:
    suffix = output.suffix.lower()
    if suffix not in known:
        *some, last = known
        raise ValueError(
            f"output: {what} is written as {', '.join(some)} or {last}, and {str(output)!r} ends "
            f"otherwise; write {output.with_suffix(some[0]).name!r}"
        )
    return suffix


def write_file(output: Path, data: bytes, what: str = "output") -> Path:
    """Put a file in place whole; `what` begins the message of a ValueError."""
    try:
        with atomic(output) as part:
            part.write_bytes(data)
    except OSError as error:
        raise ValueError(f"{what}: cannot write {str(output)!r}: {error.strerror}") from None
    return output
