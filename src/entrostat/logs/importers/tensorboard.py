"""TensorBoard's event files, whoever wrote them: TRL, veRL, slime, entrostat.

A file is records of 8 bytes length, its CRC32C, the data, their CRC32C (tensorflow/core/lib/io/
record_writer.cc); the data are `Event` messages (tensorboard/compat/proto/event.proto). Scalars are
read, as `simple_value` or as a tensor of one number; what a restart says to be void is left out, as
TensorBoard does. A file still being written ends in a record that is cut.
"""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from . import table
from .rows import Row
from .source import Given, UnreadableError, clean, reason_of
from .wire import VARINT, fields, parts, real, signed, text

LARGEST = 1 << 20  # bytes of a record that is read: larger ones are pictures and graphs
_HEAD = struct.Struct("<QI")
_VERSION = b"brain.Event:"
# TensorProto: dtype -> the fields that hold a number of it, and how it is packed in tensor_content
_TENSORS = {1: (5, "<f"), 2: (6, "<d"), 3: (7, "<i"), 9: (10, "<q")}
_WHOLE = (3, 9)  # whose list is one of varints

Values = dict[int, dict[str, float]]


def is_file(head: bytes) -> bool:
    if len(head) < 64 and len(head) < _HEAD.size + len(_VERSION):
        return False
    length, check = _HEAD.unpack_from(head)
    return masked(head[:8]) == check and _VERSION in head[: _HEAD.size + min(length, 256)]


run_of = partial(table.run_of, tracker="TensorBoard")


def scan(files: Sequence[Path], given: Given) -> list[Row]:
    """Rows of all `files`; those of a directory have its name as their run's.

    What a later file of a directory declares void is left out of those before it.
    """
    kept: dict[Path, dict[Path, Values]] = defaultdict(dict)
    for path in files:
        steps: Values = {}
        for place, data in _records(path, given):
            try:
                step, restart, scalars = _event(data)
            except UnreadableError as error:
                given.problem(path, None, f"record {place}: {error}")
                continue
            if restart and step > 0:
                for before in (*kept[path.parent].values(), steps):
                    for void in [each for each in before if each >= step]:
                        del before[void]
            if scalars:
                steps.setdefault(step, {}).update(scalars)
        kept[path.parent][path] = steps
    return [
        Row(path, None, step, steps[step], {}, clean(folder.name))
        for folder, found in kept.items()
        for path, steps in found.items()
        for step in sorted(steps)
    ]


def _records(path: Path, given: Given) -> Iterator[tuple[int, bytes]]:
    """Numbers from 1, and data, of the records that are whole."""
    try:
        with open(path, "rb") as file:
            size, place = os.fstat(file.fileno()).st_size, 0
            while head := file.read(_HEAD.size):
                place += 1
                length, check = _HEAD.unpack(head) if len(head) == _HEAD.size else (size, 0)
                if len(head) == _HEAD.size and masked(head[:8]) != check:
                    damaged = f"record {place} has a damaged length; the rest is not read"
                    given.problem(path, None, damaged)
                    return
                if file.tell() + length + 4 > size:
                    given.problem(path, None, f"cut within record {place}")
                    return
                if length > LARGEST:
                    file.seek(length + 4, os.SEEK_CUR)
                    continue
                data = file.read(length)
                if masked(data) == int.from_bytes(file.read(4), "little"):
                    yield place, data
                else:
                    given.problem(path, None, f"record {place} is damaged, and left out")
    except OSError as error:
        given.problem(path, None, f"cannot be read: {reason_of(error)}")


def _event(data: bytes) -> tuple[int, bool, dict[str, float]]:
    """Step of an event, whether it starts anew after a restart, and its scalars."""
    steps = [value for number, _, value in fields(data) if number == 2 and isinstance(value, int)]
    scalars: dict[str, float] = {}
    for value in (value for summary in parts(data, 5) for value in parts(summary, 1)):
        scalars |= _scalar(value)
    # SessionLog.status START
    restart = any((1, VARINT, 1) in fields(session) for session in parts(data, 7))
    return signed(steps[-1]) if steps else 0, restart, scalars


def _scalar(data: bytes) -> dict[str, float]:
    """Tag and number of a summary's value; empty where it is a picture, a text, a histogram."""
    tag, found = "", None
    for number, kind, value in fields(data):
        if number == 1:
            tag = text(value)
        elif number == 2:
            found = real(kind, value)
        elif number == 8 and isinstance(value, bytes):
            found = _tensor(value)
    return {} if found is None else {tag: found}


def _tensor(data: bytes) -> float | None:
    """The number of a tensor that has one; None for another."""
    held = {number: value for number, _, value in fields(data)}
    dtype = held.get(1)
    if not isinstance(dtype, int) or dtype not in _TENSORS:
        return None
    listed, packed = _TENSORS[dtype]
    whole, value = dtype in _WHOLE, held.get(listed)
    content = held.get(4) or (None if whole else value)
    if isinstance(content, bytes) and len(content) == struct.calcsize(packed):
        return float(struct.unpack(packed, content)[0])
    if value and isinstance(value, bytes) and [b for b in value if b < 128] == [value[-1]]:
        value = next(fields(b"\x08" + value))[2]  # a packed list of one number, as a field
    return float(signed(value)) if whole and isinstance(value, int) else None


_CRC32C = [*range(256)]
for _ in range(8):
    _CRC32C = [each >> 1 ^ (0x82F63B78 if each & 1 else 0) for each in _CRC32C]


def masked(data: bytes) -> int:
    """CRC32C (Castagnoli) as record files have it: turned by 15 bits, and a constant added."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC32C[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
