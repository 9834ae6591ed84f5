"""Read TensorBoard event files of any trainer: TRL, veRL, slime, entrostat.

A file is records of 8 bytes length, its CRC32C, the data, their CRC32C (tensorflow/core/lib/io/
record_writer.cc). The data are `Event` messages (tensorboard/compat/proto/event.proto). Scalars are
read, as `simple_value` or as a tensor of one number. Steps that a restart discards are left out, as
in TensorBoard. A file still being written ends in a truncated record.
"""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from .rows import Row
from .source import Given, UnreadableError, clean
from .wire import signed, text, values, varints

LARGEST = 1 << 20  # bytes of the largest record that is read: larger ones hold pictures and graphs
_HEAD = struct.Struct("<QI")
_VERSION = b"brain.Event:"
# TensorProto: dtype -> the fields that hold its numbers, and their packing in tensor_content
_TENSORS = {1: (5, "<f"), 2: (6, "<d"), 3: (7, "<i"), 9: (10, "<q")}
_WHOLE = (3, 9)  # dtypes whose list holds varints

Values = dict[int, dict[str, float]]


def is_file(head: bytes) -> bool:
    if len(head) < 64 and len(head) < _HEAD.size + len(_VERSION):
        return False
    length, check = _HEAD.unpack_from(head)
    return masked(head[:8]) == check and _VERSION in head[: _HEAD.size + min(length, 256)]


def scan(files: Sequence[Path], given: Given) -> list[Row]:
    """Yield rows of all `files`; the directory's name is the name of the run.

    Steps that a later file of a directory discards are removed from its earlier files.
    """
    kept: dict[Path, dict[Path, Values]] = defaultdict(dict)
    for path in files:
        steps = kept[path.parent][path] = Values()
        for place, data in _records(path, given):
            try:
                step = signed((values(data, 2, int) or [0])[-1])
                # SessionLog.status START
                restart = any(1 in values(session, 1, int) for session in values(data, 7, bytes))
                summaries = [each for s in values(data, 5, bytes) for each in values(s, 1, bytes)]
                scalars = {
                    text(s, 1): value for s in summaries if (value := _scalar(s)) is not None
                }
            except UnreadableError as error:
                given.problem(path, None, f"record {place}: {error}")
                continue
            if restart and step > 0:
                for before in kept[path.parent].values():
                    for void in [each for each in before if each >= step]:
                        del before[void]
            if scalars:
                steps.setdefault(step, {}).update(scalars)
    return [
        Row(path, None, step, steps[step], {}, clean(folder.name))
        for folder, found in kept.items()
        for path, steps in found.items()
        for step in sorted(steps)
    ]


def _records(path: Path, given: Given) -> Iterator[tuple[int, bytes]]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        for place in count(1):
            head = file.read(_HEAD.size)
            if not head:
                return
            length, check = _HEAD.unpack(head) if len(head) == _HEAD.size else (size, 0)
            if len(head) == _HEAD.size and masked(head[:8]) != check:
                reason = f"record {place} has a damaged length; the rest is not read"
                given.problem(path, None, reason)
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


def _scalar(data: bytes) -> float | None:
    """Return the number of a summary's value; None for a picture, a text or a histogram."""
    numbers = [*values(data, 2, float), *map(_tensor, values(data, 8, bytes))]
    return numbers[-1] if numbers else None


def _tensor(data: bytes) -> float | None:
    dtype = (values(data, 1, int) or [0])[-1]
    if dtype not in _TENSORS:
        return None
    field, packed = _TENSORS[dtype]
    lists, numbers = values(data, 4, bytes), list[float]()
    if dtype in _WHOLE:
        numbers += map(signed, values(data, field, int))
        numbers += [each for listed in values(data, field, bytes) for each in varints(listed)]
    else:
        numbers += values(data, field, float)
        lists += values(data, field, bytes)
    size = struct.calcsize(packed)
    numbers += [struct.unpack(packed, each)[0] for each in lists if len(each) == size]
    return float(numbers[0]) if len(numbers) == 1 else None


_CRC32C = [*range(256)]
for _ in range(8):
    _CRC32C = [each >> 1 ^ (0x82F63B78 if each & 1 else 0) for each in _CRC32C]


def masked(data: bytes) -> int:
    """Masked CRC32C (Castagnoli) of record files: rotated by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC32C[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
