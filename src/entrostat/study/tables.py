"""Print results of runs as tables in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .._text import counted, print_whole, say
from ..report.runs import apart, k_words

if TYPE_CHECKING:
    from rich.table import Table

    from ..report import Row
    from .claims import Decided
    from .results import Group, Interval, Results

_FILES = 4  # maximum number of experiment names in a line
_NAME = 18  # minimum width of a name
USUAL = ("entropy, end", "kept", "avg@k", "pass@k", "distinct")  # shown for every group


def plain_table(title: str | None) -> Table:
    """A table that fits into 80 columns."""
    from rich import box
    from rich.table import Table

    return Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def print_numbers(
    title: str, head: Sequence[str], rows: Iterable[Sequence[str]], least: int = 6
) -> None:
    """Print names, wrapped to at least `least` columns if space is short, and numbers."""
    from rich.markup import escape

    table = plain_table(title)
    table.add_column(head[0], overflow="fold", min_width=least)
    for column in head[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    for name, *cells in rows:
        table.add_row(escape(name), *cells)
    print_whole(table)


def print_table(rows: Sequence[Row]) -> None:
    """Print a row per run: entropy and scores before and after."""
    k = k_words(rows)
    head = ("run", "entropy", "kept", "target", f"avg@{k}", f"pass@{k}", "distinct", "time")
    shown = [
        (
            row.run.name,
            f"{_figure(row.entropy_before, 2)}→{_figure(row.entropy_after, 2)}",
            "-" if row.entropy_kept is None else f"{row.entropy_kept:.0f}%",
            _figure(row.target, 2),
            f"{_figure(row.avg_before, 2)}→{_figure(row.avg_after, 2)}",
            f"{_figure(row.pass_before, 2)}→{_figure(row.pass_after, 2)}",
            f"{_figure(row.distinct_before, 1)}→{_figure(row.distinct_after, 1)}",
            "-" if row.seconds is None else f"{row.seconds:.0f}s",
        )
        for row in rows
    ]
    least = min(max((len(row.run.name) for row in rows), default=0), _NAME)
    print_numbers("before → after training; entropy in nats per token", head, shown, least)
    say(f"distinct: different right answers among {k} samples of a prompt")
    for note in apart(rows):
        say(f"note: {note}")


def print_groups(groups: Sequence[Group], asked: Sequence[str] = ()) -> None:
    """Print means over seeds: the file's columns, or for settings of several seeds the usual."""
    groups = [group for group in groups if len(group.seeds) > 1 or (asked and group.seeds)]
    if not groups:
        return
    from rich.markup import escape

    table = plain_table("over n seeds: mean ± 95% interval")
    columns = [w for w in asked or USUAL if any(w in group.figures for group in groups)]
    table.add_column("settings", no_wrap=True)
    for column in ("n", *columns):
        least = max(map(len, column.split()))
        table.add_column(escape(column), justify="right", min_width=least)
    for group in groups:
        cells = [_interval(group.figures.get(column)) for column in columns]
        table.add_row(escape(group.name), str(len(group.seeds)), *cells)
    print_whole(table)


def print_claims(results: Results) -> None:
    from .claims import LEAST  # imports scipy, which results need too

    if told := results.told:
        title = f"{counted(len(told), 'claim')}; effect: mean over seeds, 95% interval"
        rows = [(one.claim.id, one.verdict, _effect(one), f"{one.claim.least:g}") for one in told]
        print_numbers(title, ("claim", "verdict", "effect", "from"), rows, _NAME)
    for one in told:
        if not one.effects:
            say(f"{one.claim.id}: {one.why}")
    if few := sum(0 < len(one.effects) < LEAST for one in told):
        say(f"{counted(few, 'claim')} with fewer than {LEAST} seeds, which decide nothing")
    if waiting := len(results.waiting):
        say(f"{counted(waiting, 'claim')} whose trainings are not here: nothing is said")
        given = {each.name for each in results.experiments}
        others = sorted({one.claim.experiment for one in results.waiting} - given)
        if others:
            more = f" and {len(others) - _FILES} more" * (len(others) > _FILES)
            say(f"no study file among those given: {', '.join(others[:_FILES])}{more}")


def _effect(one: Decided) -> str:
    text = "-" if one.estimate is None else f"{one.estimate:.3g}"
    interval = one.interval("{:.2g}".format)
    return text + (f" ({interval})" if interval else "")


def _interval(value: Interval | None) -> str:
    # a line that is too narrow breaks before the interval
    if value is None:
        return "-"
    return f"{value.mean:.2f}" + f" ±{value.half:.2f}" * (value.n > 1)


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
