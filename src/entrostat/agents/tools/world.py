"""Common parts of the tool tasks: instances, their checks, and worlds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...sandbox import Session

# name -> JSON value: path -> text, table/key -> row, title -> event
State = dict[str, Any]

PEOPLE = (
    "Ada Bruno Carla Dmitri Elena Farid Greta Hugo Ines Jonas Kira Luca Mona Nils Olga Pavel "
    "Rosa Samir Tessa Viktor"
).split()
CITIES = "Bern Cork Delft Essen Faro Ghent Lille Malmo Turin Vigo".split()


@dataclass(frozen=True)
class Instance:
    """One task: its text, initial state and expected result."""

    ask: str  # text of the task in the prompt
    before: State  # initial state
    after: State | None = None  # expected final state; None if only an answer is asked
    answer: Any = None  # expected answer; None if none is asked


Template = Callable[[random.Random], Instance]


@dataclass(frozen=True)
class World:
    about: str  # text in the prompt about the available tools
    setup: Callable[[State], str]  # code that creates a state in a new notebook
    # state of a notebook, as data; may raise on what the policy left there
    read: Callable[[Session], State]
    # (difficulty, template): 1 is one step, 2 several, 3 several that depend on each other
    templates: tuple[tuple[int, Template], ...]
    unseen: tuple[tuple[int, Template], ...]  # not used in `train` and `test`
    # worked example for the prompt: task text, and turns (code, output)
    shown: tuple[str, tuple[tuple[str, str], ...]]


def checks(instance: Instance, final: State, submitted: Any) -> list[bool]:
    """Which checks pass; none passes without any action.

    There is one check per required change, addition or deletion. A deletion counts only if nothing
    else changed, so that deleting everything earns nothing. One check is that nothing else changed;
    it counts only if a required change was made. One check is for the answer.
    """
    passed = []
    if instance.after is not None:
        before, after = instance.before, instance.after
        goals = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        others = (before.keys() | final.keys()) - set(goals)
        intact = all(final.get(key) == before.get(key) for key in others)
        passed = [final.get(key) == after.get(key) and (key in after or intact) for key in goals]
        passed.append(any(passed) and intact)
    if instance.answer is not None:
        passed.append(is_answer(submitted, instance.answer))
    return passed


def is_answer(given: Any, expected: Any) -> bool:
    """Whether the submitted value is the expected number, string, or list of them.

    A number may be given as a string; case and surrounding whitespace of a string do not matter.
    """
    if isinstance(expected, list):
        same = isinstance(given, list) and len(given) == len(expected)
        return same and all(map(is_answer, given, expected))
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return False
    if isinstance(expected, str):
        return str(given).strip().casefold() == expected.casefold()
    try:
        return abs(float(given) - expected) < 1e-6
    except (ValueError, OverflowError):
        return False
