"""Parts of a page by name; its figures and tables as separate files.

A figure's CSV has the drawn data: the horizontal axis in the first column, then a column per curve,
scatter plot or set of bars, and two per band. A curve of more than `curves.POINTS` points is drawn
and written as means of blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._names import nearest, unknown
from ..logs.files import atomic
from ..logs.run import Run
from . import tables
from .answers import Answers, Bar, BarFigure, answers_of, answers_of_all, picture_of_bars
from .dynamics import Dynamics, dynamics_of
from .dynamics.pooled import pooled_panels
from .figures import BLUE, Panel, picture_of, styled, svg_of
from .law import law_of
from .overlays import comparison_panels, metric_panel
from .panels import run_panels
from .runs import labels, rows_of
from .seeds import Entry, entries_of, spreads_of
from .tables import Table, Value, as_csv, as_latex, as_markdown, csv_text
from .tokens import with_dumps

if TYPE_CHECKING:
    from .picture import Picture

Figure = Panel | BarFigure
FIGURES = (".svg", ".png", ".csv")
TABLES = {".md": as_markdown, ".tex": as_latex, ".csv": as_csv}


@dataclass(frozen=True)
class Parts:
    """The parts of a single run's page, or of a page that compares several runs."""

    runs: tuple[Run, ...]
    alone: bool

    @cached_property
    def entries(self) -> list[Entry]:
        if self.alone:
            return [Entry("", (0,), BLUE, "-")]
        return entries_of(self.runs, labels(self.runs))

    @cached_property
    def answers(self) -> Answers | None:
        return answers_of(self.runs[0]) if self.alone else answers_of_all(self.runs, self.entries)

    @cached_property
    def dynamics(self) -> Dynamics:
        return dynamics_of(self.runs[0])

    def figures(self) -> Iterator[Figure]:
        """Yield every figure; those that are slow to make come last."""
        if self.alone:
            yield from run_panels(self.runs[0])
        else:
            yield from comparison_panels(self.runs, self.entries)
            yield from pooled_panels(self.runs, self.entries)
        yield from self.answers.figures if self.answers else ()
        if self.alone:
            for section in self.dynamics.sections:
                yield from section.panels
            if law := law_of(self.runs[0]).panel:
                yield law

    def tables(self) -> Iterator[Table]:
        """Yield every table, including empty ones."""
        rows = rows_of(self.runs)
        yield tables.results(rows)
        if self.alone:
            yield tables.evaluation(self.runs[0])
        else:
            yield tables.seeds(spreads_of(self.entries, rows, self.runs), rows)
        if self.answers:
            yield tables.answers_table(self.answers)
        if self.alone:
            yield tables.tokens(self.dynamics)
            yield tables.estimators(self.dynamics)
        else:
            yield tables.runs_table(self.runs, rows)


def named(figures: Iterable[Figure]) -> Iterator[tuple[str, Figure]]:
    """Make figure names unique: the second figure of a name gets the suffix `_2`."""
    seen: Counter[str] = Counter()
    for figure in figures:
        seen[figure.name] += 1
        again = seen[figure.name]
        yield figure.name + (f"_{again}" if again > 1 else ""), figure


def parts_of(runs: Run | Sequence[Run]) -> Parts:
    """Parts of a run's page, or, for a sequence of any length, of a comparison's page."""
    if isinstance(runs, Run):
        return Parts((with_dumps(runs),), alone=True)
    if not runs:
        raise ValueError("runs is empty; name at least one run")
    return Parts(tuple(runs), alone=False)


def names_of(parts: Parts) -> tuple[dict[str, str], dict[str, str]]:
    figures = {name: figure.title for name, figure in named(parts.figures())}
    return figures, {table.name: table.title for table in parts.tables() if table.rows}


