"""`entrostat report` with --figure, --table or --list: a part of the page in place of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .._text import say

if TYPE_CHECKING:
    from ..logs.run import Run


def export(
    runs: Run | Sequence[Run], figure: str | None, table: str | None, output: str | None
) -> int:
    """Write a figure or a table of the page of these runs, or list their names."""
    from ..report import export as of_page
    from ..report.figures import slug

    parts = of_page.parts_of(runs)
    if figure is not None:
        path = Path(output) if output is not None else Path(f"{slug(figure)}.svg")
        say(f"figure: {of_page.write_figure(parts, figure, path)}")
    elif table is not None and output is not None:
        say(f"table: {of_page.write_table(parts, table, Path(output))}")
    elif table is not None:
        say(of_page.as_markdown(of_page.table_named(parts, table)).rstrip("\n"))
    elif output is not None:
        raise ValueError(
            f"report: --list prints names and writes no {output!r}; name one with --figure or "
            "--table"
        )
    else:
        figures, tables = of_page.names_of(parts)
        _say_names("figures (--figure)", figures)
        _say_names("tables (--table)", tables)
    return 0


def _say_names(heading: str, names: Mapping[str, str]) -> None:
    width = max(map(len, names), default=0)
    say(heading)
    for name, title in names.items():
        say(f"  {name.ljust(width)}  {title}")
