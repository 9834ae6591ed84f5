"""Graders "exact" and "contains", and the extraction of a response's answer for all graders.

The answer is the last <answer>...</answer> after the thinking part, or without it all the text
there. Extraction takes time linear in the length.
"""

from __future__ import annotations

import re

from .fences import programs

_THOUGHT = r"(?:\w{1,9}:)?(?:think|thinking|thought|reasoning)"
_THOUGHT_BEGINS = re.compile(
    rf"<{_THOUGHT}>|\[THINK\]|<\|begin_of_thought\|>|\u25c1think\u25b7|<\|channel\|>analysis<\|message\|>|"
    r"\A(?-i:analysis(?=[A-Z][a-z']*,? [a-z]))",  # gpt-oss without its marks
    re.IGNORECASE,
)
_THOUGHT_ENDS = re.compile(
    rf"</{_THOUGHT}>|\[/THINK\]|<\|(?:end_of_thought|begin_of_solution)\|>|\u25c1/think\u25b7|<\|channel\|>final<\|message\|>|"
    r"(?<!\s)assistantfinal(?=\S)",
    re.IGNORECASE,
)
_TURN_ENDS = re.compile(
    r"<\|(?!begin_of_)\w{3,}\|>|\[\|\w{3,}\|\]|</s>|<eos>|<end_of_\w+>|<\uff5c[^\uff5c\n]*\uff5c>|\[/?INST\]"
)
# in a program: a line that begins with a mark, or characters that may begin one elsewhere
_IN_PROGRAM = re.compile(r"^[ \t]*(?:<|\[[/|A-Z]|\u25c1).*|[<\[\u25c1]", re.MULTILINE)


def _marked(text: str) -> str:
    """Blank out marks in strings and comments of fenced programs; keeps the length."""
    at, pieces = 0, []
    for block in programs(text):
        program = _IN_PROGRAM.sub(
            lambda mark: "_" if len(mark[0]) == 1 else mark[0], text[block.start : block.end]
        )
        pieces += [text[at : block.start], program]
        at = block.end
    return "".join([*pieces, text[at:]])


def spoken(response: str) -> str:
    """A response without its thinking part, which may be unclosed, up to the end of its turn."""
    said = _THOUGHT_ENDS.split(_marked(response))[-1]
    start = len(response) - len(said)
    said = _TURN_ENDS.split(_THOUGHT_BEGINS.split(said, maxsplit=1)[0], maxsplit=1)[0]
    return response[start : start + len(said)]


def final_answer(response: str) -> str:
    """Content of the last <answer>...</answer> after the thinking part, or all that text; stripped.

    Takes time linear in the text, which is searched a fixed number of times.
    """
    response = spoken(response)
    marks = _marked(response)
    start = marks.rfind("<answer>", 0, max(0, marks.rfind("</answer>")))
    if start < 0:
        return response.strip()
    start += len("<answer>")
    return response[start : marks.index("</answer>", start)].strip()


def grade_exact(response: str, answer: str) -> float:
    """1 if the final answer is the expected text, which must not be empty."""
    return float(final_answer(response) == answer.strip() != "")


def grade_contains(response: str, answer: str) -> float:
    """1 if the expected text, which must not be empty, occurs in the final answer."""
    expected = answer.strip()
    return float(bool(expected) and expected in final_answer(response))


def check_text(answer: str) -> None:
    """Raise ValueError for an empty expected answer, which an empty or any response would match."""
    if not answer.strip():
        raise ValueError("needs a text, got an empty one")


def closing(text: str, start: int) -> int:
    """Index of the brace that closes the one right before `start`; -1 if there is none."""
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.start()
    return -1
