"""Graders: a response and the expected answer to a reward.

`grade(grader, response, answer)` is what everything that scores a text by name calls. `GRADERS` is
the one table of names; MODULE:FUNCTION is a grader of the user's own. A grader that is *total*
gives any text a grade in time linear in its length, and is called in process. The others (they
simplify formulas, run programs, or are somebody else's) go to worker processes under a time limit:
hosts call `grade_here` in theirs, `grade` in a small pool of its own.
"""

from .call import grade as grade
from .call import grade_here as grade_here
from .call import prepare as prepare
from .numbers import grade_number as grade_number
from .numbers import last_number as last_number
from .registry import GRADERS as GRADERS
from .registry import Grader as Grader
from .registry import Kind as Kind
from .registry import as_reward as as_reward
from .registry import check_answer as check_answer
from .registry import is_total as is_total
from .registry import make_grader as make_grader
from .texts import final_answer as final_answer
from .texts import grade_contains as grade_contains
from .texts import grade_exact as grade_exact
