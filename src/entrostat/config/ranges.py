"""Ranges of settings, each beside the setting's default."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

# above, a run would hang or crash where it begins: it is a slip
MOST_PROMPTS, MOST_TOKENS, MOST = 10**5, 10**7, 2**31 - 1


def within(
    default: Any, low: float, high: float | None = None, *, above: bool = False, below: bool = False
) -> Any:
    """A setting's default, and its range: [low, high], without low or high if `above` or `below`.

    Without `high` an integer is at most `MOST`. None passes, and every number of a tuple is
    checked.
    """
    return dataclasses.field(default=default, metadata={"range": (low, high, above, below)})


def check_ranges(settings: Any, prefix: str = "") -> None:
    """Check the numbers of a dataclass and of those in it."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            check_ranges(value, f"{prefix}{field.name}.")
        if "range" not in field.metadata:
            continue
        for number in value if isinstance(value, tuple) else (value,):
            bound = "" if number is None else _bound(number, *field.metadata["range"])
            if bound:
                raise ValueError(f"{prefix}{field.name} must be {bound}, got {number}")


def _bound(number: float, low: float, high: float | None, above: bool, below: bool) -> str:
    """The bound that a number breaks, in words; "" where it breaks none."""
    most = MOST if high is None and isinstance(number, int) else high
    small = not (number > low if above else number >= low)  # NaN, too
    large = math.isinf(number) if most is None else not (number < most if below else number <= most)
    if not small and not large:
        return ""
    if isinstance(number, float) and high is not None:
        return f"in {'(' if above else '['}{low}, {high}{')' if below else ']'}"
    return f"at most {most}" if large and most else f"{'above' if above else 'at least'} {low}"


def check_device(name: str, device: str) -> None:
    if not re.fullmatch(r"auto|cpu|cuda(:[1-9]?\d)?", device):
        raise ValueError(f"{name} must be 'auto', 'cpu' or 'cuda' (or 'cuda:N'), got {device!r}")
