"""The forms of a table: CSV, Markdown, HTML, a notebook, JSON, a console's figures."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from html.parser import HTMLParser
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from .names import complete, guess
from .source import (
    ANSI,
    Given,
    UnreadableError,
    clean,
    document,
    head_of,
    lines,
    number,
    parse,
    records,
    step_of,
)

DEPTH = 4
HEADER_WITHIN = 50  # lines
PREAMBLE = 50_000  # lines of a console before its first figures


class Cells(NamedTuple):
    """Cells of a row by their columns' names, and the title of their table where it has one."""

    line: int
    values: dict[str, Any]
    title: str = ""


Titled = tuple[int, list[str] | None, str]  # a line's cells, None where a table begins, its title


def rows_in(path: Path, given: Given) -> Iterator[Cells]:
    """Rows of a file of any form."""
    head = head_of(path, 400)
    if notebook(path):
        yield from _under_headers(_outputs(path, given), given)
    elif any("<table" in text.lower() or "<tr" in text.lower() for text in head):
        yield from _under_headers(_html(document(path, given)), given)
    elif (found := header(path, given)) is not None:
        yield from _csv(path, given, found)
    elif sum(text.lstrip()[:1] == "|" for text in head) > 2:
        yield from _under_headers(_markdown(path, given), given)
    elif any(is_line(text) for _, text, _ in islice(lines(path, Given(path)), PREAMBLE)):
        yield from (
            Cells(count, _figures(ANSI.sub("", text)) or {})
            for count, text, _ in lines(path, given)
            if is_line(text)
        )
    else:
        yield from (Cells(count, flatten(record)) for count, record in records(path, given))


def is_record(record: Mapping[str, Any]) -> bool:
    """Whether a JSON object looks like a row."""
    if len(record) < 2 or len(record) > 5000:
        return False
    flat = flatten(record)
    found = guess(flat, {})
    return complete(found, {}) and step_of(part_of(flat[found["step"]])) is not None


def flatten(record: Mapping[str, Any]) -> dict[str, Any]:
    """Nested objects as names with "/", down to a depth."""
    flat: dict[str, Any] = {}
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


def part_of(value: Any) -> Any:
    """A step out of "240/960"."""
    return value.partition("/")[0] if isinstance(value, str) else value


# ------------------------------------------------------------------ CSV


def header(path: Path, given: Given) -> tuple[int, str, list[str]] | None:
    """Line, delimiter and names of a CSV's header; None where there is none in the first lines.

    A header that lacks columns is taken where a row of as many cells, mostly numbers, follows it.
    """
    head = enumerate(head_of(path, HEADER_WITHIN), 1)
    plain = [(n, text) for n, text in head if text.lstrip()[:1] not in ("{", "[", "|", "<")]
    almost: tuple[int, str, list[str]] | None = None
    for place, (count, text) in enumerate(plain):
        for delimiter in ",;\t":
            if delimiter not in text or len(text) > 200_000:
                continue
            names = [name.strip() for name in _split(text, delimiter) or []]
            if complete(guess(names, given.columns), given.columns) or _of_tensorboard(names):
                return count, delimiter, names
            after = plain[place + 1][1] if place + 1 < len(plain) else ""
            row = _split(after, delimiter) or []
            numbers = sum(number(cell) is not None for cell in row)
            named = any(number(name) is None and name for name in names)
            if almost is None and len(row) == len(names) > 1 and named and 2 * numbers >= len(row):
                almost = count, delimiter, names
    return almost


def _split(text: str, delimiter: str) -> list[str] | None:
    try:
        return next(csv.reader([text], delimiter=delimiter, skipinitialspace=True), None)
    except csv.Error:
        return None


def _of_tensorboard(names: list[str]) -> bool:
    return [name.lower() for name in names] == ["wall time", "step", "value"]


