"""Single values of a log: numbers and steps in any spelling, texts that can be shown."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

MAX_STEP = 2**53
NUMBER = re.compile(r"(?:np\.|numpy\.)?\w{0,16}\(([^()]{1,64})\)")


def number(value: Any) -> float | None:
    """A number, or a text that is one, as a float; it may be nan or inf. None for the rest."""
    if isinstance(value, str):
        text = value.strip()
        if wrapped := NUMBER.fullmatch(text):  # np.float64(0.5), tensor(0.5)
            text = wrapped[1]
        value = text if len(text) <= 64 and "_" not in text else None
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return None if value is None else float(value)
    except (ValueError, OverflowError):
        return None


def step_of(value: Any) -> int | None:
    """A step: a whole number from 0; None for anything else."""
    found = number(value)
    if found is None or not math.isfinite(found) or found != int(found):
        return None
    return int(found) if 0 <= found < MAX_STEP else None


def clean(text: Any) -> str:
    """A text that can be written as UTF-8."""
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else ""


def short(value: Any) -> str:
    """A value for an error message: one line, a few characters."""
    if isinstance(value, list | dict):
        return f"of type {type(value).__name__}"
    try:
        text = ascii(value)
    except ValueError:  # an integer of more digits than Python prints
        text = "of very many digits"
    return text if len(text) <= 40 else text[:37] + "..."


def finite(values: Sequence[float | None]) -> list[float]:
    """Those that are known and finite."""
    return [v for v in values if v is not None and math.isfinite(v)]
