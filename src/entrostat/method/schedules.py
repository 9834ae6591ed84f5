"""A number of a method that changes over the run: "linear A B", "cosine A B", "points 0:A 1:B".

Times go from 0 at the first iteration to 1 at the last, as a thermostat's target does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, TypeVar

from ..control.target import Level, Target
from .base import Method

_FORMS = "'linear 0.28 0.2', 'cosine 0.28 0.2' or 'points 0:0.28 0.5:0.2 1:0.2'"
_M = TypeVar("_M", bound=Method)


def is_schedule(value: Any) -> bool:
    """Whether a value is written as a schedule."""
    return isinstance(value, str) and value.split()[:1] in (["linear"], ["cosine"], ["points"])


def parse_schedule(who: str, text: str) -> Target:
    """A schedule as a user writes it, read.

    Raises:
        ValueError: it cannot be read, or times do not rise from 0 to 1.
    """
    kind, *words = text.split()
    try:
        if kind == "points":
            pairs = [word.partition(":") for word in words]
            times = tuple(float(time) for time, _, _ in pairs)
            values = [float(value) for _, _, value in pairs]
        else:
            times, values = (0.0, 1.0), [float(word) for word in words]
    except ValueError:
        times, values = (), []
    rising = all(a < b for a, b in pairwise(times)) and all(0 <= t <= 1 for t in times)
    finite = all(math.isfinite(value) for value in values)
    if len(values) < 2 or len(values) != len(times) or not (rising and finite):
        raise ValueError(
            f"{who}: {text!r} is no schedule; write {_FORMS}, times rising from 0 (the first "
            "iteration) to 1 (the last)"
        )
    levels = tuple(Level(value) for value in values)
    return Target("entropy", times, levels, smooth=kind == "cosine")


def scheduled(name: str, method: _M, texts: Mapping[str, str]) -> _M:
    """A method whose parameters `texts` move over the run; now as at its begin.

    Raises:
        ValueError: a schedule that cannot be read or leaves the parameter's range, or of a method
            that a controller moves.
    """
    if not texts:
        return method
    if method.controls() is not None:
        raise ValueError(
            f"{name}: a controller moves {method.controls()}; give its target the schedule, or "
            "leave the controller out"
        )
    found = {key: parse_schedule(f"{name}: {key}", text) for key, text in texts.items()}
    for key, schedule in found.items():
        for level in schedule.levels:
            dataclasses.replace(method, **{key: level.value})  # raises where it is out of range
    object.__setattr__(method, "schedules", {k: (texts[k], found[k]) for k in texts})
    return at(method, 0.0)


def at(method: _M, progress: float) -> _M:
    """The method with its scheduled parameters as they are at a time of the run."""
    if not method.schedules:
        return method
    values = {key: target.at(progress, 0.0) for key, (_, target) in method.schedules.items()}
    new = dataclasses.replace(method, **values)
    object.__setattr__(new, "schedules", method.schedules)
    return new
