"""Decode the fields of protocol buffer messages without their schema.

TensorBoard's and W&B's files hold such messages. Only a few numbers are needed, whose field numbers
never change. So they are decoded here, and neither package has to be installed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeVar

from .source import UnreadableError

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
_FIXED = {EIGHT: "<d", FOUR: "<f"}
Value = TypeVar("Value", int, float, bytes)


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield number, wire type and value (int for VARINT, else bytes) of a message's fields.

    Raises `UnreadableError` if the data is not a message.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, at = _varint(data, at)
        else:  # groups are obsolete and have no length
            length = struct.calcsize(_FIXED[kind]) if kind in _FIXED else len(data)
        if at + length > len(data):
            raise UnreadableError("not a whole message")
        yield number, kind, data[at : at + length]
        at += length


def values(data: bytes, number: int, kind: type[Value]) -> list[Value]:
    """Return a message's values in one field, as float for 4 or 8 bytes."""
    found: list[Value] = []
    for each, wire, value in fields(data):
        if wire in _FIXED and isinstance(value, bytes):
            value = struct.unpack(_FIXED[wire], value)[0]
        if each == number and isinstance(value, kind):
            found.append(value)
    return found


def varints(data: bytes) -> list[int]:
    at, found = 0, []
    while at < len(data):
        value, at = _varint(data, at)
        found.append(signed(value))
    return found


def text(data: bytes, number: int) -> str:
    """Return the last string in a field, "" without one; invalid UTF-8 is replaced."""
    return b"".join(values(data, number, bytes)[-1:]).decode("utf-8", "replace")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value & (2**64 - 1), at + place + 1
    raise UnreadableError("not a whole message")


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
