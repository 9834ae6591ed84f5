"""What the tool tasks share: an instance, the checks on what became of it, the world it is in."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...sandbox import Session

# what there is, by name: path -> text, table/key -> row, title -> event; values as JSON has them
State = dict[str, Any]

PEOPLE = (
    "Ada Bruno Carla Dmitri Elena Farid Greta Hugo Ines Jonas Kira Luca Mona Nils Olga Pavel "
    "Rosa Samir Tessa Viktor"
).split()
CITIES = "Bern Cork Delft Essen Faro Ghent Lille Malmo Turin Vigo".split()


@dataclass(frozen=True)
class Instance:
    """One task: what is asked, what there is, what there should be."""

    ask: str  # the task, as the prompt says it
    before: State  # the state that the policy finds
    after: State | None = None  # the state that it should leave; None where only an answer is asked
    answer: Any = None  # what it should submit; None where nothing is asked


Template = Callable[[random.Random], Instance]


@dataclass(frozen=True)
class World:
    about: str  # what the policy has at hand, as the prompt says it
    setup: Callable[[State], str]  # the code that makes a state in a new notebook
    # the state of a notebook, as data; it may raise at what the policy has left
    read: Callable[[Session], State]
    # each with its difficulty: 1, 2 or 3, a step, several, several that build on one another
    templates: tuple[tuple[int, Template], ...]
    unseen: tuple[tuple[int, Template], ...]  # those that `train` and `test` do not have
    # a worked example for the prompt: what is asked, and turns (code, what it prints)
    shown: tuple[str, tuple[tuple[str, str], ...]]


def checks(instance: Instance, final: State, submitted: Any) -> list[bool]:
    """Which checks pass: nothing passes by doing nothing.

    One for each thing that had to change, to come or to go; to go counts where nothing else was
    touched, or deleting everything would be a good start. One for nothing else having changed,
    which counts where something that was asked has been done. One for the answer.
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
    """Whether what was submitted is the answer: a number, a text or a list of them.

    A number may come as text; upper and lower case and blanks around a text do not matter.
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
