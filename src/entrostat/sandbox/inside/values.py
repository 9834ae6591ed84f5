"""JSON encoding of values between a program's process and its tests', and their equality.

Plain data is sent by value, so a test compares builtin types only. Other objects stay in the
program's process and are sent as handles: ["o", [number, class, exception, plain]].
"""

from __future__ import annotations

import datetime
import math
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

# a subclass is converted by the methods of its builtin base
_PLAIN: dict[type[Any], Callable[[Any], Any]] = {
    bool: bool, int: int.__int__, float: float.__float__, str: str.__str__,
}  # fmt: skip
_SERIES: dict[str, type[Any]] = {
    "l": list, "t": tuple, "s": set, "f": frozenset, "q": deque,
}  # fmt: skip
# types of the standard library: (tag, encoder, decoder)
_WORDS: dict[type[Any], tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    complex: ("c", lambda x: [x.real, x.imag], lambda parts: complex(*parts)),
    bytes: ("b", bytes.hex, bytes.fromhex),
    bytearray: ("b", bytearray.hex, bytes.fromhex),
    range: ("r", lambda x: [x.start, x.stop, x.step], lambda parts: range(*parts)),
    Decimal: ("D", str, Decimal),
    Fraction: ("F", lambda x: [x.numerator, x.denominator], lambda parts: Fraction(*parts)),
    datetime.date: ("date", str, datetime.date.fromisoformat),
    datetime.datetime: ("datetime", str, datetime.datetime.fromisoformat),
    datetime.timedelta: (
        "timedelta",
        lambda x: [x.days, x.seconds, x.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
}
_MADE = {word: make for word, _, make in _WORDS.values()}


def encode(value: Any, handle: Callable[[Any, Any], Any] | None = None) -> Any:
    """Encode a value as JSON; types that JSON lacks become [kind, parts].

    `handle` makes a handle from an object and its plain form (or None); without `handle` anything
    but plain data raises TypeError.
    """
    if handle is not None and type(value).__module__ == "solution":
        try:
            return handle(value, encode(value))
        except (TypeError, RecursionError):
            return handle(value, None)
    for kind, exactly in _PLAIN.items():
        if isinstance(value, kind):
            return exactly(value)
    if value is None:
        return None
    for word, series in _SERIES.items():
        if isinstance(value, series):
            return [word, [encode(item, handle) for item in value]]
    if isinstance(value, dict):
        return ["d", [[encode(key, handle), encode(item, handle)] for key, item in value.items()]]
    if type(value) in _WORDS:
        word, say, _ = _WORDS[type(value)]
        return [word, say(value)]
    if handle is None:
        raise TypeError(f"a {type(value).__name__} is no plain data")
    return handle(value, None)


def decode(value: Any, found: Callable[[list[Any]], Any] | None = None) -> Any:
    """Decode the result of `encode` to builtin types.

    `found` maps a handle's parts to an object.
    """
    if not isinstance(value, list):
        return value
    kind, parts = value
    if kind == "d":
        return {decode(key, found): decode(item, found) for key, item in parts}
    if kind in _MADE:
        return _MADE[kind](parts)
    if kind == "o":
        if found is None:
            raise TypeError(f"a {parts[1]} is no plain data")
        return found(parts)
    return _SERIES[kind](decode(item, found) for item in parts)


def same(got: Any, expected: Any) -> bool:
    """Whether a result equals the expected value, which comes from JSON.

    A tuple equals a list, a numeric key its string, floats are equal within 1e-9, and True is not
    1.
    """
    if isinstance(got, list | tuple) and isinstance(expected, list | tuple):
        return len(got) == len(expected) and all(map(same, got, expected))
    if isinstance(got, dict) and isinstance(expected, dict):
        if all(isinstance(key, str) for key in expected):
            named = {str(key) if type(key) in (int, float) else key: got[key] for key in got}
            got = named if len(named) == len(got) else got
        return got.keys() == expected.keys() and all(same(got[key], expected[key]) for key in got)
    if isinstance(got, bool) or isinstance(expected, bool):
        return got is expected
    numbers = isinstance(got, int | float) and isinstance(expected, int | float)
    if numbers and float in (type(got), type(expected)):
        return got == expected or math.isclose(got, expected, rel_tol=1e-9, abs_tol=1e-9)
    return type(got) is type(expected) and got == expected
