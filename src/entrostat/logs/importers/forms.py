"""The forms of a table: CSV, Markdown, HTML, a notebook, JSON, a console's figures."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html.parser import HTMLParser
from itertools import chain, islice
from pathlib import Path
from typing import Any

from .names import ENTROPY, KINDS, SCORE, STEP, choose, find, fold, folded
from .rows import Row
from .source import (
    ANSI,
    Given,
    UnreadableError,
    clean,
    document,
    lines,
    number,
    parse,
    records,
    short,
    step_of,
)

HEADER_WITHIN = 50
DEPTH = 4
PEEK = 1000
"""Rows in which columns are looked for: an early row may lack one."""
PREAMBLE = 50_000  # lines of a console before its first figures
RUN_NAMES = {"run", "run_id", "run_name", "experiment", "experiment_name", "exp_name", "seed"}
Cells = dict[str, Any]


# ------------------------------------------------------------------ which columns


def guess(names: Iterable[str], columns: Mapping[str, str]) -> dict[str, str]:
    """Which column is which: kind of `KINDS` -> the source's name; kinds not found are absent.

    Args:
        names: the source's columns.
        columns: the user's choice, kind -> name, exact or in another case.
    """
    names = list(names)
    by_name = folded(names)
    found: dict[str, str] = {}
    for kind in KINDS:
        if kind in columns:
            name = columns[kind]
            name = name if name in names else by_name.get(fold(name))
        else:
            name = find(STEP, by_name) if kind == STEP else choose(kind, names)[0]
        if name is not None:
            found[kind] = name
    return found


def complete(found: Mapping[str, str], columns: Mapping[str, str]) -> bool:
    """Whether there is a step and an entropy or a score, and all that the user named."""
    return STEP in found and len(found) > 1 and columns.keys() <= found.keys()


def is_record(record: Mapping[str, Any]) -> bool:
    """Whether a JSON object looks like a row."""
    if len(record) < 2 or len(record) > 5000:
        return False
    flat = flatten(record)
    found = guess(flat, {})
    return complete(found, {}) and _step(flat[found[STEP]]) is not None


def flatten(record: Mapping[str, Any]) -> Cells:
    """Nested objects as names with "/", down to a depth."""
    flat: Cells = {}
    stack = [("", record, 0)]
    while stack:
        prefix, values, depth = stack.pop()
        for key, value in values.items():
            name = prefix + str(key)
            if isinstance(value, dict) and depth < DEPTH:
                stack.append((name + "/", value, depth + 1))
            else:
                flat.setdefault(name, value)
    return flat


def _step(value: Any) -> int | None:
    """A step, also "240/960"."""
    return step_of(value.partition("/")[0] if isinstance(value, str) else value)


# ------------------------------------------------------------------ the forms of a table


def header(path: Path, given: Given) -> tuple[int, str, list[str]] | None:
    """Line, delimiter and names of a CSV's header; None where there is none in the first lines.

    A header that lacks columns is taken where a row of as many cells, mostly numbers, follows it.
    """
    head = [*islice(lines(path, Given(given.root)), HEADER_WITHIN)]
    plain = [(n, text) for n, text, _ in head if text.lstrip()[:1] not in ("{", "[", "|", "<")]
    almost: tuple[int, str, list[str]] | None = None
    for place, (count, text) in enumerate(plain):
        for delimiter in ",;\t":
            if delimiter not in text or len(text) > 200_000:
                continue
            names = [name.strip() for name in cells(text, delimiter) or []]
            if complete(guess(names, given.columns), given.columns) or _of_tensorboard(names):
                return count, delimiter, names
            after = plain[place + 1][1] if place + 1 < len(plain) else ""
            row = cells(after, delimiter) or []
            numbers = sum(number(cell) is not None for cell in row)
            named = any(number(name) is None and name for name in names)
            if almost is None and len(row) == len(names) > 1 and named and 2 * numbers >= len(row):
                almost = count, delimiter, names
    return almost


def cells(text: str, delimiter: str) -> list[str] | None:
    """Cells of one line of a CSV; None where it is not one."""
    try:
        return next(csv.reader([text], delimiter=delimiter, skipinitialspace=True), None)
    except csv.Error:
        return None


def _of_tensorboard(names: Sequence[str]) -> bool:
    return [name.lower() for name in names] == ["wall time", "step", "value"]


def _csv(
    path: Path, given: Given, found: tuple[int, str, list[str]]
) -> Iterator[tuple[int, Cells, str]]:
    at, delimiter, names = found
    names = [name or f"column {i}" for i, name in enumerate(names, 1)]
    run, tag, _ = re.sub(r"^run-", "", path.stem).rpartition("-tag-")[0], "", ""
    if _of_tensorboard(names) and "-tag-" in path.stem and "Value" not in given.columns.values():
        tag = path.stem.rpartition("tag-")[2]  # the tag, of which the interface makes a file name
        names = [*names[:2], tag]
    # W&B's minima and maxima of a step repeat the value
    kept = [i for i, name in enumerate(names) if not name.endswith(("__MIN", "__MAX"))]
    for count, text, _ in lines(path, given):
        if count <= at or not text.strip():
            continue
        row = cells(text, delimiter)
        if row is None or len(row) != len(names):
            has = "no" if row is None else str(len(row))
            given.problem(path, count, f"{has} cells where the header has {len(names)}")
            continue
        yield count, {names[i]: row[i] for i in kept if row[i].strip()}, run if tag else ""


_RULE = re.compile(r"\s*\|?[\s:|-]*-{2,}[\s:|-]*\|?\s*")


def _markdown(path: Path, given: Given) -> Iterator[tuple[int, list[str] | None, str]]:
    """Rows of Markdown tables, None where one begins, and the heading above."""
    title, before = "", False
    for count, text, _ in lines(path, given):
        inside = text.lstrip()[:1] == "|"
        if inside and not before:
            yield count, None, title
        if inside and not _RULE.fullmatch(text):
            yield count, [cell.strip() for cell in text.strip().strip("|").split("|")], title
        elif text.startswith("#"):
            title = text.strip("# ").strip()
        before = inside


class _Tables(HTMLParser):
    """Rows of a page's tables, None where one begins; the heading above."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[list[str] | None, str]] = []
        self.cell: list[str] | None = None
        self.row: list[str] = []
        self.title, self.heading = "", False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "table":
            self.found.append((None, self.title))
        elif tag == "tr":
            self.row = []
        elif tag in ("td", "th"):
            self.cell = []
        elif self.heading or re.fullmatch(r"h[1-6]|caption", tag):
            self.heading, self.title = True, ""

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self.cell is not None:
            self.row.append("".join(self.cell).strip())
            self.cell = None
        elif tag == "tr" and self.row:
            self.found.append((self.row, self.title))
            self.row = []
        self.heading &= re.fullmatch(r"h[1-6]|caption", tag) is None

    def handle_data(self, data: str) -> None:
        if self.cell is not None:
            self.cell.append(data)
        elif self.heading:
            self.title += data.strip()


