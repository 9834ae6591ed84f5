"""Graders "exact" and "contains", and what all graders take a response's answer to be.

They look behind the thought, at the last <answer>...</answer>, or at everything where there is
none, in time linear in its length.
"""

from __future__ import annotations

import re

_THOUGHTS = ("think", "thinking", "thought", "reasoning")
_FINAL = "<|channel|>final<|message|>"  # where gpt-oss begins its answer
_TURN_ENDS = re.compile(
    r"<\|(?:im_end|im_start|eot_id|eom_id|end_of_text|endoftext|end|return|eot|user|start_header_id)\|>"
    r"|</s>|<eos>|<end_of_turn>|<\uff5cend\u2581of\u2581sentence\uff5c>|<\uff5cUser\uff5c>|\[/?INST\]"
)


def spoken(response: str) -> str:
    """A response without its thought, which may lack its end, up to the end of its turn."""
    for tag in _THOUGHTS:
        response = response.rpartition(f"</{tag}>")[2].partition(f"<{tag}>")[0]
    response = response.rpartition(_FINAL)[2]
    end = _TURN_ENDS.search(response)
    return response if end is None else response[: end.start()]


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
