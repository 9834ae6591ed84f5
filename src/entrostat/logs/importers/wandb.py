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
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from . import table
from .forms import flatten
from .rows import Row
from .source import Given, UnreadableError, clean, json_lines, number, reason_of
from .verl import settings_of
from .wire import EIGHT, VARINT, fields, parts, real, text

HEAD = b":W&B\xe1\xbe\x00"
LARGEST = 64 << 20  # bytes of a record that is read
_BLOCK = 32 * 1024
_CHUNK = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_SETTING = 1 << 20  # characters of a setting that is kept
_STEP = "train/global_step"
CALLED = "W&B's name"  # of the run, beside its id
_PLAIN = ("max_steps", "logging_steps", "iterations", CALLED)  # settings of TRL and ours


def is_file(head: bytes) -> bool:
    return head.startswith(HEAD)


def is_record(record: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a row of W&B's history, or a summary."""
    return "_step" in record and ("_timestamp" in record or "_runtime" in record)


run_of = partial(table.run_of, tracker="W&B")


def scan(path: Path, given: Given) -> Iterator[Row]:
    """Rows of a file; a `.wandb` file's under its run's id, with its settings.

    Raises:
        ValueError: the file is a summary, which has no history.
    """
    with open(path, "rb") as file:
        binary = is_file(file.read(len(HEAD)))
    for row in _log(path, given) if binary else _texts(path, given):
        kept = {key: value for key, value in row.values.items() if not key.startswith("_")}
        yield row._replace(values=kept, run=clean(row.run))  # without W&B's own columns


def _log(path: Path, given: Given) -> list[Row]:
    run = path.stem.removeprefix("run-")
    settings: dict[str, str] = {}
    rows: list[tuple[Any, dict[str, float]]] = []
    for place, data in _records(path, given):
        try:
            rows += map(_history, parts(data, 2))
            for about in parts(data, 17):
                run_id, name = (clean(text(b"".join(parts(about, n)[-1:])))[:200] for n in (1, 8))
                run = run_id or run
                settings |= {CALLED: name} if name else {}
                for config in parts(about, 4):
                    settings |= _config(config)
            for config in parts(data, 5):
                settings |= _config(config)
        except UnreadableError as error:
            given.problem(path, None, f"record {place}: {error}")
    joined = " ".join(f'"{key}": {value}' for key, value in settings.items())
    plain = {key: settings[key] for key in _PLAIN if key in settings} | settings_of(joined)
    found = [Row(path, None, step, values, plain, run) for step, values in rows if values]
    # TRL's step is among its figures; what comes without it are times of functions
    stepped = [row for row in found if _STEP in row.values]
    return [row._replace(step=row.values[_STEP]) for row in stepped] or found


def _texts(path: Path, given: Given) -> Iterator[Row]:
    if path.name == "wandb-summary.json" or path.suffix == ".json":
        raise ValueError(
            f"{clean(str(path))!r} has the last values only, no history; name the run-ID.wandb "
            "file beside it, or export the history as CSV"
        )
    run = next((each.name for each in path.parents if "run-" in each.name), "").rpartition("-")[2]
    for line, record in json_lines(path, given):
        if isinstance(record, dict) and "_step" in record:
            yield Row(path, line, record["_step"], flatten(record), {}, run)
        else:
            given.problem(path, line, "no row of W&B's history")


def _config(data: bytes) -> dict[str, str]:
    return {key: str(value)[:_SETTING] for key, value in map(_item, parts(data, 1)) if key}


def _history(data: bytes) -> tuple[Any, dict[str, float]]:
    told = {key: number(value) for key, value in map(_item, parts(data, 1))}
    values = {key: value for key, value in told.items() if value is not None}
    # a step of 0 is not written
    steps = [{n: v for n, _, v in fields(step)}.get(1, 0) for step in parts(data, 2)]
    return values.get("_step", steps[-1] if steps else None), values


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
    pieces: list[bytes] = []
    count, at = 0, len(HEAD)
    try:
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                for kind, data in _chunks(path, block, at, given):
                    if kind in (_WHOLE, _FIRST):
                        count, pieces = count + 1, [data]
                    elif kind in (_MIDDLE, _LAST) and pieces:
                        pieces.append(data)
                    else:  # the middle of one whose beginning is damaged
                        pieces = []
                    if sum(map(len, pieces)) > LARGEST:
                        given.problem(path, None, f"record {count} is larger than {LARGEST} bytes")
                        pieces = []
                    if kind in (_WHOLE, _LAST) and pieces:
                        yield count, b"".join(pieces)
                        pieces = []
                at = 0
    except OSError as error:
        given.problem(path, None, f"cannot be read: {reason_of(error)}")
    if pieces:
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
