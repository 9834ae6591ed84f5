"""Ranges of settings, each beside the setting's default."""

from __future__ import annotations

import dataclasses
from typing import Any

# above, a run would hang or crash where it begins: it is a slip
MOST_PROMPTS, MOST_TOKENS, MOST = 10**5, 10**7, 2**31 - 1


def within(
    default: Any, low: float, high: float = MOST, *, above: bool = False, below: bool = False
) -> Any:
    """A setting's default, and its range: [low, high], without low or high if `above` or `below`.

    None passes, and every number of a tuple is checked.
    """
    return dataclasses.field(default=default, metadata={"range": (low, high, above, below)})


def check_ranges(settings: Any, prefix: str = "") -> None:
    """Check the numbers of a dataclass and of those in it.

    Raises:
        ValueError: names the setting, after `prefix`, its value and its bound.
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            check_ranges(value, f"{prefix}{field.name}.")
        if "range" not in field.metadata:
            continue
        low, high, above, below = field.metadata["range"]
        for number in value if isinstance(value, tuple) else (value,):
            if number is None:
                continue
            bound = ""
            if not (number > low if above else number >= low):
                bound = f"{'above' if above else 'at least'} {low}"
            elif not (number < high if below else number <= high):
                bound = f"{'below' if below else 'at most'} {high}"
            if bound:
                raise ValueError(f"{prefix}{field.name} must be {bound}, got {number}")


def check_device(name: str, device: str) -> None:
    if device not in ("auto", "cpu") and not device.startswith("cuda"):
        raise ValueError(f"{name} must be 'auto', 'cpu' or 'cuda', got {device!r}")
