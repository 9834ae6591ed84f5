"""Read files safely: text, lines, JSON, single values, and a list of problems.

Files are untrusted: lines may be cut, duplicated, huge, deeply nested or not text at all. Anything
unreadable becomes a `Problem`; nothing is unpickled or evaluated.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ..run import MOST, Problem
from .names import complete, flatten, guess

KEPT = 200  # problems listed individually
LINE = 64 * 2**20  # characters of the longest line that is read
DOCUMENT = 256 * 2**20  # bytes of the largest JSON document that is read at once
# exceptions of a file that cannot be read or unpacked
BROKEN = (OSError, EOFError, UnicodeError, lzma.LZMAError, zlib.error)
PACKED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,32}[A-Za-z]")
# keys under which docker, Kubernetes and cloud collectors wrap a console line
_WRAPPED = re.compile(r'"(log|message|msg|text|textPayload)"\s*:\s*"')
TENSORBOARD = ("Wall time", "Step", "Value")  # columns of TensorBoard's CSV and JSON exports
_HEAD = 64 * 1024  # bytes searched to recognise a notebook
# one metric of a printed dictionary
PAIR = re.compile(
    r"'([^']{1,200})': '?((?:[\w.]{1,32}\([-+\w.]{1,40}\))|[-+\w./%]{1,40})'?(?=[,}])"
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_ERROR = re.compile(r"±|\+/?-")  # before the error of a value: 0.5 ± 0.1, 0.5 +- 0.1
_NUMBER = re.compile(r"(?:np\.|numpy\.)?\w{0,16}\(([^()]{1,64})\)")  # np.float64(0.5)


@dataclass
class Given:
    """The user's request, and the problems and notes found while reading."""

    root: Path  # the path that the user named
    columns: Mapping[str, str] = field(default_factory=dict)  # by key of `KINDS`
    notes: list[str] = field(default_factory=list)  # sentences for the run
    kept: list[Problem] = field(default_factory=list)  # at most `KEPT` of the `count` problems
    count: int = 0
    broken: dict[str, int] = field(default_factory=dict)  # as `Run.broken`
    renamed: dict[str, str] = field(default_factory=dict)  # as `Run.renamed`

    def short(self, path: Path) -> str:
        """Path relative to the user's path; for the user's path itself, its name."""
        return clean(str(path.relative_to(self.root)) if path != self.root else path.name)

    def problem(self, path: Path, line: int | None, reason: str) -> None:
        self.count += 1
        if len(self.kept) < KEPT:
            self.kept.append(Problem(self.short(path), line, reason))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return the kept problems by file and line, and the number of further problems."""
        kept = sorted(self.kept, key=lambda p: (p.file, p.line or 0))
        if more := self.count - len(kept):
            kept.append(Problem(clean(self.root.name), None, f"{more} more problems, not listed"))
        return tuple(kept)


class UnreadableError(ValueError):
    """The text is not JSON; the message gives the reason."""


def parse(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise UnreadableError("JSON nested too deeply") from None
    except ValueError as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number too long"
        raise UnreadableError(f"not a whole JSON value ({reason})") from None


def lines(path: Path, given: Given) -> Iterator[tuple[int, str, bool]]:
    """Yield lines of a text in UTF-8 or (with its mark) UTF-16; of a notebook, its outputs.

    Yields:
        the number from 1, the text without line end, NUL and colours, whether it had a line end.
    """
    opener = opener_of(path)
    try:
        with opener(path, "rb") as raw:
            head = raw.read(_HEAD)
        wide = head[:2] in (b"\xff\xfe", b"\xfe\xff")
        code = "utf-16" if wide else "utf-8-sig"
        with opener(path, "rt", encoding=code, errors="replace") as file:
            if head.lstrip()[:1] == b"{" and b'"cells"' in head and b'"cell_type"' in head:
                yield from _outputs(file.read(DOCUMENT), path, given)
                return
            count = 0
            while text := file.readline(LINE):
                count += 1
                if len(text) >= LINE and not text.endswith("\n"):
                    while (rest := file.readline(LINE)) and not rest.endswith("\n"):
                        pass
                    given.problem(path, count, f"longer than {LINE} characters")
                    continue
                text, whole = text.rstrip("\n").replace("\0", ""), text.endswith("\n")
                if "\x1b" in text:
                    text = _COLOUR.sub("", text)
                if text.startswith("{") and (inner := _WRAPPED.search(text)):
                    with suppress(UnreadableError):
                        record = parse(text)
                        found = guess(flatten(record), {})
                        if not complete(found, {}):  # otherwise the row contains a message
                            text, whole = str(record.get(inner[1], text)).rstrip("\n"), True
                yield count, text, whole
    except BROKEN as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        given.problem(path, None, f"cannot be read: {reason}")


def _outputs(text: str, path: Path, given: Given) -> Iterator[tuple[int, str, bool]]:
    """Yield the lines of a notebook's outputs: tables and printed text."""
    try:
        found = parse(text)
        outputs = [output for cell in found["cells"] for output in cell.get("outputs", ())]
        texts = [o.get("text") or o["data"].get("text/html") or o["data"].get("text/plain")
                 for o in outputs if "text" in o or "data" in o]  # fmt: skip
        joined = ["".join(t) for t in texts if t]
    except (UnreadableError, AttributeError, KeyError, TypeError) as error:
        given.problem(path, None, f"a notebook that cannot be read: {error}")
        return
    for count, line in enumerate((line for text in joined for line in text.splitlines()), 1):
        yield count, line, True


