"""Graders "exact" and "contains", and what all graders take a response's answer to be.

They look behind the thought, at the last <answer>...</answer>, or at everything where there is
none, in time linear in its length.
"""

from __future__ import annotations

import re

_THOUGHT = r"(?:\w{1,9}:)?(?:think|thinking|thought|reasoning)"
_THOUGHT_BEGINS = re.compile(
    rf"<{_THOUGHT}>|\[THINK\]|<\|begin_of_thought\|>|\u25c1think\u25b7|<\|channel\|>analysis<\|message\|>",
    re.IGNORECASE,
)
_THOUGHT_ENDS = re.compile(
    rf"</{_THOUGHT}>|\[/THINK\]|<\|(?:end_of_thought|begin_of_solution)\|>|\u25c1/think\u25b7|<\|channel\|>final<\|message\|>",
    re.IGNORECASE,
)
_TURN_ENDS = re.compile(
    r"<\|(?!begin_of_)\w{3,}\|>|\[\|\w{3,}\|\]|</s>|<eos>|<end_of_\w+>|<\uff5c[^\uff5c\n]*\uff5c>|\[/?INST\]"
)


def spoken(response: str) -> str:
    """A response without its thought, which may lack its end, up to the end of its turn."""
    said = _THOUGHT_BEGINS.split(_THOUGHT_ENDS.split(response)[-1], maxsplit=1)[0]
    return _TURN_ENDS.split(said, maxsplit=1)[0]


def final_answer(response: str) -> str:
    """What stands in the last <answer>...</answer> behind the thought, or all of it, stripped.

    Linear in the text: whatever an answer holds, it is searched a few times.
    """
    response = spoken(response)
    start = response.rfind("<answer>", 0, max(0, response.rfind("</answer>")))
    if start < 0:
        return response.strip()
    start += len("<answer>")
    return response[start : response.index("</answer>", start)].strip()


def grade_exact(response: str, answer: str) -> float:
    """1 where the final answer is the expected text."""
    return float(final_answer(response) == answer.strip())


def grade_contains(response: str, answer: str) -> float:
    """1 where the expected text, which must not be empty, occurs in the final answer."""
    expected = answer.strip()
    return float(bool(expected) and expected in final_answer(response))


def check_text(answer: str) -> None:
    """Refuse an expected answer that every response would hold.

    Raises:
        ValueError: it is empty.
    """
    if not answer.strip():
        raise ValueError("needs a text: an empty one is everywhere")


def closing(text: str, start: int) -> int:
    """Where the brace closes that was opened right before `start`; -1 where it does not."""
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.start()
    return -1
