"""Messages of protocol buffers as the fields that are in them, without knowing the messages.

TensorBoard's and W&B's files hold such messages. Of these a handful of numbers is wanted, whose
fields can never change; so they are read here, and neither package has to be installed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from .source import UnreadableError

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
_FIXED = {EIGHT: 8, FOUR: 4}


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Number, wire type and value (from 0 for VARINT, else bytes) of a message's fields.

    Raises `UnreadableError` where it is no message.

    Example:
        >>> list(fields(bytes([0x10, 0x96, 0x01, 0x1A, 0x02, 0x68, 0x69])))
        [(2, 0, 150), (3, 2, b'hi')]
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        length, at = _varint(data, at) if kind == BYTES else (_FIXED.get(kind, len(data)), at)
        if at + length > len(data):
            raise UnreadableError("not a whole message")
        yield number, kind, data[at : at + length]
        at += length


def parts(data: bytes, number: int) -> list[bytes]:
    """The texts or messages in the fields of one number."""
    return [value for n, _, value in fields(data) if n == number and isinstance(value, bytes)]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at + place >= len(data):
            break
        byte = data[at + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value & (2**64 - 1), at + place + 1
    raise UnreadableError("not a whole message")


def signed(value: int) -> int:
    """A VARINT as int64 means it."""
    return value - 2**64 if value >= 2**63 else value


def real(kind: int, value: int | bytes) -> float | None:
    """A float or a double; None for another field."""
    if isinstance(value, int) or kind not in _FIXED:
        return None
    return struct.unpack("<d" if kind == EIGHT else "<f", value)[0]


def text(value: int | bytes) -> str:
    """A string; empty for another field. What is no UTF-8 in it is replaced."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
