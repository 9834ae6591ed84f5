"""W&B's own files: run-ID.wandb, and wandb-history.jsonl and wandb-summary.json where those are.

A `.wandb` file, which every run has on its machine, offline or not, is a log in LevelDB's form:
after 7 bytes (":W&B", 0xBEE1, version 0) blocks of 32 KiB with chunks of 4 bytes CRC32, 2 bytes
length, 1 byte kind (whole, first, middle, last), data. The data are `Record` messages
(wandb/proto/wandb_internal.proto); read are the history's numbers, the run's id and its settings. A
damaged chunk costs the rest of its block. W&B 0.31 has no reader of its own in Python any more.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..run import Run
from .source import (
    Given,
    UnreadableError,
    clean,
    document,
    json_lines,
    number,
    parse,
    reason_of,
)
from .table import flatten
from .tracked import Row, run_of
from .wire import EIGHT, VARINT, fields, real, text

TITLE = "W&B"
HEAD = b":W&B\xe1\xbe\x00"
LARGEST = 64 << 20
"""Bytes of a record that is read."""
_BLOCK = 32 * 1024
_CHUNK = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_SETTING = 1 << 20  # characters of a setting that is kept
_SUMMARY = "wandb-summary.json"


@dataclass
class Tracked:
    """What a file has of a run: rows of its history, settings as JSON texts by name."""

    name: str
    rows: list[Row] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)


def is_file(head: bytes) -> bool:
    """Whether a file begins as a `.wandb` file does."""
    return head.startswith(HEAD)


def is_record(record: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a row of W&B's history, or a summary."""
    return "_step" in record and ("_timestamp" in record or "_runtime" in record)


def read(files: Sequence[Path], given: Given) -> Run | None:
    """The run among `files` that has most rows, of all files that have its id."""
    runs: dict[str, Tracked] = {}
    binary = [path for path in files if is_file(_head(path))]
    for path in binary:
        found = _log(path, given)
        run = runs.setdefault(found.name, Tracked(found.name))
        run.rows += found.rows
        run.settings |= found.settings
    if not any(run.rows for run in runs.values()):  # else the texts say the same again
        texts = sorted(set(files) - set(binary), key=lambda path: path.name == _SUMMARY)
        for path in texts:
            runs.setdefault(str(path), Tracked(clean(path.name), _texts(path, given)))
    if not runs:
        return None
    best = max(runs.values(), key=lambda run: len(run.rows))
    others = [run.name for run in runs.values() if run is not best and run.rows]
    if others:
        given.notes.append(
            f"Read run {best.name}; other runs beside it are not, name their directories: "
            f"{', '.join(others[:5])}{', ...' if others[5:] else ''}."
        )
    if best.rows and all(row.path.name == _SUMMARY for row in best.rows):
        given.notes.append(f"{_SUMMARY} has the last values only.")
    return run_of(best.rows, best.settings, TITLE, given)


