"""Frames of JSON over a socket or a pipe: a length of 4 bytes and that many bytes."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

HEADER = struct.Struct("!I")
LONGEST = 64 << 20


def send(fd: int, value: Any) -> None:
    payload = json.dumps(value).encode()
    data = memoryview(HEADER.pack(len(payload)) + payload)
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int) -> Any:
    """Read a value; EOFError if the other end has closed, ValueError for an invalid frame."""
    (length,) = HEADER.unpack(_exactly(fd, HEADER.size))
    if length > LONGEST:
        raise ValueError(f"a frame of {length} bytes; at most {LONGEST} are read")
    return json.loads(_exactly(fd, length))


def _exactly(fd: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = os.read(fd, min(count - len(data), 1 << 20))
        if not piece:
            raise EOFError("the other end has closed")
        data += piece
    return bytes(data)
