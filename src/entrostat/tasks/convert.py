"""A data set's rows as problems: what is asked, and the answer in the form that its grader takes.

A reader gets a row by our own field names and gives a `Problem`. A row that cannot be graded raises
`LeftOut` with the reason, which is counted: nothing disappears in silence. A row whose shape is
another than the data set's raises ValueError: the schema has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Row = Mapping[str, Any]
LONGEST_ANSWER = 500  # characters; what is longer is a proof or a worked solution
_NO_ANSWER = frozenset({"", "proof", "notfound", "none", "null"})
# DAPO-Math-17k wraps its problems in these
DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'


class LeftOut(Exception):  # noqa: N818 - it says what happens to the row
    """A row that is no problem one can grade; the message is the reason, as counted."""


class Problem(NamedTuple):
    """What is asked, and what a grader compares with.

    Attributes:
        prompt: the problem, before a template is put around it.
        answer: for the grader; or what makes it of the row, where it is too large to be kept.
    """

    prompt: str
    answer: str | Callable[[Row], str]


Reader = Callable[[Row], Problem]


def mathematics(row: Row) -> Problem:
    r"""A problem and its final answer.

    The answer is what stands in the last \boxed{} of the text (in several that stand together),
    else after its last ####, else the text itself; of a list, all entries, joined by commas.
    """
    prompt = text_of(row["prompt"]).removeprefix(DAPO_BEFORE).removesuffix(DAPO_AFTER)
    answer = final(row["answer"])
    if answer.lower() in _NO_ANSWER:
        raise LeftOut("no answer")
    if len(answer) > LONGEST_ANSWER:
        raise LeftOut(f"an answer of more than {LONGEST_ANSWER} characters")
    return Problem(prompt, answer)


def numina_amc_aime(row: Row) -> Problem:
    """Of NuminaMath-1.5: what comes from AMC and AIME, has one checkable answer, and is valid.

    REPO (sec. 4) trains on "a non-overlapping quality-filtered subset" of 563 problems and does not
    say how it was filtered. This keeps what the set's own marks call good.
    """
    if row["source"] != "amc_aime":
        raise LeftOut("not from AMC or AIME")
    if row["synthetic"]:
        raise LeftOut("synthetic")
    if row["question_type"] != "math-word-problem":
        raise LeftOut("multiple choice or proof")
    if (row["problem_is_valid"], row["solution_is_valid"]) != ("Yes", "Yes"):
        raise LeftOut("marked as not valid")
    return mathematics(row)


def olympiad(row: Row) -> Problem:
    """Of OlympiadBench: the context before the question; all final answers, joined by commas."""
    context = row.get("context")
    problem = mathematics(row)
    return problem._replace(prompt=f"{context}\n{problem.prompt}") if context else problem


def instructions(row: Row) -> Problem:
    """Of IFEval: the prompt, and its instructions with their arguments as grader `ifeval` reads."""
    from ..grading.ifeval import needs, pack

    ids, arguments = row["instructions"], row["arguments"]
    lists = all(isinstance(x, Sequence) and not isinstance(x, str) for x in (ids, arguments))
    if not lists or len(ids) != len(arguments):
        raise ValueError("as many arguments as instructions are needed, in two lists")
    missing = needs(ids)
    if missing:
        raise LeftOut(missing)
    return Problem(text_of(row["prompt"]), pack(ids, arguments))


def final(value: Any) -> str:
    r"""The final answer in a column: the last \boxed{}, what follows ####, or all of it.

    Boxes that stand together are a list ("x = \boxed{3} or x = \boxed{5}").
    """
    from ..grading.mathematics import expected_answer

    if isinstance(value, list | tuple):
        return ", ".join(final(one) for one in value)
    if value is None:
        return ""
    return expected_answer(str(value).strip())


def text_of(value: Any) -> str:
    """A prompt's text: itself, or the last user's turn of a conversation."""
    if isinstance(value, list | tuple):
        turns = [one for one in value if isinstance(one, Mapping) and one.get("role") == "user"]
        value = turns[-1].get("content") if turns else None
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"the prompt must be a text, got {value!r:.60}")
    return value.strip()
