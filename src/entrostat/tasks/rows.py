"""Reading rows of JSONL and Parquet files, with any column names."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from .._names import unknown

SUFFIXES = (".jsonl", ".json", ".parquet")
_ONE = "Write one object per line (JSON lines)"
ABSENT = object()  # value of a missing column


class Located(NamedTuple):
    where: str  # "line 3", "row 3", with the file's name if there are several
    row: Any  # parsed JSON or Parquet, otherwise unchecked
    again: Callable[[], Any]  # reads the row again, so that it need not be kept


def read_rows(path: str, columns: Iterable[str] = ()) -> Iterator[Located]:
    """The rows of a file, or of all files of a directory in order of their names.

    Only `columns` are read from a Parquet file; for a dotted name also the column before the first
    dot.
    """
    if not Path(path).is_dir():
        yield from read_file(path, columns)
        return
    files = sorted(p for p in Path(path).iterdir() if p.name.endswith((*SUFFIXES, ".gz")))
    if not files:
        raise ValueError(f"task {path!r}: no *.jsonl and no *.parquet in that directory")
    for file in files:
        for where, row, again in read_file(str(file), columns):
            yield Located(f"{file.name}, {where}", row, again)


def read_file(path: str, columns: Iterable[str]) -> Iterator[Located]:
    return _parquet(path, columns) if path.endswith(".parquet") else _lines(path)


def pick(row: Any, name: str) -> Any:
    """The column of that name, or the nested value of a dotted name; `ABSENT` if missing."""
    if not isinstance(row, dict):
        return ABSENT
    if name in row or "." not in name:
        return row.get(name, ABSENT)
    head, _, rest = name.partition(".")
    return pick(row.get(head), rest)


def column_names(whose: str, known: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    for key, name in given.items():
        if key not in known:
            raise ValueError(f"{whose}: {unknown('field', key, known)}")
        if not isinstance(name, str):
            raise ValueError(f"{whose}: fields.{key} must be a column's name, got {name!r}")
    return {**known, **given}


def columns_of(row: Any) -> str:
    there = f"; its columns: {', '.join(map(str, row))}" if isinstance(row, dict) and row else ""
    return there[:200]


@contextmanager
def _readable(path: str, *errors: type[Exception]) -> Iterator[None]:
    """Re-raise OSError and other errors as a one-line ValueError."""
    try:
        yield
    except (OSError, *errors) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"task {path!r}: cannot read it: {reason}") from None


def _lines(path: str) -> Iterator[Located]:
    start = 0
    with _readable(path, EOFError, zlib.error), _open(path) as file:
        for number, data in enumerate(file, 1):
            place, start = start, start + len(data)
            try:
                line = data.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"task {path!r}: not UTF-8 (byte {place + error.start})") from None
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                json.dumps(row, ensure_ascii=False).encode()  # reject a lone surrogate
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", None) or str(error)
                where = f"task {path!r}: line {number}"
                raise ValueError(f"{where} is not JSON: {reason}. {_ONE}") from None
            if not isinstance(row, dict):
                raise ValueError(f"task {path!r}: line {number} is a {type(row).__name__}. {_ONE}")
            yield Located(f"line {number}", row, partial(_line_at, path, place))


def _open(path: str) -> Any:
    return gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")


def _line_at(path: str, start: int) -> Any:
    with _open(path) as file:
        file.seek(start)
        return json.loads(file.readline().decode("utf-8-sig"))


def _parquet(path: str, columns: Iterable[str]) -> Iterator[Located]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError(f"task {path!r}: Parquet takes pyarrow: pip install pyarrow") from None
    wanted = {part for name in columns for part in (name, name.split(".")[0])}
    with _readable(path, pyarrow.ArrowException), pyarrow.parquet.ParquetFile(path) as file:
        there = file.schema_arrow.names
        others = dict.fromkeys(there)  # listed in errors
        batches = file.iter_batches(columns=[column for column in there if column in wanted])
        rows = (row for batch in batches for row in batch.to_pylist())
        for number, row in enumerate(rows, 1):
            full = others | row
            yield Located(f"row {number}", full, lambda full=full: full)
