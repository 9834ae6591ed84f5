"""Calling a grader by name: here, or in a worker process under a time limit."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from ..workers import Call, Pool
from ..workers.server import find_function
from .registry import GRADERS, as_reward, is_total, make_grader

_WORKERS = 2
_HERE = "entrostat.grading:grade_here"


def grade(
    grader: str,
    response: str,
    answer: str,
    *,
    options: Mapping[str, Any] | None = None,
    timeout: float = 10.0,
) -> float:
    """The reward that a grader gives a response.

    A grader that may hang, or takes code from the response, runs in a worker process that is kept
    for the next call. A response that it takes longer than `timeout` over, or that its process dies
    of, is worth 0.

    Args:
        grader: "exact", "contains", "number", "math", ... (`GRADERS`), or MODULE:FUNCTION.
        response: what a policy wrote, all of it.
        answer: what is expected.
        options: the grader's own settings, as {"extract": "boxed"} for "math".
        timeout: seconds.

    Raises:
        ValueError: no such grader or option, a program's `seconds` not below `timeout`, or the
            grader raised, or gave no finite number.
    """
    make_grader(grader, options)  # a wrong name is an error here, not in another process
    seconds = (options or {}).get("seconds")
    if grader == "code" and seconds is not None and seconds >= timeout:
        raise ValueError(
            f"grader 'code': a program may take {seconds:g} s (options.seconds), but its process "
            f"is ended after {timeout:g} s; give a longer timeout"
        )
    if is_total(grader):
        return grade_here(grader, response, answer, options)
    call = Call(_HERE, (grader, response, answer, dict(options or {})))
    (outcome,) = _pool(grader, os.getpid()).map([call], timeout)
    if outcome.failure == "raised":
        raise ValueError(f"grader {grader!r} raised at {response!r:.60}: {outcome.detail}")
    return 0.0 if outcome.failure else as_reward(outcome.value)


def grade_here(
    name: str, response: str, answer: str, options: Mapping[str, Any] | None = None
) -> float:
    """The reward that a grader gives, in this process and for as long as it takes: for workers."""
    return as_reward(make_grader(name, options)(response, answer))


def prepare(name: str, options: Mapping[str, Any] | None = None) -> None:
    """Import what a grader needs: what a pool's workers start with."""
    make_grader(name, options)
    if name in GRADERS and GRADERS[name].warm:
        find_function(GRADERS[name].warm)()


@cache
def _pool(grader: str, process: int) -> Pool:
    """The pool of a grader in this process; a fork of it makes its own."""
    pool = Pool([Call("entrostat.grading:prepare", (grader,))], _WORKERS)
    atexit.register(lambda: pool.close() if os.getpid() == process else None)
    return pool