def _head(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(len(HEAD))
    except OSError:
        return b""


def _texts(path: Path, given: Given) -> list[Row]:
    """Rows of a history in JSON, one object a line, or of a summary, one object."""
    if path.name == _SUMMARY:
        try:
            found = [(None, parse(document(path, given)))]
        except UnreadableError as error:
            given.problem(path, None, str(error))
            found = []
    else:
        found = list(json_lines(path, given))
    rows = []
    for place, record in found:
        if isinstance(record, dict) and "_step" in record:
            rows.append(_row(path, record["_step"], flatten(record), place))
        else:
            given.problem(path, place, "no row of W&B's history")
    return rows


def _row(path: Path, step: Any, values: Mapping[str, Any], place: int | None = None) -> Row:
    """A row without W&B's own columns."""
    kept = {key: value for key, value in values.items() if not key.startswith("_")}
    return Row(path, step, kept, place)


def _log(path: Path, given: Given) -> Tracked:
    """The run of a `.wandb` file."""
    run = Tracked(clean(path.stem.removeprefix("run-")))
    for place, data in _records(path, given):
        try:
            for kind, _, value in fields(data):
                if not isinstance(value, bytes):
                    continue
                if kind == 2:
                    step, values = _history(value)
                    if values:
                        run.rows.append(_row(path, step, values))
                elif kind == 5:
                    run.settings |= _config(value)
                elif kind == 17:
                    _about(value, run)
        except UnreadableError as error:
            given.problem(path, None, f"record {place}: {error}")
    return run


def _about(data: bytes, run: Tracked) -> None:
    """A run's own record: its id, its settings."""
    for kind, _, value in fields(data):
        if kind == 1 and text(value):
            run.name = clean(text(value))[:200]
        elif kind == 4 and isinstance(value, bytes):
            run.settings |= _config(value)


def _config(data: bytes) -> dict[str, str]:
    updates = [value for kind, _, value in fields(data) if kind == 1 and isinstance(value, bytes)]
    named = (_item(update) for update in updates)
    return {key: str(value)[:_SETTING] for key, value in named if key}


def _history(data: bytes) -> tuple[Any, dict[str, float]]:
    """Step and numbers of a row."""
    step: Any = None
    values: dict[str, float] = {}
    for kind, _, value in fields(data):
        if kind == 1 and isinstance(value, bytes):
            key, told = _item(value)
            if (figure := number(told)) is not None:
                values[key] = figure
        elif kind == 2 and isinstance(value, bytes):
            step = next((v for n, w, v in fields(value) if n == 1 and w == VARINT), 0)
    return values.get("_step", step), values


def _item(data: bytes) -> tuple[str, Any]:
    """Name and value of an item; a value that is said in JSON stays a text."""
    key, nested, told = "", list[str](), None
    for kind, wire, value in fields(data):
        if kind == 1:
            key = text(value)
        elif kind == 2:
            nested.append(text(value))
        elif kind == 5 and wire == VARINT and isinstance(value, int):  # sint64
            told = (value >> 1) ^ -(value & 1)
        elif kind == 6 and wire == EIGHT:
            told = real(wire, value)
        elif kind == 16:
            told = text(value)
    return key or ".".join(nested), told


def _records(path: Path, given: Given) -> Iterator[tuple[int, bytes]]:
    """Numbers from 1, and data, of the records that are whole."""
    parts: list[bytes] = []
    count, at = 0, len(HEAD)
    try:
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                for kind, data in _chunks(path, block, at, given):
                    if kind in (_WHOLE, _FIRST):
                        count, parts = count + 1, [data]
                    elif kind in (_MIDDLE, _LAST) and parts:
                        parts.append(data)
                    else:  # the middle of one whose beginning is damaged
                        parts = []
                    if sum(map(len, parts)) > LARGEST:
                        given.problem(path, None, f"record {count} is larger than {LARGEST} bytes")
                        parts = []
                    if kind in (_WHOLE, _LAST) and parts:
                        yield count, b"".join(parts)
                        parts = []
                at = 0
    except OSError as error:
        given.problem(path, None, f"cannot be read: {reason_of(error)}")
    if parts:
        given.problem(path, None, f"cut within record {count}")


def _chunks(path: Path, block: bytes, at: int, given: Given) -> Iterator[tuple[int, bytes]]:
    """Kind and data of a block's chunks, from byte `at` to the first that is damaged or cut."""
    while len(block) - at >= _CHUNK.size:
        check, length, kind = _CHUNK.unpack_from(block, at)
        if not (check or length or kind):
            return  # room that was made, and not written to
        begin, at = at + _CHUNK.size, at + _CHUNK.size + length
        data = block[begin:at]
        if at > len(block) and len(block) < _BLOCK:
            given.problem(path, None, "its last record is cut")
            return
        if at > len(block) or zlib.crc32(data, zlib.crc32(bytes([kind]))) != check:
            given.problem(path, None, "a damaged block, of which the rest is left out")
            return
        yield kind, data
    if len(block) < _BLOCK and any(block[at:]):
        given.problem(path, None, "its last record is cut")
