"""A table as Markdown, LaTeX or CSV. Names and answers in it are data: every cell is escaped."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence

from .._text import printable
from ..logs.lines import number
from .tables import Column, Table, Value

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    # after the end of a row these would be its arguments
    "[": "{[}", "]": "{]}", "*": "{*}",
    # what our own headings have beyond ASCII
    "→": r"$\rightarrow$", "—": "---", "η": r"$\eta$",
    "\N{MULTIPLICATION SIGN}": r"$\times$", "…": r"\dots{}",
}  # fmt: skip
_LATEX_SIGNS = re.compile("-(?=-)|[" + re.escape("".join(_LATEX)) + "]")  # "--" would be a dash
_MARKDOWN_SIGNS = re.compile(
    r"[\\`*_\[\]<>|~&$]|:(?=//)|(?<=\w)@(?=[a-z])|(?<=www)\.", re.IGNORECASE
)
_MISSING = "—"


def as_markdown(table: Table) -> str:
    """A pipe table (GitHub's Markdown)."""
    lines = _texts(table, _in_markdown)
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(table.columns))]
    right = _right(table)

    def row(cells: Sequence[str]) -> str:
        parts = zip(cells, widths, right, strict=True)
        return "| " + " | ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in parts) + " |"

    rule = ["-" * (w - 1) + (":" if r else "-") for w, r in zip(widths, right, strict=True)]
    return "\n".join(map(row, [lines[0], rule, *lines[1:]])) + "\n"


def as_latex(table: Table) -> str:
    r"""A `tabular` with the rules of the package booktabs."""
    head, *body = [" & ".join(line) + r" \\" for line in _texts(table, _in_latex, "$-$")]
    columns = "".join("r" if right else "l" for right in _right(table))
    lines = ["% \\usepackage{booktabs}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head]
    return "\n".join([*lines, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]) + "\n"


def as_csv(table: Table) -> str:
    """Comma-separated values under the names of the fields, numbers in full."""
    head = [key for column in table.columns for key in column.keys]
    return csv_text([head, *([v for cell in row for v in cell] for row in table.rows)])


def csv_text(rows: Sequence[Sequence[Value]]) -> str:
    """Rows as CSV: numbers as Python writes them, which any reader takes back to the last bit.

    A text that a spreadsheet would compute (=, +, - or @ first) gets an apostrophe in front, unless
    it is a number.
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_field(v) for v in row] for row in rows)
    return text.getvalue()


def _field(value: Value) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return repr(value)
    value = printable(value)
    return f"'{value}" if value[:1] in set("=+-@\t") and not _is_number(value) else value


def _is_number(text: str) -> bool:
    try:
        return number(float(text)) is not None
    except ValueError:
        return False


def _in_markdown(text: str) -> str:
    return _MARKDOWN_SIGNS.sub(r"\\\g<0>", text)


def _in_latex(text: str) -> str:
    return _LATEX_SIGNS.sub(lambda match: _LATEX.get(match[0], "-{}"), text)


def _line(text: str) -> str:
    return printable(" ".join(text.split()))


def _texts(table: Table, escape: Callable[[str], str], minus: str = "-") -> list[list[str]]:
    rows = [
        [_cell(column, v, escape, minus) for column, v in zip(table.columns, row, strict=True)]
        for row in table.rows
    ]
    return [[escape(_line(column.head)) for column in table.columns], *rows]


def _cell(column: Column, values: Sequence[Value], escape: Callable[[str], str], minus: str) -> str:
    """A cell's values as its column writes them; a dash for one that is not there."""
    if all(value is None for value in values):
        return escape(_MISSING)
    parts = iter(values)

    def one(piece: str) -> str:
        if not piece.startswith("{"):
            return escape(piece)
        value = next(parts)
        if value is None or isinstance(value, str):
            return escape(_MISSING if value is None else _line(value))
        return piece.format(value).replace("-", minus)

    return "".join(map(one, re.split(r"(\{[^}]*\})", column.form)))


def _right(table: Table) -> list[bool]:
    """Which columns are of numbers, to be set flush right."""
    return [
        not any(isinstance(value, str) for row in table.rows for value in row[i])
        for i in range(len(table.columns))
    ]
