r"""Sandbox for programs that a model wrote.

    from entrostat import sandbox

    sandbox.run("print(input()[::-1])", stdin="abc").stdout     # "cba\n"
    sandbox.run("while True: pass").failure                     # "timed out"

`run` and `run_many` run whole programs, `judge` tests the functions of one, and `Session` keeps an
interpreter over several turns. `isolation` returns the isolation that works here. If none does, all
of these raise ValueError, unless the mode is "unsafe". docs/sandbox.md compares the modes.

A program is forked, in milliseconds, from an interpreter (`lane`) that holds nothing of entrostat.
"""

from .limits import Failure, Limits, Result
from .running import Session, Verdict, isolation, judge, run, run_many, use

__all__ = [
    "Failure", "Limits", "Result", "Session", "Verdict", "isolation", "judge", "run", "run_many",
    "use",
]  # fmt: skip