def figure_named(parts: Parts, name: str) -> Figure:
    """Return a page's figure by name, or a figure of a logged metric of that name."""
    asked, found = _plain(name), []
    for known, figure in named(parts.figures()):
        if known == asked:
            return figure
        found.append(known)
    if not (panel := metric_panel(parts.runs, parts.entries, name)).empty:
        return panel
    if any(asked == table.name for table in parts.tables()):
        also = f" {asked!r} is a table."
    else:
        metrics = dict.fromkeys(key for run in parts.runs for key in run.names)
        guess = nearest(name, metrics) or next((key for key in metrics if "/" in key), None)
        also = f" Or a metric that is logged{f', as {guess}' if guess else ''}."
    raise ValueError(unknown("figure", name, found) + also)


def table_named(parts: Parts, name: str) -> Table:
    known = {table.name: table for table in parts.tables() if table.rows}
    if (found := known.get(_plain(name))) is not None:
        return found
    raise ValueError(unknown("table", name, known))


def write_figure(parts: Parts, name: str, output: Path) -> Path:
    """Write a figure as SVG, PNG (200 dpi) or CSV, by the file's extension; return its path."""
    suffix = _suffix(output, FIGURES, "a figure")
    figure = figure_named(parts, name)
    if suffix == ".csv":
        return write_file(output, csv_text(numbers_of(figure)).encode("utf-8"))
    with styled():
        drawn = picture(figure)
        return write_file(output, drawn.png() if suffix == ".png" else svg_of(drawn))


def write_table(parts: Parts, name: str, output: Path) -> Path:
    """Write a table as Markdown, LaTeX or CSV, by the file's extension; return its path."""
    suffix = _suffix(output, TABLES, "a table")
    return write_file(output, TABLES[suffix](table_named(parts, name)).encode("utf-8"))


def picture(figure: Figure, size: tuple[float, float] | None = None) -> Picture:
    """Draw a figure with matplotlib, within `styled`; `size` of a panel is in inches."""
    if isinstance(figure, BarFigure):
        return picture_of_bars(figure.bars, figure.color)
    return picture_of(figure, size)


def numbers_of(figure: Figure) -> list[list[Value]]:
    """Sorted horizontal positions, and the values of each curve, cloud, band or bars there."""
    if isinstance(figure, BarFigure):
        head: list[Value] = ["prompt", "kind", "answer", "count"]
        return [head, *(row for bar in figure.bars for row in _answers(bar))]
    if figure.bars:
        series = [(b.label or figure.name, b.names, b.values) for b in figure.bars]
    else:
        lines = (*figure.curves, *figure.points)
        series = [(line.name or line.label or figure.name, line.x, line.y) for line in lines]
        for band in figure.bands:
            name = band.name or band.label or figure.name
            series += [(f"{name}: low", band.x, band.low), (f"{name}: high", band.x, band.high)]
    # a cloud may have several values at one position
    columns = [dict(zip(_each_time(x), y, strict=True)) for _, x, y in series]
    keys = dict.fromkeys(key for column in columns for key in column)
    places = list(keys) if figure.bars else sorted(keys)
    heads = _each_time([figure.across, *(name for name, *_ in series)])
    names = [f"{name} ({time})" if time > 1 else name for name, time in heads]
    return [names, *([key[0], *(column.get(key) for column in columns)] for key in places)]


def _each_time(values: Iterable[Any]) -> Iterator[tuple[Any, int]]:
    """Yield each value with its occurrence count so far, from 1."""
    seen: Counter[Any] = Counter()
    for value in values:
        seen[value] += 1
        yield value, seen[value]


def _answers(bar: Bar) -> Iterator[list[Value]]:
    for answer, count in bar.right:
        yield [bar.label, "right", answer, count]
    if bar.others:
        yield [bar.label, "right", f"({bar.more} more)", bar.others]
    if bar.wrong:
        yield [bar.label, "wrong", None, bar.wrong]


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")


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
    """Write a file atomically; `what` begins the message of a ValueError."""
    try:
        with atomic(output) as part:
            part.write_bytes(data)
    except OSError as error:
        raise ValueError(f"{what}: cannot write {str(output)!r}: {error.strerror}") from None
    return output