def _csv(path: Path, given: Given, found: tuple[int, str, list[str]]) -> Iterator[Cells]:
    at, delimiter, names = found
    names = [name or f"column {i}" for i, name in enumerate(names, 1)]
    run, tag = "", ""
    if _of_tensorboard(names) and "-tag-" in path.stem and "Value" not in given.columns.values():
        # the tag, of which the interface makes a file name
        run, _, tag = re.sub(r"^run-", "", path.stem).rpartition("-tag-")
        names = [*names[:2], tag]
    # W&B's minima and maxima of a step repeat the value
    kept = [i for i, name in enumerate(names) if not name.endswith(("__MIN", "__MAX"))]
    for count, text, _ in lines(path, given):
        if count <= at or not text.strip():
            continue
        row = _split(text, delimiter)
        if row is None or len(row) != len(names):
            has = "no" if row is None else str(len(row))
            given.problem(path, count, f"{has} cells where the header has {len(names)}")
            continue
        yield Cells(count, {names[i]: row[i] for i in kept if row[i].strip()}, run if tag else "")


# ------------------------------------------------------------------ Markdown, HTML, notebooks

_RULE = re.compile(r"\s*\|?[\s:|-]*-{2,}[\s:|-]*\|?\s*")


def _markdown(path: Path, given: Given) -> Iterator[Titled]:
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


def _html(text: str) -> list[Titled]:
    reader = _Tables()
    reader.feed(text)
    reader.close()
    return [(place, row, title) for place, (row, title) in enumerate(reader.found, 1)]


def _under_headers(rows: Iterable[Titled], given: Given) -> Iterator[Cells]:
    """Cells under the names of their table; tables without a step and figures are passed over."""
    names: list[str] | None = None
    for count, row, title in rows:
        if row is None:
            names = []
        elif not names:
            names = row if complete(guess(row, given.columns), given.columns) else None
        elif len(row) == len(names):
            yield Cells(count, {n: c for n, c in zip(names, row, strict=True) if c}, clean(title))


def notebook(path: Path) -> bool:
    head = "".join(head_of(path, 200))[:100_000]
    return head.lstrip()[:1] == "{" and '"cells"' in head and '"cell_type"' in head


def _outputs(path: Path, given: Given) -> Iterator[Titled]:
    """Rows of the tables in a notebook's outputs."""
    try:
        cells = parse(document(path, given)).get("cells", [])
    except (UnreadableError, AttributeError) as error:
        given.problem(path, None, f"a notebook that cannot be read: {error}")
        return
    for cell in cells if isinstance(cells, list) else []:
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
_VALUE = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)"
_FIGURE = re.compile(
    r"\s*(?P<name>[^|:=]*?[A-Za-z)\]_.])\s*(?:[:=]\s*|\s)"
    rf"(?P<value>{_VALUE})(?=$|[\s%/),;\]a-zA-Z])"
)
_PAIR = re.compile(rf"([A-Za-z][\w./@-]*)=({_VALUE})(?=$|[\s,;|])")


def is_line(text: str) -> bool:
    """Whether a line of a console has a step and an entropy or a score."""
    low = text.lower()
    if ("entropy" not in low and "reward" not in low) or len(text) > 20_000:
        return False
    if text.lstrip()[:1] in ("{", "[", "|", "<"):
        return False
    found = _figures(ANSI.sub("", text))
    return found is not None and complete(guess(found, {}), {})


def _figures(text: str) -> dict[str, Any] | None:
    """Figures of a line that names its step; None where it names none."""
    if (at := _AT.search(text)) is None:
        return None
    found: dict[str, Any] = {"step": at[1]}
    found |= dict(_PAIR.findall(text))
    for part in re.split(r"\s*[|│{}]\s*|[,;]\s+|\s+-\s+", text.replace("'", "")):
        if (figure := _FIGURE.match(part)) and not _AT.search(part):
            found.setdefault(figure["name"].strip(" \t-*•[(").strip(), figure["value"])
    return found
