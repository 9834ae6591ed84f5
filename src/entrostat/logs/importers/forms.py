"""Read the forms of a table: CSV, Markdown, HTML, JSON, one series per file, console output."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from .names import complete, flatten, guess
from .source import TENSORBOARD, Given, clean, document, head_of, lines, number, records, step_of

HEADER_WITHIN = 50  # lines
PREAMBLE = 50_000  # lines of console output before its first metrics
LONGEST = 20_000  # characters of the longest console line that is searched for metrics
_BARS = ("|", "│", "┃")  # between the cells of a drawn table
_RULE = re.compile(r"\s*[-=+|:─-╿][-=+|:\s─-╿]*")  # of a drawn table; also box-drawing characters
_NO_HEADER = re.compile(rf"\s*[{{\[|<]|{_RULE.pattern}$")
_LONG = ("tag", "metric", "metric_name", "key", "name", "variable")  # columns of a metric's name
_DECIMAL = re.compile(r"^(-?\d+),(\d+)$")


class Cells(NamedTuple):
    """Cells of a row by column name, and the title of their table if it has one."""

    line: int
    values: dict[str, Any]
    title: str = ""


Titled = tuple[int, list[str] | None, str]  # a line's cells, None where a table begins, its title


def rows_in(path: Path, given: Given) -> Iterator[Cells]:
    """Yield the rows of a file of any form; a long table becomes one column per metric."""
    head = head_of(path, PREAMBLE)
    first = next((text.lstrip() for text in head if text.strip()), "")
    if any("<table" in text.lower() or "<tr" in text.lower() for text in head):
        yield from _under_headers(_html(document(path, given)), given)
    elif mlflow(path) is not None:  # each line holds time, value and step
        cells = ((count, text.split()) for count, text, _ in lines(path, given) if text.strip())
        tag = _tag(path, given)
        yield from (Cells(n, {"step": c[2], tag: c[1]}) for n, c in cells if len(c) == 3)
    elif (found := header(path, given, sure=True)) is not None:
        yield from _csv(path, given, found)
    elif any(map(_is_ruled, head)) and (rows := [*_under_headers(_drawn(path, given), given)]):
        yield from rows
    elif any(map(is_line, head)):
        yield from (
            Cells(count, _figures(text)) for count, text, _ in lines(path, given) if is_line(text)
        )
    elif first[:1] not in ("{", "[") and (blocks := [*_blocks(path, given)]):
        yield from blocks
    elif (found := header(path, given)) is not None:
        yield from _csv(path, given, found)
    else:
        for count, record in records(path, given):
            values = _widened(flatten(record))
            if _is_series(values):
                _, step, value = values.values()
                values = {"step": step, _tag(path, given): value}
            yield Cells(count, values)


def is_record(record: Mapping[str, Any]) -> bool:
    flat = _widened(flatten(record))
    found = guess(flat, {})
    return complete(found, {}) and step_of(flat[found["step"]]) is not None


def _widened(values: dict[str, Any]) -> dict[str, Any]:
    """Turn a long-form row (name, value) into a row with a column of that name."""
    plain = {name.lower(): name for name in values}
    name = next((plain[each] for each in _LONG if each in plain), None)
    if name is None or "value" not in plain or not isinstance(values[name], str):
        return values
    rest = {k: v for k, v in values.items() if k not in (name, plain["value"])}
    return {**rest, values[name]: values[plain["value"]]}


def header(path: Path, given: Given, sure: bool = False) -> tuple[int, str, list[str]] | None:
    """Return line, delimiter and names of a CSV header; None if the first lines contain none.

    Unless it has to be `sure`, an incomplete header is accepted if the next row has as many cells,
    half or more of them numbers.
    """
    head = enumerate(head_of(path, HEADER_WITHIN), 1)
    plain = [(n, text) for n, text in head if not _NO_HEADER.match(text)]
    almost: tuple[int, str, list[str]] | None = None
    for (count, text), (_, after) in pairwise([*plain, (0, "")]):
        for delimiter in ",;\t ":
            if delimiter not in text.strip():
                continue
            names, row = _split(text, delimiter), _split(after, delimiter)
            fits = len(names) == len(row) - (delimiter == " " and len(row) > len(names))
            numbers = sum(number(cell) is not None for cell in row)
            if delimiter == " " and (not fits or numbers < len(row)):
                continue  # prose
            if complete(guess(names, given.columns), given.columns) or _is_series(names):
                return count, delimiter, names
            named = any(names) and not _numeric(names)
            if almost is None and fits and len(row) > 1 and named and 2 * numbers >= len(row):
                almost = count, delimiter, names
    return None if sure else almost


def _numeric(names: Iterable[str]) -> bool:
    """Whether one of them is a number: then they are figures, not a header."""
    return any(number(name) is not None for name in names)


def _split(text: str, delimiter: str) -> list[str]:
    """Split a line into cells; spaces may align them, and a comma may be the decimal point."""
    if delimiter == " ":
        return text.split()
    try:
        row = next(csv.reader([text], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:  # a cell longer than the csv module reads
        return []
    cells = [cell.strip() for cell in row]
    return cells if delimiter == "," else [_DECIMAL.sub(r"\1.\2", cell) for cell in cells]


def _is_series(names: Iterable[str]) -> bool:
    return [name.lower() for name in names] == [name.lower() for name in TENSORBOARD]


def _tag(path: Path, given: Given) -> str:
    """Name the only series of a file by the file's name, in which "_" stands for "/"."""
    if "Value" in given.columns.values():
        return "Value"
    if (run := mlflow(path)) is not None:
        return path.relative_to(run / "metrics").as_posix()
    name = path.stem.rpartition("-tag-")[2]
    return name if "-tag-" in path.stem or len(guess(["step", name], {})) > 1 else "Value"