def _html(text: str) -> list[tuple[int, list[str] | None, str]]:
    reader = _Tables()
    reader.feed(text)
    reader.close()
    return [(place, row, title) for place, (row, title) in enumerate(reader.found, 1)]


def _under_headers(
    rows: Iterable[tuple[int, list[str] | None, str]], given: Given
) -> Iterator[tuple[int, Cells, str]]:
    """Cells under the names of their table; tables without a step and figures are passed over."""
    names: list[str] | None = None
    for count, row, title in rows:
        if row is None:
            names = []
        elif not names:
            names = row if complete(guess(row, given.columns), given.columns) else None
        elif len(row) == len(names):
            yield count, {n: c for n, c in zip(names, row, strict=True) if c}, clean(title)


def notebook(path: Path) -> bool:
    """Whether a file is a Jupyter notebook."""
    head = "".join(text for _, text, _ in islice(lines(path, Given(path)), 200))[:100_000]
    return head.lstrip()[:1] == "{" and '"cells"' in head and '"cell_type"' in head


def _outputs(path: Path, given: Given) -> Iterator[tuple[int, list[str] | None, str]]:
    """Rows of the tables in a notebook's outputs."""
    try:
        cells_of = parse(document(path, given)).get("cells", [])
    except (UnreadableError, AttributeError) as error:
        given.problem(path, None, f"a notebook that cannot be read: {error}")
        return
    for cell in cells_of if isinstance(cells_of, list) else []:
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        for output in outputs if isinstance(outputs, list) else []:
            data = output.get("data") if isinstance(output, dict) else None
            text = data.get("text/html") if isinstance(data, dict) else None
            yield from _html("".join(text) if isinstance(text, list) else str(text or ""))


# ------------------------------------------------------------------ a console's figures

_AT = re.compile(
    r"(?i)(?<!micro )(?<![\w/])(?:global|train|training|optimizer)?[ _-]?"
    r"(?:step|iteration|iter|update)\b\s*[:=#]?\s*\[?(\d{1,15})"
)
_FIGURE = re.compile(
    r"\s*(?P<name>[^|:=]*?[A-Za-z)\]_.])\s*(?:[:=]\s*|\s)"
    r"(?P<value>[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))(?=$|[\s%/),;\]a-zA-Z])"
)
_PAIR = re.compile(
    r"([A-Za-z][\w./@-]*)=([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))(?=$|[\s,;|])"
)


def is_line(text: str) -> bool:
    """Whether a line of a console has a step and an entropy or a score."""
    low = text.lower()
    if ("entropy" not in low and "reward" not in low) or len(text) > 20_000:
        return False
    if text.lstrip()[:1] in ("{", "[", "|", "<"):
        return False
    found = _figures(ANSI.sub("", text))
    return found is not None and complete(guess(found, {}), {})


