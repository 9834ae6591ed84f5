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
    """Grade a response; returns the reward.

    A grader that may hang, or that runs code of the response, is called in a worker process, which
    is kept for the next call. If it takes longer than `timeout` or its process dies, the reward is
    0.

    Args:
        grader: "exact", "contains", "number", "math", ... (`GRADERS`), or MODULE:FUNCTION.
        response: the policy's full response.
        answer: the expected answer.
        options: the grader's own settings, such as {"extract": "boxed"} for "math".
        timeout: seconds.

    Raises:
        ValueError: unknown grader or option, a program's `seconds` not below `timeout`, or the
            grader raised or returned no finite number.
    """
    make_grader(grader, options)  # raise for a wrong name in this process
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
    """Grade a response in this process, without a time limit; called in workers."""
    return as_reward(make_grader(name, options)(response, answer))


def prepare(name: str, options: Mapping[str, Any] | None = None) -> None:
    """Import the modules that a grader needs, before a pool forks its workers."""
    make_grader(name, options)
    if name in GRADERS and GRADERS[name].warm:
        find_function(GRADERS[name].warm)()


@cache
def _pool(grader: str, process: int) -> Pool:
    """The pool of a grader in this process; a forked process makes its own."""
    pool = Pool([Call("entrostat.grading:prepare", (grader,))], _WORKERS)
    atexit.register(lambda: pool.close() if os.getpid() == process else None)
    return pool
