"""Graders: map a response and the expected answer to a reward.

`grade(grader, response, answer)` scores a text by a grader's name. `GRADERS` is the table of names;
MODULE:FUNCTION is a user's own grader. A *total* grader grades any text in time linear in its
length, and is called in process. The others (they simplify formulas, run programs, or are a user's)
run in worker processes under a time limit: trainers call `grade_here` in their workers, `grade`
uses a small pool of its own.
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