def mlflow(path: Path) -> Path | None:
    """Return the run directory of a metric file in MLflow's file store; None for another file."""
    runs = (up.parent for up in path.parents if up.name == "metrics")
    return next((run for run in runs if (run / "meta.yaml").is_file()), None)


def _csv(path: Path, given: Given, found: tuple[int, str, list[str]]) -> Iterator[Cells]:
    at, delimiter, names = found
    names = [name or f"column {i}" for i, name in enumerate(names, 1)]
    run = ""
    if _is_series(names):
        names[2] = _tag(path, given)
        run = re.sub(r"^run-", "", path.stem).rpartition("-tag-")[0]
    # W&B's minima and maxima of a step repeat the value
    kept = [i for i, name in enumerate(names) if not name.endswith(("__MIN", "__MAX"))]
    for count, text, _ in lines(path, given):
        if count <= at or not text.strip() or _RULE.fullmatch(text):
            continue
        row = _split(text, delimiter)
        if delimiter == " " and len(row) == len(names) + 1:
            del row[0]  # the index of a printed data frame
        if len(row) != len(names):
            given.problem(path, count, f"{len(row)} cells where the header has {len(names)}")
            continue
        yield Cells(count, _widened({names[i]: row[i] for i in kept if row[i]}), run)


def _is_ruled(text: str) -> bool:
    """Whether a line belongs to a drawn table: a rule with columns, or a row between bars."""
    rule = _RULE.fullmatch(text) is not None
    return text.lstrip()[:1] in _BARS or (rule and not {*"|+"}.isdisjoint(text))


def _drawn(path: Path, given: Given) -> Iterator[Titled]:
    """Rows of tables whose cells are parted by bars: Markdown's, and those drawn for a terminal."""
    title, before = "", False
    for count, text, _ in lines(path, given):
        rule = _RULE.fullmatch(text) is not None
        inside = rule or any(bar in text for bar in _BARS)
        if inside and not before:
            yield count, None, title
        if inside and not rule:
            cells = re.split("[|│┃]", text.strip().strip("|│┃"))
            yield count, [cell.strip() for cell in cells], title
        elif text.startswith("#"):
            title = text.strip("# ").strip()
        before = inside


_TAG = re.compile(r"(?i)<(/?(?:table|tr|t[dh]|h[1-6]|caption))\b[^>]*>")


def _html(text: str) -> Iterator[Titled]:
    row: list[str] = []
    title = ""
    pieces = _TAG.split(text + "<table>")[1:]
    for count, (tag, inner) in enumerate(zip(pieces[::2], pieces[1::2], strict=True), 1):
        tag, inner = tag.lower(), unescape(re.sub("<[^>]*>", "", inner)).strip()
        if tag in ("td", "th"):
            row.append(inner)
        elif tag[:1] != "/":
            if row:
                yield count, row, title
                row = []
            if tag == "table":
                yield count, None, title
            elif tag != "tr":
                title = inner


def _under_headers(rows: Iterable[Titled], given: Given) -> Iterator[Cells]:
    """Yield cells under their table's column names; skip tables without a step and a metric."""
    names: list[str] | None = None
    for count, row, title in rows:
        if row is None:
            names = []
        elif not names:
            header = complete(guess(row, given.columns), given.columns) and not _numeric(row)
            names = row if header else None
        elif len(row) == len(names):
            yield Cells(count, {n: c for n, c in zip(names, row, strict=True) if c}, clean(title))


