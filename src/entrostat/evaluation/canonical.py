"""Canonical forms of responses: for counting distinct answers and for majority votes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import RunStopped, in_one_line
from ..grading import final_answer, last_number
from ..tasks import Task

RIGHT = "\u2713 expected"  # stands for every spelling of the one right answer


def _number(text: str, places: Any) -> str | None:
    found = last_number(text, **places)
    return None if found is None else str(found)


def _mathematics(text: str, places: Any) -> str | None:
    from ..formulas import tokens
    from ..grading import mathematics

    found = mathematics.extracted(text, **places)
    return " and ".join(" ".join(str(t.value) for t in tokens(one)) for one in found) or None


# graders with one right answer: how to extract a response's answer
_ANSWERS: dict[str, Callable[[str, Any], str | None]] = {
    "exact": lambda text, places: final_answer(text) or None,
    "number": _number,
    "math": _mathematics,
}


def forms(task: Task, responses: Sequence[str]) -> list[str | None]:
    """Form in which equal answers are counted: the task's `canonical`, or the stripped text.

    None if the form is empty.
    """
    return [canonical(task, text).strip() or None for text in responses]


def votes(task: Task, responses: Sequence[str], scores: Sequence[float]) -> list[str | None]:
    """Vote of each response in maj@k; None abstains.

    If the grader has one right answer ("exact", "number", "math"), the vote is the extracted
    answer, and all right answers are one vote. For reasoning-gym it is the final answer; else it is
    the form by `forms`.
    """
    answer = _ANSWERS.get(getattr(task, "grader", ""))
    if answer is None:
        if task.name.startswith("gym:"):
            return [final_answer(text) or None for text in responses]
        return forms(task, responses)
    places = _places(task)
    return [
        RIGHT if score >= 1 else answer(text, places)
        for text, score in zip(responses, scores, strict=True)
    ]


def extracted(task: Task, responses: Sequence[str]) -> list[str | None]:
    """Answer that the task's grader extracts from each response; None if it finds none.

    For graders without one right answer, the response's final answer.
    """
    find = _ANSWERS.get(getattr(task, "grader", ""), lambda text, places: final_answer(text))
    places = _places(task)
    return [find(text, places) or None for text in responses]


def _places(task: Task) -> dict[str, Any]:
    options = getattr(task, "grader_options", {})
    return {"extract": options["extract"]} if "extract" in options else {}


def canonical(task: Task, text: str, where: str = "") -> str:
    """A response in the task's canonical form; unchanged if the task has no `canonical`.

    Raises:
        RunStopped: `canonical` raised or returned no string; the message begins with `where`.
    """
    of_task = getattr(task, "canonical", None)
    try:
        form = text if of_task is None else of_task(text)
    except Exception as error:
        raise RunStopped(
            f"{where}{task.name}.canonical raised {in_one_line(error)} on {text[:60]!r}"
        ) from error
    if not isinstance(form, str):
        raise RunStopped(
            f"{where}{task.name}.canonical must give a text, not {form!r:.80}, on {text[:60]!r}"
        )
    return form
