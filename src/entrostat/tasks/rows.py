"""Prompts and answers out of files: JSONL and Parquet, whatever their columns are called."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .._names import unknown

SUFFIXES = (".jsonl", ".json", ".parquet")
FIELDS = {"prompt": "prompt", "answer": "answer"}
_ABSENT = object()


def read_pairs(
    path: str, fields: Mapping[str, str] | None = None
) -> Iterator[tuple[str, str, str]]:
    """(where, prompt, answer) of each row of a file.

    Args:
        path: `*.jsonl` or `*.json`, one object per line in UTF-8; or `*.parquet`.
        fields: the file's names for `prompt` and `answer`, where they are others; a dot goes into
            a table within a row (`reward_model.ground_truth`).

    Yields:
        Where: "line 3" or "row 3". A prompt that is a conversation must be one message of a user;
        an answer that is a number comes as text.

    Raises:
        ValueError: no such file, not such a file, or a row that lacks one of the two.
    """
    names = FIELDS | dict(fields or {})
    for key, name in names.items():
        if key not in FIELDS:
            raise ValueError(f"task {path!r}: {unknown('field', key, FIELDS)}")
        if not isinstance(name, str):
            raise ValueError(f"task {path!r}: fields.{key} must be a column's name, got {name!r}")
    rows = _parquet(path, names) if path.endswith(".parquet") else _lines(path)
    for where, row in rows:
        prompt, answer = (_pick(row, names[key]) for key in FIELDS)
        if isinstance(prompt, list):
            prompt = _of_user(prompt)
        if not isinstance(prompt, str):
            raise ValueError(_lacks(path, where, row, "prompt", names, "a prompt (text)"))
        if not isinstance(answer, str | int | float):
            raise ValueError(
                _lacks(path, where, row, "answer", names, "an answer (text or number)")
            )
        yield where, prompt, str(answer)


def _lines(path: str) -> Iterator[tuple[str, Any]]:
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise ValueError(f"task {path!r}: cannot read it: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"task {path!r}: not UTF-8 (byte {error.start})") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            json.dumps(row, ensure_ascii=False).encode()  # a lone surrogate is no text
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", None) or str(error)
            raise ValueError(f"task {path!r}: line {number} is not JSON: {reason}") from None
        yield f"line {number}", row


def _parquet(path: str, names: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError(f"task {path!r}: Parquet takes pyarrow: pip install pyarrow") from None
    wanted = {part for name in names.values() for part in (name, name.split(".")[0])}
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            read = [column for column in columns if column in wanted]
            others = dict.fromkeys(columns)  # an error names them
            for batch in file.iter_batches(columns=read):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", others | row
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"task {path!r}: cannot read it: {reason}") from None
    except pyarrow.ArrowException as error:
        raise ValueError(f"task {path!r}: cannot read it: {error}") from None


def _pick(row: Any, name: str) -> Any:
    """The column of that name, or what the dots in it lead to."""
    if not isinstance(row, dict):
        return _ABSENT
    if name in row or "." not in name:
        return row.get(name, _ABSENT)
    head, _, rest = name.partition(".")
    return _pick(row.get(head), rest)


def _of_user(messages: list[Any]) -> Any:
    """The text of a conversation that is one message of a user."""
    match messages:
        case [{"role": "user", "content": content}]:
            return content
    return _ABSENT


def _lacks(path: str, where: str, row: Any, key: str, names: Mapping[str, str], what: str) -> str:
    named = "" if names[key] == key else f" under {names[key]!r}"
    there = f"; its columns: {', '.join(map(str, row))}" if isinstance(row, dict) and row else ""
    return (
        f"task {path!r}: {where} needs {what}{named}{there[:200]}. Name another column with "
        f"--task.fields.{key}"
    )