_COUNT = r"\d{1,15}(?:,\d{3}(?!\d))*"  # 12000, 12,000
_AT = re.compile(
    r"(?i)(?<!micro )(?<![\w/])(?P<whole>(?:global|train|training|optimizer)[ _-]?)?"
    r"(?:step|iteration|iter|update|episode)\b\s*[:=#]?\s*\[?"
    rf"(?P<step>{_COUNT})"
)
_VALUE = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)"
_FIGURE = re.compile(
    r"\s*(?P<name>[^|:=]*?[A-Za-z)\]_.])\s*(?:[:=]\s*|\s)"
    rf"(?P<value>{_VALUE})(?=$|[\s%/);\]a-zA-Z]|,(?!\d))[^\s,;]*"
)
_PAIR = re.compile(rf"([A-Za-z][\w./@-]*)[=:]({_VALUE})(?=$|[\s;|\]]|,(?!\d))")
_OF = re.compile(rf"(?:^|[|\]])\s*\[?\s*({_COUNT})/{_COUNT}\s*\]?(?=[\s:,])")  # 12/100 metrics
_GROUP = re.compile(r"\s*(?:[-•*] )?([\w./-]{1,60}):\s*")
_WHO = re.compile(r"^\(\S+ pid=[^)]*\) ?")
_OTHER = re.compile(r"\s*(?:\{\s*\"|\[\s*(?:[\[{\"]|[-+\d.eE]+,(?![\d,]+/))|[|<│])")  # JSON, tables
BLOCKS = 2  # steps that block-wise console output must have


def is_line(text: str) -> bool:
    told = any(word in text.lower() for word in ("entropy", "reward", "return"))
    if not told or len(text) > LONGEST or _OTHER.match(text):
        return False
    return complete(guess(_figures(text), {}), {})


def _figures(text: str) -> dict[str, Any]:
    """Metrics of a line: `name: value`, `name=value`, a dictionary, or a table row."""
    found: dict[str, Any] = {}
    at = [*_AT.finditer(text)]
    if at:
        whole = [each for each in at if each["whole"]]
        found["step"] = (whole or at)[0]["step"]
    if text.lstrip()[:1] in ("|", "│", "┃"):
        cells = [cell.strip() for cell in re.split("[|│┃]", text)]
        return found | {
            n: v for n, v in pairwise(cells) if re.fullmatch(_VALUE, v) and number(n) is None
        }
    found |= dict(_PAIR.findall(text))
    plain = re.sub("['\"]", "", _OF.sub(" | ", _AT.sub(" | ", text)))
    for part in re.split(r"\s*[|│┃{}]\s*[:\])]?|[,;]\s+|\]\s+|\s+-\s+", plain):
        end = 0
        while figure := _FIGURE.match(part, end):
            found.setdefault(figure["name"].strip(" \t-*•[(").strip(), figure["value"])
            end = figure.end()
    if found and "step" not in found and (of := _OF.search(text)):
        found["step"] = of[1]
    return found


def _blocks(path: Path, given: Given) -> Iterator[Cells]:
    """Rows of a console that prints a step on one line and its metrics on the next lines.

    A name that occurs twice in a step with different values is dropped.
    """
    rows: list[Cells] = []
    twice, named = set[str](), False
    above: list[tuple[int, str]] = []  # indent and name of the groups that enclose a line
    for count, text, _ in lines(path, given):
        text = _WHO.sub("", text)[:LONGEST]
        figures = _figures(text)
        step = figures.pop("step", None)
        counted = _AT.search(text) is None
        if counted and named:  # a counter inside a step, as of a progress bar
            step = None
        named |= step is not None and not counted
        if not named and (name := guess(figures, {}).get("step")):  # a table row with the step
            step = figures.pop(name)
        if step is not None and (not rows or rows[-1].values["step"] != step):
            rows.append(Cells(count, {"step": step}))
            twice, above = set(), []
        indent = len(text) - len(text.lstrip())
        above = [each for each in above if each[0] < indent]
        if group := _GROUP.fullmatch(text):
            above.append((indent, group[1]))
        elif rows:
            row = rows[-1].values
            for name, value in figures.items():
                name = "/".join([*(group for _, group in above), name])
                if name in twice or row.setdefault(name, value) != value:
                    twice.add(name)
                    row.pop(name, None)
    found = [row for row in rows if complete(guess(row.values, {}), {})]
    yield from found if len({row.values["step"] for row in found}) >= BLOCKS else []
