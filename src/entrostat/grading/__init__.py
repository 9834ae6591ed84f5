"""Graders: a response and the expected answer to a reward.

`grade(grader, response, answer)` is what everything that scores a text by name calls. `GRADERS` is
the one table of names; MODULE:FUNCTION is a grader of the user's own. A grader that is *total*
gives any text a grade in time linear in its length, and is called in process. The others (they
simplify formulas, run programs, or are somebody else's) go to worker processes under a time limit:
hosts call `grade_here` in theirs, `grade` in a small pool of its own.
"""

from .call import grade, grade_here, prepare
from .numbers import grade_number, last_number
from .registry import (
    GRADERS,
    Grader,
    Kind,
    as_reward,
    check_answer,
    is_total,
    make_grader,
)
from .texts import final_answer, grade_contains, grade_exact

__all__ = [
    "GRADERS",
    "Grader",
    "Kind",
    "as_reward",
    "check_answer",
    "final_answer",
    "grade",
    "grade_contains",
    "grade_exact",
    "grade_here",
    "grade_number",
    "is_total",
    "last_number",
    "make_grader",
    "prepare",
]
