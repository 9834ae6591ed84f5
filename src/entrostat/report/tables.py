"""The tables of a page as data, and as Markdown, LaTeX or CSV.

Names and answers in them are untrusted: every cell is escaped.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .._text import printable
from ..logs.lines import number
from ..logs.run import Run
from .answers import Answers, Bar, words_of
from .dynamics import AGREEMENTS, Dynamics
from .runs import Row, k_words
from .seeds import MEASURES, Spread

Value = str | int | float | None
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    # after the end of a row these would be parsed as its arguments
    "[": "{[}", "]": "{]}", "*": "{*}",
    # non-ASCII characters of our own headings
    "→": r"$\rightarrow$", "—": "---", "η": r"$\eta$",
    "\N{MULTIPLICATION SIGN}": r"$\times$", "…": r"\dots{}",
}  # fmt: skip
_LATEX_SIGNS = re.compile("-(?=-)|[" + re.escape("".join(_LATEX)) + "]")  # "--" would become a dash
_MARKDOWN_SIGNS = re.compile(
    r"[\\`*_\[\]<>|~&$]|:(?=//)|(?<=\w)@(?=[a-z])|(?<=www)\.", re.IGNORECASE
)
_MISSING = "—"


@dataclass(frozen=True)
class Column:
    """A column of one value per row, or of several that belong together."""

    head: str  # its heading, unit included
    keys: tuple[str, ...]  # names of the values, each a CSV column
    form: str = "{}"  # format of a row's values, for `str.format`


@dataclass(frozen=True)
class Table:
    name: str  # name in commands and file names
    title: str
    columns: tuple[Column, ...]
    # for each row a tuple of values per column, None for missing values
    rows: tuple[tuple[tuple[Value, ...], ...], ...]


def results(rows: Sequence[Row]) -> Table:
    k = k_words(rows)
    columns = [
        Column("run", ("label",)),
        _change("entropy, start → end (nats per token)", "entropy_before", "entropy_after"),
        Column("kept (%)", ("entropy_kept",), "{:.1f}"),
        Column("target (nats per token)", ("target",), "{:.3f}"),
        _change(f"avg@{k}, before → after", "avg_before", "avg_after"),
        _change(f"pass@{k}, before → after", "pass_before", "pass_after"),
        _change("distinct right, before → after", "distinct_before", "distinct_after", 2),
        _change("mean reward, start → end", "reward_first", "reward_last"),
        Column("iterations", ("iterations",)),
        Column("time (s)", ("seconds",), "{:.0f}"),
    ]
    return _table("results", "Results", columns, [vars(row) for row in rows])


def seeds(bands: Sequence[Spread], rows: Sequence[Row]) -> Table:
    k = k_words(rows)
    columns = [
        Column("settings", ("label",)),
        Column("seeds", ("seeds",)),
        Column("runs", ("runs",)),
    ]
    heads = ("entropy, end (nats per token)", "kept (%)", f"avg@{k}, after", f"pass@{k}, after",
             "mean reward, end")  # fmt: skip
    records = [
        {
            "label": band.label,
            "seeds": len(band.runs),
            "runs": ", ".join(f"{name} (seed {seed})" for name, seed in band.runs),
        }
        for band in bands
    ]
    for i, (head, (name, digits)) in enumerate(zip(heads, MEASURES, strict=True)):
        keys, one = (name, f"{name}_low", f"{name}_high"), f"{{:.{digits}f}}"
        columns.append(Column(head, keys, f"{one} [{one}, {one}]"))
        for record, band in zip(records, bands, strict=True):
            record |= dict(zip(keys, band.ranges[i] or (), strict=False))
    return _table("seeds", "Over seeds", columns, records)


def runs_table(runs: Sequence[Run], rows: Sequence[Row]) -> Table:
    names = ("run", "method", "task", "model", "seed", "directory")
    records = [
        {"run": row.label, "method": run.methods, "task": run.task, "directory": run.name}
        | {key: _text(run.config.get(key)) for key in ("model", "seed")}
        for run, row in zip(runs, rows, strict=True)
    ]
    return _table("runs", "Runs", [Column(name, (name,)) for name in names], records)


def evaluation(run: Run) -> Table:
    columns = [
        Column("iteration", ("iteration",)),
        Column("set", ("split",)),
        Column("prompts", ("prompts",), "{:.0f}"),
        Column("k", ("k",), "{:.0f}"),
        Column("avg@k", ("avg@k",), "{:.3f}"),
        Column("pass@k", ("pass@k",), "{:.3f}"),
        Column("distinct right", ("distinct",), "{:.2f}"),
        Column("entropy of responses (nats per token)", ("entropy",), "{:.3f}"),
        Column("entropy on prompts (nats per token)", ("prompt_entropy",), "{:.3f}"),
    ]
    records = [
        {key: number(value) for key, value in line.items()}
        | {"iteration": line["iteration"], "split": _text(line.get("split"))}
        for line in run.evaluation
    ]
    return _table("evaluation", "Evaluation", columns, records)


def answers_table(answers: Answers) -> Table:
    # policies are numbered, as their figures are: a title is long and untrusted
    keys = [f"answers_{i}" for i, _ in enumerate(answers.titles, 1)]
    columns = [Column(title, (key,)) for title, key in zip(answers.titles, keys, strict=True)]
    records = [
        {"prompt": label} | dict(zip(keys, map(_answers, bars), strict=True))
        for label, bars in answers.table
    ]
    columns = [Column("prompt", ("prompt",)), *columns]
    return _table("answers", "What the policy says", columns, records)


def estimators(dynamics: Dynamics) -> Table:
    words = {
        "mse_eta_l": "MSE, times η/L",
        "scaled_mse": "MSE, scaled",
        "mse": "MSE, as it stands",
        "pcc": "PCC",
        "srcc": "SRCC",
        "sign": "same sign",
    }
    columns = [Column("estimator", ("estimator",))]
    for group, keys in AGREEMENTS.items():
        for key in keys:
            # errors that are not shares get two significant digits
            form = "{:.2g}" if key.startswith("mse") else "{:.2f}"
            columns.append(Column(f"{group}: {words[key]}", (f"{group}_{key}",), form))
    records = [
        {"estimator": row.name}
        | {
            f"{group}_{key}": value
            for group, keys in AGREEMENTS.items()
            for key, value in zip(keys, getattr(row, group), strict=True)
        }
        for row in dynamics.estimators
    ]
    return _table("estimators", "Estimators, over the analysed iterations", columns, records)


def tokens(dynamics: Dynamics) -> Table:
    columns = [
        Column("token", ("token",)),
        Column("times", ("count",)),
        Column("influence (nats)", ("influence",), "{:+.2e}"),
        Column("change (nats)", ("change",), "{:+.2e}"),
    ]
    records = [{"token": row.text} | vars(row) for row in dynamics.tokens]
    return _table("tokens", "Influence by decoded token", columns, records)


def _table(
    name: str, title: str, columns: Sequence[Column], records: Sequence[Mapping[str, Value]]
) -> Table:
    """Build a table of the first column and the columns that have values."""
    kept = [
        column
        for i, column in enumerate(columns)
        if i == 0 or any(record.get(key) is not None for record in records for key in column.keys)
    ]
    rows = (tuple(tuple(map(record.get, column.keys)) for column in kept) for record in records)
    return Table(name, title, tuple(kept), tuple(rows))


def _change(head: str, before: str, after: str, digits: int = 3) -> Column:
    return Column(head, (before, after), f"{{:.{digits}f}} → {{:.{digits}f}}")


def _answers(bar: Bar) -> str:
    said = [words_of(answer, count) for answer, count in bar.right]
    said += [f"{bar.more} more"] * bool(bar.more)
    wrong = f"; {bar.wrong} wrong" if bar.wrong else ""
    return f"{', '.join(said)} ({bar.distinct} different{wrong})".lstrip()


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def as_markdown(table: Table) -> str:
    """Format as a pipe table (GitHub's Markdown)."""
    lines = _texts(table, lambda text: _MARKDOWN_SIGNS.sub(r"\\\g<0>", text))
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
    """Format as comma-separated values under the field names, numbers in full."""
    head = [key for column in table.columns for key in column.keys]
    return csv_text([head, *([v for cell in row for v in cell] for row in table.rows)])


def csv_text(rows: Sequence[Sequence[Value]]) -> str:
    """Format rows as CSV, with numbers as Python writes them, which can be read back exactly.

    A text that a spreadsheet would evaluate (=, +, - or @ first) gets a leading apostrophe, unless
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


def _in_latex(text: str) -> str:
    return _LATEX_SIGNS.sub(lambda match: _LATEX.get(match[0], "-{}"), text)


def _line(text: str) -> str:
    return printable(" ".join(text.split()))


def _texts(table: Table, escape: Callable[[str], str], minus: str = "-") -> list[list[str]]:
    """Headings and the rows' cells, escaped; `minus` replaces the sign of a negative number."""
    rows = [
        [_cell(column, v, escape, minus) for column, v in zip(table.columns, row, strict=True)]
        for row in table.rows
    ]
    return [[escape(_line(column.head)) for column in table.columns], *rows]


def _cell(column: Column, values: Sequence[Value], escape: Callable[[str], str], minus: str) -> str:
    """Format a cell's values by its column; a dash for a missing cell."""
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
    return [
        not any(isinstance(value, str) for row in table.rows for value in row[i])
        for i in range(len(table.columns))
    ]
