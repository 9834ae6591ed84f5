"""Read W&B's own files: run-ID.wandb, wandb-history.jsonl and wandb-summary.json.

Every run, offline or not, has a local `.wandb` file, a log in LevelDB's format: after 7 bytes
(":W&B", 0xBEE1, version 0) blocks of 32 KiB with chunks of 4 bytes CRC32, 2 bytes length, 1 byte
kind (whole, first, middle, last), data. The data are `Record` messages
(wandb/proto/wandb_internal.proto). The history's numbers, the run's id and its settings are read.
A damaged chunk loses the rest of its block. W&B 0.31 no longer has a Python reader.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .names import flatten
from .rows import Row
from .source import Given, UnreadableError, clean, number
from .steps import all_recorded
from .verl import settings_of
from .wire import text, values

HEAD = b":W&B\xe1\xbe\x00"
_BLOCK = 32 * 1024
_CHUNK = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_SETTING = 1 << 20  # characters of the longest setting that is kept
_STEP = "train/global_step"
CALLED = "W&B's name"  # the run's name, beside its id
_PLAIN = ("max_steps", "logging_steps", "iterations", CALLED)  # settings of TRL and entrostat


def is_file(head: bytes) -> bool:
    return head.startswith(HEAD)


def scan(path: Path, given: Given) -> Iterator[Row]:
    """Yield rows of a file; rows of a `.wandb` file have its run id and its settings.

    Raises:
        ValueError: the file is a summary, which has no history.
    """
    with open(path, "rb") as file:
        binary = is_file(file.read(len(HEAD)))
    if path.suffix == ".json" and not binary:
        raise ValueError(
            f"{clean(str(path))!r} has the last values only, no history; name the run-ID.wandb "
            "file beside it, or export the history as CSV"
        )
    for row in _log(path, given) if binary else all_recorded(RECORDS, path, given):
        if isinstance(row, Row):  # without W&B's own columns
            kept = {key: value for key, value in row.values.items() if not key.startswith("_")}
            yield row._replace(values=kept, run=clean(row.run))


def _log(path: Path, given: Given) -> list[Row]:
    run = path.stem.removeprefix("run-")
    settings: dict[str, str] = {}
    rows: list[tuple[Any, dict[str, float]]] = []
    for place, data in _records(path, given):
        try:
            configs = values(data, 5, bytes)
            rows += map(_history, values(data, 2, bytes))
            for about in values(data, 17, bytes):
                run_id, name = (clean(text(about, n))[:200] for n in (1, 8))
                run = run_id or run
                settings |= {CALLED: name} if name else {}
                configs += values(about, 4, bytes)
            items = [_item(item) for config in configs for item in values(config, 1, bytes)]
            settings |= {key: str(value)[:_SETTING] for key, value in items if key}
        except UnreadableError as error:
            given.problem(path, None, f"record {place}: {error}")
    joined = " ".join(f'"{key}": {value}' for key, value in settings.items())
    plain = {key: settings[key] for key in _PLAIN if key in settings} | settings_of(joined)
    found = [Row(path, None, step, each, plain, run) for step, each in rows if each]
    # TRL logs its step as a metric; rows without it hold timings of functions
    stepped = [row for row in found if _STEP in row.values]
    return [row._replace(step=row.values[_STEP]) for row in stepped] or found


def _row(path: Path, line: int, record: Mapping[str, Any]) -> Row:
    run = next((each.name for each in path.parents if "run-" in each.name), "").rpartition("-")[2]
    return Row(path, line, record["_step"], flatten(record), {}, run)


RECORDS = tuple(({"_step": object, key: object}, _row) for key in ("_timestamp", "_runtime"))


def _history(data: bytes) -> tuple[Any, dict[str, float]]:
    told = {key: number(value) for key, value in map(_item, values(data, 1, bytes))}
    known = {key: value for key, value in told.items() if value is not None}
    # protobuf omits a step of 0
    steps = [(values(step, 1, int) or [0])[-1] for step in values(data, 2, bytes)]
    return known.get("_step", steps[-1] if steps else None), known


def _item(data: bytes) -> tuple[str, Any]:
    nested = (part.decode("utf-8", "replace") for part in values(data, 2, bytes))
    told: list[Any] = [text(data, 16)] if values(data, 16, bytes) else []
    told += [(value >> 1) ^ -(value & 1) for value in values(data, 5, int)]  # sint64
    told += values(data, 6, float)
    return text(data, 1) or ".".join(nested), told[-1] if told else None


def _records(path: Path, given: Given) -> Iterator[tuple[int, bytes]]:
    count, pieces = 0, list[bytes]()
    for kind, data in _chunks(path, given):
        if kind in (_WHOLE, _FIRST):
            count, pieces = count + 1, [data]
        elif kind in (_MIDDLE, _LAST) and pieces:
            pieces.append(data)
        else:  # a middle part whose first part is damaged
            pieces = []
        if kind in (_WHOLE, _LAST) and pieces:
            yield count, b"".join(pieces)
            pieces = []
    if pieces:
        given.problem(path, None, f"cut within record {count}")


def _chunks(path: Path, given: Given) -> Iterator[tuple[int, bytes]]:
    """Yield kind and data of chunks; skip the rest of a block after a damaged chunk."""
    at = len(HEAD)
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            # zeros are preallocated space
            while any(head := block[at : at + _CHUNK.size]):
                begin = at + _CHUNK.size
                whole = len(head) == _CHUNK.size
                check, length, kind = _CHUNK.unpack(head) if whole else (0, _BLOCK, 0)
                at = begin + length
                data = block[begin:at]
                if at > len(block) and len(block) < _BLOCK:
                    given.problem(path, None, "its last record is cut")
                    break
                if at > len(block) or zlib.crc32(data, zlib.crc32(bytes([kind]))) != check:
                    given.problem(path, None, "a damaged block, of which the rest is left out")
                    break
                yield kind, data
            at = 0
