"""Protocol between a pool and its workers: frames of a length and that many bytes.

Calls are sent as `marshal` data, which keeps types such as tuples and numeric keys; only the pool's
own process writes them. A worker's answer is read as JSON of bounded length, so a compromised
worker can fake a result but do nothing else.
"""

from __future__ import annotations

import json
import marshal
import struct
from typing import Any, NamedTuple

HEADER = struct.Struct("!I")
LONGEST_REPLY = 1 << 20
LONGEST_DETAIL = 1000
_ATOMS = frozenset({bool, int, float, complex, str, bytes, type(None)})
_SERIES = frozenset({list, tuple, set, frozenset})


class Call(NamedTuple):
    """A function by name and its arguments.

    Attributes:
        function: "MODULE:FUNCTION"; FUNCTION may be dotted.
        arguments: plain data: None, booleans, numbers, strings, bytes, and lists, tuples, sets and
            dictionaries of these.
    """

    function: str
    arguments: tuple[Any, ...] = ()


def is_plain(value: Any) -> bool:
    """Whether a value is exactly plain data: no subclass, no array.

    `marshal` would encode an array as its bytes.
    """
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind in _SERIES:
        return all(map(is_plain, value))
    return kind is dict and all(map(is_plain, value)) and all(map(is_plain, value.values()))


def encode_call(call: Call) -> bytes:
    try:
        if not is_plain(call.arguments):
            raise ValueError("not plain data")
        return _frame(marshal.dumps((call.function, call.arguments)))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"a call of {call.function!r}: its arguments must be plain data in a tuple (None, "
            "numbers, texts, bytes; lists, tuples, sets and dictionaries of such), got "
            f"{call.arguments!r:.80}"
        ) from error


def decode_call(payload: bytes) -> Call:
    return Call(*marshal.loads(payload))  # noqa: S302 - of our own process, see above


def encode_reply(value: Any = None, raised: str | None = None) -> bytes:
    """Frame with a call's value, or with the exception it raised."""
    if raised is None:
        try:
            text = json.dumps([True, value])
            if len(text) <= LONGEST_REPLY:
                return _frame(text.encode())
            raised = f"ValueError: the result is longer than {LONGEST_REPLY} characters"
        except (TypeError, ValueError, RecursionError) as error:
            raised = f"{type(error).__name__}: the result cannot be said in JSON: {error}"
    return _frame(json.dumps([False, raised[:LONGEST_DETAIL]]).encode())


def decode_reply(payload: bytes) -> tuple[bool, Any]:
    try:
        match json.loads(payload):
            case [True, value]:
                return True, value
            case [False, str(raised)]:
                return False, raised
    except RecursionError:
        pass
    raise ValueError("a worker gave something else than a reply")


def reply_length(header: bytes) -> int:
    (length,) = HEADER.unpack(header)
    if length > LONGEST_REPLY + 100:
        raise ValueError(f"a worker announced a reply of {length} bytes")
    return length


def _frame(payload: bytes) -> bytes:
    return HEADER.pack(len(payload)) + payload
