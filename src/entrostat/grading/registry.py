"""The table of graders, and lookup by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

from .._names import unknown
from .._plugins import find, offered, offers
from ..workers.server import find_function

Grader = Callable[[str, str], float]
LARGEST_REWARD = 1e18  # statistics square rewards, and float32 overflows at the square of much more


@dataclass(frozen=True)
class Kind:
    home: str  # MODULE:FUNCTION of (response, answer); its keyword-only arguments are its options
    summary: str
    total: bool = False  # grades any text in linear time, so it needs no process of its own
    check: str = ""  # FUNCTION of that module that raises ValueError for bad answers or options
    warm: str = ""  # MODULE:FUNCTION that does slow imports before workers are forked
    needs: tuple[str, str] | None = None  # required module, and the message if it is missing


GRADERS: dict[str, Kind] = {
    "exact": Kind("entrostat.grading.texts:grade_exact", "the text itself", True, "check_text"),
    "contains": Kind("entrostat.grading.texts:grade_contains", "a text in it", True, "check_text"),
    "number": Kind(
        "entrostat.grading.numbers:grade_number",
        "its answer as a number, exactly",
        True,
        "check_number",
    ),
    "math": Kind(
        "entrostat.grading.mathematics:grade_math",
        "equal in mathematics",
        check="check_math",
        warm="entrostat.formulas.symbolic:warm",
        needs=(
            "math_verify",
            "grader 'math' needs math-verify: pip install 'entrostat[tasks]'; in veRL's "
            "environment, where Hydra holds antlr 4.9.3, 'math-verify[antlr4_9_3]'",
        ),
    ),
    "code": Kind(
        "entrostat.grading.code:grade_code",
        "the program in it passes tests, in the sandbox",
        check="check_code",
        warm="entrostat.sandbox:isolation",  # finds how programs can be isolated here
    ),
    "ifeval": Kind(
        "entrostat.grading.ifeval:grade_ifeval", "instructions followed", True, "check_ifeval"
    ),
}


def is_total(name: str) -> bool:
    """Whether a grader is in `GRADERS` and cannot hang."""
    return name in GRADERS and GRADERS[name].total


def make_grader(name: str, options: Mapping[str, Any] | None = None) -> Grader:
    """Make a grader by name: of `GRADERS`, of a package, or MODULE:FUNCTION of (response, answer).

    Args:
        name: the grader's name. An installed package registers one by an entry point of the group
            `entrostat.graders`.
        options: the grader's settings, keyword arguments of its function.
    """
    grader = _found(name)
    if not options:
        return grader
    known = []
    with suppress(ValueError):  # functions written in C may have no signature
        parameters = inspect.signature(grader).parameters.values()
        known = [one.name for one in parameters if one.kind == one.KEYWORD_ONLY]
    for key in options:
        if key not in known:
            there = unknown("option", key, known) if known else f"it has no option {key!r}"
            raise ValueError(f"grader {name!r}: {there}")
    return partial(grader, **options)


def check_answer(name: str, answer: str, options: Mapping[str, Any] | None = None) -> None:
    """Raise ValueError for an expected answer or options that a grader cannot use."""
    kind = GRADERS.get(name)
    if kind is not None and kind.check:
        module = kind.home.partition(":")[0]
        try:
            find_function(f"{module}:{kind.check}")(answer, **(options or {}))
        except ValueError as error:
            raise ValueError(f"grader {name!r} {error}") from None


@cache
def _found(name: str) -> Grader:
    if name in GRADERS:
        kind = GRADERS[name]
        if kind.needs is not None and find_spec(kind.needs[0]) is None:
            raise ValueError(kind.needs[1])
        return find_function(kind.home)
    if ":" in name:
        module, function = find(name, "grader")
        whose, grader = f"grader {name!r}", getattr(module, function, None)
        if grader is None:
            raise ValueError(f"unknown {whose}: {module.__name__} has no function {function!r}")
    elif (offer := offered("grader", name)) is not None:
        whose, grader = offer.whose, offer.load()
    else:
        there = unknown("grader", name, [*GRADERS, *(offer.name for offer in offers("grader"))])
        raise ValueError(f"{there} Or MODULE:FUNCTION, your own.")
    if not callable(grader):
        raise ValueError(f"{whose} is a {type(grader).__name__}; a grader is a function")
    try:
        inspect.signature(grader).bind("", "")
    except TypeError as error:
        raise ValueError(f"{whose} must take (response, answer): {error}") from None
    except ValueError:
        pass  # functions written in C may have no signature
    return grader


def as_reward(value: Any) -> float:
    """Convert a scorer's result to a float that float32 arithmetic can use, or raise ValueError."""
    number = math.nan
    if not isinstance(value, str | bytes | bytearray):
        with suppress(TypeError, ValueError, RuntimeError, OverflowError):
            number = float(value.item() if hasattr(value, "item") else value)
    if not abs(number) <= LARGEST_REWARD:
        raise ValueError(
            f"the reward is {_shown(value)}; it must be one finite number"
            + (f" of at most {LARGEST_REWARD:g}" if math.isfinite(number) else "")
        )
    return number


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except Exception:  # a user's __repr__
        return f"a {type(value).__name__}"
