"""Wrong programs through a set's own tests: what they pass teaches nothing, or worse."""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .. import sandbox
from ..grading import grade_here
from ..sandbox.running import at_once
from ..sandbox.unit_tests import parsed

ROWS = 64  # of a set, spread over it
_WRONG = """
def _wrong(*arguments, **named): return "of a wrong program"
class _Wrong:
    def __init__(self, *arguments, **named): pass
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return _wrong
"""


def passed_by_wrong_programs(
    answers: Sequence[Callable[[], str]], options: Mapping[str, Any]
) -> int | None:
    """Which of these tests a wrong program passes, or None; not tried where there is no sandbox."""
    try:
        sandbox.isolation()
    except ValueError:
        return None
    step = max(1, len(answers) // ROWS)
    places = range(0, len(answers), step)

    def lax(place: int) -> bool:
        try:
            answer = answers[place]()
        except ValueError:  # a broken row: whoever asks for it is told
            return False
        return any(grade_here("code", one, answer, options) >= 1 for one in ("", wrong(answer)))

    with ThreadPoolExecutor(at_once()) as threads:
        found = list(threads.map(lax, places))
    return next((place for place, one in zip(places, found, strict=True) if one), None)


def wrong(answer: str) -> str:
    """A program that has all names that tests use, and does nothing right."""
    tests = json.loads(answer)
    if tests["kind"] == "stdin":
        return 'print("of a wrong program")'
    if tests["kind"] == "calls":
        return f"{_WRONG}\n{tests['name']} = _wrong\n"
    sources = [tests["tests"]] if isinstance(tests["tests"], str) else tests["tests"]
    used: set[str] = set(re.findall(r"^def (\w+)", tests.get("prompt") or "", re.MULTILINE))
    for source in sources:
        for node in ast.walk(parsed(source) or ast.Module([], [])):
            used |= {getattr(node, "id", ""), getattr(node, "attr", "")}
            if isinstance(node, ast.ImportFrom) and node.module == "solution":
                used |= {alias.name for alias in node.names}
    names = sorted(
        n for n in used if n.isidentifier() and (n[0] != "_") and not hasattr(builtins, n)
    )
    lines = [f"class {n}(_Wrong): pass" if n[0].isupper() else
             f"def {n}(*arguments, **named): return _wrong()" for n in names]  # fmt: skip
    return "\n".join([_WRONG, *lines])
