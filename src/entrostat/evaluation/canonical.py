"""What a response says, as its answer is counted and as it votes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import RunStopped, in_one_line
from ..grading import final_answer, last_number
from ..tasks import Task

RIGHT = "\u2713 expected"  # the one right answer of a grader that knows one, however written


def _number(text: str, places: Any) -> str | None:
    found = last_number(text, **places)
    return None if found is None else str(found)


def _mathematics(text: str, places: Any) -> str | None:
    from ..formulas import tokens
    from ..grading import mathematics

    found = mathematics.extracted(text, **places)
    return " and ".join(" ".join(str(t.value) for t in tokens(one)) for one in found) or None


# graders that know one right answer: what a response gives as its own
_ANSWERS: dict[str, Callable[[str, Any], str | None]] = {
    "exact": lambda text, places: final_answer(text) or None,
    "number": _number,
    "math": _mathematics,
}


def forms(task: Task, responses: Sequence[str]) -> list[str | None]:
    """How answers are counted as the same: the task's `canonical`, or the text without blanks.

    None where nothing is left.
    """
    return [canonical(task, text).strip() or None for text in responses]


def votes(task: Task, responses: Sequence[str], scores: Sequence[float]) -> list[str | None]:
    """What each response votes for in maj@k; None abstains.

    Where a grader knows one right answer ("exact", "number", "math"), what it takes to be the
    response's answer, and all right ones are one, however they are written; of a data set of
    reasoning-gym the final answer; else as `forms`.
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
    """What the task's grader takes to be each response's answer; None where it finds none.

    Of graders that know one right answer; of others the response's final answer.
    """
    find = _ANSWERS.get(getattr(task, "grader", ""), lambda text, places: final_answer(text))
    places = _places(task)
    return [find(text, places) or None for text in responses]


def _places(task: Task) -> dict[str, Any]:
    options = getattr(task, "grader_options", {})
    return {"extract": options["extract"]} if "extract" in options else {}


def canonical(task: Task, text: str, where: str = "") -> str:
    """A response as the task's `canonical` has it; as it is where the task has none.

    Raises:
        RunStopped: `canonical` raised, or gave no text; the message begins with `where`.
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