def _figures(text: str) -> Cells | None:
    """Figures of a line that names its step; None where it names none."""
    if (at := _AT.search(text)) is None:
        return None
    found: Cells = {"step": at[1]}
    found |= dict(_PAIR.findall(text))
    for part in re.split(r"\s*[|│{}]\s*|[,;]\s+|\s+-\s+", text.replace("'", "")):
        if (figure := _FIGURE.match(part)) and not _AT.search(part):
            found.setdefault(figure["name"].strip(" \t-*•[(").strip(), figure["value"])
    return found


def _console(path: Path, given: Given) -> Iterator[tuple[int, Cells, str]]:
    for count, text, _ in lines(path, given):
        if is_line(text):
            yield count, _figures(ANSI.sub("", text)) or {}, ""


# ------------------------------------------------------------------ rows


def _cells(path: Path, given: Given) -> Iterator[tuple[int, Cells, str]]:
    """Lines, cells by name, and the table's title where a file has several."""
    quiet = Given(given.root)
    head = [text for _, text, _ in islice(lines(path, quiet), 400)]
    if notebook(path):
        yield from _under_headers(_outputs(path, given), given)
    elif any("<table" in text.lower() or "<tr" in text.lower() for text in head):
        yield from _under_headers(_html(document(path, given)), given)
    elif (found := header(path, given)) is not None:
        yield from _csv(path, given, found)
    elif sum(text.lstrip()[:1] == "|" for text in head) > 2:
        yield from _under_headers(_markdown(path, given), given)
    elif any(is_line(text) for _, text, _ in islice(lines(path, quiet), PREAMBLE)):
        yield from _console(path, given)
    else:
        yield from ((count, flatten(record), "") for count, record in records(path, given))


def found_in(path: Path, given: Given) -> bool:
    """Whether a file has rows of a table."""
    rows = islice(_cells(path, Given(given.root, given.columns)), PEEK)
    return any(complete(guess(row, given.columns), given.columns) for _, row, _ in rows)


def scan(path: Path, given: Given) -> Iterator[Row]:
    """Rows of a table; those of several runs under the names that the source gives them.

    Raises:
        ValueError: there are rows, but no column for the step.
    """
    source = _cells(path, given)
    first = [*islice(source, PEEK)]
    names = list(dict.fromkeys(name for _, row, _ in first for name in row))
    if not names:
        return
    found = guess(names, given.columns)
    if STEP not in found:
        raise ValueError(lacking(found, names, given))
    titles = len({title for _, _, title in first if title}) > 1
    charts = [name for name in names if " - " in name]
    by = _run_column(first)
    for count, row, title in chain(first, source):
        if found[STEP] not in row:
            given.problem(path, count, f"no {clean(found[STEP])}")
            continue
        told = row[found[STEP]]
        step = told.partition("/")[0] if isinstance(told, str) and "/" in told else told
        values = {key: value for key, value in row.items() if key != found[STEP]}
        run = str(row.get(by, "")) if by else title if titles or not charts else ""
        if not charts:
            yield Row(path, count, step, values, {}, clean(run)[:200])
            continue
        for chart, figures in _by_chart(values, given.columns).items():
            if figures:
                yield Row(path, count, step, figures, {}, clean(chart)[:200])


def _by_chart(values: Cells, columns: Mapping[str, str]) -> dict[str, Cells]:
    """Figures by the run that W&B puts before a column's name; only that of a chosen column."""
    chosen = [columns[kind] for kind in (ENTROPY, SCORE) if " - " in columns.get(kind, "")]
    found: dict[str, Cells] = {}
    shared = {name: value for name, value in values.items() if " - " not in name}
    for name, value in values.items():
        run, mark, metric = name.rpartition(" - ")
        if mark and (not chosen or any(each.startswith(f"{run} - ") for each in chosen)):
            found.setdefault(run, {**shared})[metric] = value
    return found


def _run_column(rows: Sequence[tuple[int, Cells, str]]) -> str | None:
    """The column that tells several runs apart; None where there is none."""
    for name in dict.fromkeys(name for _, row, _ in rows for name in row):
        values = [str(row[name]) for _, row, _ in rows if name in row]
        if fold(name) in RUN_NAMES and 1 < len(set(values)) <= len(values) / 3:
            return name
    return None


def lacking(found: Mapping[str, str], names: Iterable[str], given: Given) -> str:
    """What a table lacks, and what it has."""
    listed = ", ".join(short(name) for name in list(names)[:20]) or "none"
    asked = [f"{kind} {name!r}" for kind, name in given.columns.items() if kind not in found]
    missing = ", ".join(asked) or (STEP if STEP not in found else "entropy, and no score")
    more = " (TensorBoard's own CSV: --entropy Value)" if "'Value'" in listed else ""
    return (
        f"{clean(str(given.root))!r} has no column for {missing}; its columns: {listed}; name them "
        f"with --step, --entropy and --score{more}"
    )
