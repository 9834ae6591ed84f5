r"""Programs that a model wrote, run where they can do no harm.

    from entrostat import sandbox

    sandbox.run("print(input()[::-1])", stdin="abc").stdout     # "cba\n"
    sandbox.run("while True: pass").failure                     # "timed out"

`run` and `run_many` run whole programs, `judge` tests the functions of one, `Session` keeps an
interpreter over turns. `isolation` says what keeps programs apart on this machine; where nothing
does they are refused, unless "unsafe" is asked for. docs/sandbox.md says what is contained by what.

A program is forked, in milliseconds, from an interpreter (`lane`) that has nothing of ours in it.
"""

from .limits import Failure, Limits, Result
from .running import Session, Verdict, isolation, judge, run, run_many, use

__all__ = [
    "Failure", "Limits", "Result", "Session", "Verdict", "isolation", "judge", "run", "run_many",
    "use",
]  # fmt: skip
