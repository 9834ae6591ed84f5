"""Schedules for numeric parameters of a method: "linear A B", "cosine A B", "points 0:A 1:B".

Times go from 0 at the first iteration to 1 at the last, as in a thermostat's target.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TypeVar

from ..control.target import Level, Target, parse_schedule
from .base import Method

_FORMS = "'linear 0.28 0.2', 'cosine 0.28 0.2' or 'points 0:0.28 0.5:0.2 1:0.2'"
_M = TypeVar("_M", bound=Method)


def schedule_of(who: str, text: str) -> Target:
    try:
        return parse_schedule(text, _number)
    except ValueError:
        raise ValueError(
            f"{who}: {text!r} is no schedule; write {_FORMS}, times rising from 0 (the first "
            "iteration) to 1 (the last)"
        ) from None


def _number(text: str) -> Level:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return Level(value)


def scheduled(name: str, method: _M, schedules: Mapping[str, tuple[str, Target]]) -> _M:
    """The method with scheduled parameters, name -> (as written, parsed), at their start values."""
    if method.controls() is not None:
        raise ValueError(
            f"{name}: a controller moves {method.controls()}, and beside it no parameter takes a "
            "schedule; leave the controller out (a thermostat's target takes one)"
        )
    for key, (_, schedule) in schedules.items():
        for level in schedule.levels:
            dataclasses.replace(method, **{key: level.value})  # raises if out of range
    object.__setattr__(method, "schedules", schedules)
    return at(method, 0.0)


def at(method: _M, progress: float) -> _M:
    if not method.schedules:
        return method
    values = {key: target.at(progress, 0.0) for key, (_, target) in method.schedules.items()}
    new = dataclasses.replace(method, **values)
    object.__setattr__(new, "schedules", method.schedules)
    return new