def opener_of(path: Path) -> Callable[..., Any]:
    """Return the function that opens a file; gzip, bzip2 and xz are unpacked."""
    with suppress(OSError), open(path, "rb") as file:
        head = file.read(6)
        return next((how for magic, how in PACKED.items() if head.startswith(magic)), open)
    return open


def head_of(path: Path, most: int) -> list[str]:
    return [text for _, text, _ in islice(lines(path, Given(path)), most)]


def first_line(path: Path) -> str:
    return next((text for _, text, _ in lines(path, Given(path)) if text.strip()), "")


def document(path: Path, given: Given) -> str:
    """Read a whole text; on failure or excessive size, record a problem and return ""."""
    if path.stat().st_size > DOCUMENT:
        given.problem(path, None, f"larger than {DOCUMENT} bytes: too large for one document")
        return ""
    return "\n".join(text for _, text, _ in lines(path, given))


def records(path: Path, given: Given) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line (from 1) and object of a JSON-lines file, or of a document that lists objects."""
    stripped = (text.strip() for _, text, _ in lines(path, Given(given.root)))
    first, *more = [*islice((text for text in stripped if text), 2), ""]
    try:
        a_line = isinstance(parse(first), dict) and len(more) > 1
    except UnreadableError:
        a_line = first[:1] == "{" and len(first) > 1
    if a_line or first[:1] not in ("[", "{"):
        for count, text, _ in lines(path, given):
            if not text.strip():
                continue
            try:
                if not isinstance(value := parse(text.strip()), dict):
                    raise UnreadableError("not a JSON object")
                yield count, value
            except UnreadableError as error:
                given.problem(path, count, str(error))
    else:
        yield from listed(path, given)


def listed(path: Path, given: Given) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield position (from 1) and object of a document that lists objects."""
    text = document(path, given)
    try:
        rows = _rows_of(parse(text))
    except UnreadableError as error:
        given.problem(path, None, f"{error}; the entries before the fault are read")
        rows = _before_fault(text)
    for place, row in enumerate(rows, 1):
        if isinstance(row, dict):
            yield place, row
        else:
            given.problem(path, None, f"entry {place} of the list is not a JSON object")


def _rows_of(value: Any) -> Iterable[Any]:
    """Rows of a document: a list, its nested lists of steps, columns, or one object."""
    if isinstance(value, list):
        triples = all(isinstance(row, list) and len(row) == 3 for row in value)  # TensorBoard
        return [dict(zip(TENSORBOARD, row, strict=True)) for row in value] if triples else value
    if not isinstance(value, dict):
        return [value]
    columns = {k: v for k, v in value.items() if isinstance(v, list)}
    tables = {k: v for k, v in columns.items() if v and isinstance(v[0], dict)}
    kinds = {k: guess(flatten(v[0]), {}) for k, v in tables.items()}
    runs = [k for k, found in kinds.items() if complete(found, {})]
    runs = [k for k in runs if "entropy" in kinds[k]] or runs  # others are evaluations
    if len(runs) > 1:
        return [{"run": k, **row} for k in runs for row in tables[k] if isinstance(row, dict)]
    if len(names := runs or [*tables]) == 1:
        return tables[names[0]]
    if len(columns) > 1 and len({len(v) for v in columns.values()}) == 1:
        if "step" not in guess(columns, {}):  # number the rows
            columns = {"step": [*range(1, len(next(iter(columns.values()))) + 1)], **columns}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [value]


def _before_fault(text: str) -> Iterator[dict[str, Any]]:
    """Yield objects of the first list up to the damaged one."""
    decoder, start = json.JSONDecoder(), text.find("[") + 1 or len(text)
    while start < len(text):
        if text[start] in " \t\r\n,":
            start += 1
            continue
        try:
            value, start = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            yield value


def number(value: Any) -> float | None:
    """Convert a number or numeric text to float, possibly nan or inf; None for anything else."""
    scale = 1.0
    if isinstance(value, str):
        text = _ERROR.split(value, maxsplit=1)[0].strip()
        scale, text = 0.01 if text.endswith("%") else 1.0, text.removesuffix("%")
        if wrapped := _NUMBER.fullmatch(text):
            text = wrapped[1]
        value = text if len(text) <= 64 and "_" not in text else None
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return None if value is None else float(value) * scale
    except (ValueError, OverflowError):
        return None


def step_of(value: Any) -> int | None:
    """Parse a step, an integer of at least 0, also from "1,240/9,600"; None for anything else."""
    found = number(_THOUSANDS.sub("", value.partition("/")[0]) if isinstance(value, str) else value)
    known = found is not None and found.is_integer() and 0 <= found < MOST
    return int(found) if found is not None and known else None


def clean(text: Any) -> str:
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else ""


def short(value: Any) -> str:
    """Format a value for an error message: one line, at most 40 characters."""
    if isinstance(value, list | dict):
        return f"of type {type(value).__name__}"
    text = ascii(value)
    return text if len(text) <= 40 else text[:37] + "..."


def finite(values: Iterable[float | None]) -> list[float]:
    return [v for v in values if v is not None and math.isfinite(v)]
