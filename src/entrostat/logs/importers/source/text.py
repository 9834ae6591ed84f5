"""Reading a file safely: lines, documents, JSON objects; none of it may be what it should."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from .problems import Given

LINE = 64 * 2**20
"""Longest line that is read, in characters."""
DOCUMENT = 256 * 2**20
"""Largest JSON document that is read at once, in bytes."""
ANSI = re.compile(r"\x1b\[[0-9;?]{0,32}[A-Za-z]")


class UnreadableError(ValueError):
    """A text that is no JSON, with the reason in words."""


def parse(text: str) -> Any:
    """JSON.

    Raises:
        UnreadableError: it is none, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise UnreadableError("JSON nested too deeply") from None
    except ValueError as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number too long"
        raise UnreadableError(f"not a whole JSON value ({reason})") from None


def lines(path: Path, given: Given) -> Iterator[tuple[int, str, bool]]:
    """Lines of a text, in UTF-8 or (with its mark) UTF-16.

    Yields:
        the number from 1, the text without its end and without NUL, whether the end was there.
    """
    try:
        with open(path, "rb") as raw:
            wide = raw.read(2) in (b"\xff\xfe", b"\xfe\xff")
        with open(path, encoding="utf-16" if wide else "utf-8-sig", errors="replace") as file:
            count = 0
            while text := file.readline(LINE):
                count += 1
                if len(text) >= LINE and not text.endswith("\n"):
                    while (rest := file.readline(LINE)) and not rest.endswith("\n"):
                        pass
                    given.problem(path, count, f"longer than {LINE} characters")
                    continue
                yield count, text.rstrip("\n").replace("\0", ""), text.endswith("\n")
    except (OSError, UnicodeError) as error:
        given.problem(path, None, f"cannot be read: {reason_of(error)}")


def reason_of(error: Exception) -> str:
    """An error of the operating system in words, without the path."""
    return getattr(error, "strerror", None) or type(error).__name__


def document(path: Path, given: Given) -> str:
    """A whole text; empty, with a problem, where it is too large or cannot be read."""
    try:
        if path.stat().st_size > DOCUMENT:
            given.problem(path, None, f"larger than {DOCUMENT} bytes: too large for one document")
            return ""
    except OSError as error:
        given.problem(path, None, f"cannot be read: {reason_of(error)}")
        return ""
    return "\n".join(text for _, text, _ in lines(path, given))


def json_lines(
    path: Path, given: Given, wanted: Callable[[str], bool] = lambda text: bool(text.strip())
) -> Iterator[tuple[int, Any]]:
    """JSON values of a file of one a line; lines that are no JSON become problems.

    Args:
        path: the file.
        given: what was asked for, and where problems go.
        wanted: the lines that are read; the others are passed over.

    Yields:
        the line from 1, the value.
    """
    for count, text, _ in lines(path, given):
        if wanted(text):
            try:
                yield count, parse(text.strip())
            except UnreadableError as error:
                given.problem(path, count, str(error))


def records(path: Path, given: Given) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects of a file of one JSON object a line, or of a document that holds a list of them.

    Yields:
        the line from 1, the object.
    """
    texts = (text.strip() for _, text, _ in lines(path, Given(given.root)))
    first, *more = [*islice((text for text in texts if text), 2), ""]
    try:
        a_line = isinstance(parse(first), dict) and len(more) > 1
    except UnreadableError:
        a_line = first[:1] == "{" and len(first) > 1
    if a_line or first[:1] not in ("[", "{"):
        for count, value in json_lines(path, given):
            if isinstance(value, dict):
                yield count, value
            else:
                given.problem(path, count, "not a JSON object")
        return
    text = document(path, given)
    try:
        value = parse(text)
    except UnreadableError as error:
        given.problem(path, None, f"{error}; the objects before the fault are read")
        start = text.find("[")
        yield from objects(text, start + 1 if start >= 0 else len(text))
        return
    for place, row in enumerate(rows_of(value), 1):
        if isinstance(row, dict):
            yield place, row
        else:
            given.problem(path, None, f"entry {place} of the list is not a JSON object")


def rows_of(value: Any) -> Iterable[Any]:
    """Rows of a document: a list, the only list of objects in it, columns, or one object."""
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        return [value]
    columns = {k: v for k, v in value.items() if isinstance(v, list)}
    tables = [v for v in columns.values() if v and isinstance(v[0], dict)]
    if len(tables) == 1:
        return tables[0]
    if len(columns) > 1 and len({len(v) for v in columns.values()}) == 1:
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [value]


def objects(text: str, start: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects of a list that begins at `start`, up to the first that is not whole.

    Yields:
        the line from 1, the object.
    """
    decoder, line, counted = json.JSONDecoder(), 1, 0
    while start < len(text):
        if text[start] in " \t\r\n,":
            start += 1
            continue
        line, counted = line + text.count("\n", counted, start), start
        try:
            value, start = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            yield line, value
