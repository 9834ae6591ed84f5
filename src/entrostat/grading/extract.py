"""Where in a response its answer stands: a box, a phrase such as "the answer is", or its end.

What the first of these places finds is the answer, readable or not; docs/grading.md says what each
takes. All are linear in the length of the response but for the last few thousand characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from .boxes import from_boxes
from .sentences import from_last, from_phrase
from .texts import final_answer

Place = Literal["boxed", "phrase", "last"]
ORDER: tuple[Place, ...] = ("boxed", "phrase", "last")
_PLACES: dict[Place, Callable[[str, Callable[[str], bool]], list[str] | None]] = {
    "boxed": from_boxes,
    "phrase": from_phrase,
    "last": from_last,
}
# ~~struck out~~ in Markdown, and the mark that ends a proof
_UNSAID = re.compile(
    r"(?<![^\s(*])~~(?=\S)[^~\n]+(?<=\S)~~(?![^\s.,;:)*])"
    r"|(?:\\(?:blacksquare|square|qed|Box|checkmark)|[\u220e\u25a0\u25a1\u2713])[\s$.]*\Z"
)


def answers(response: str, order: tuple[Place, ...], readable: Callable[[str], bool]) -> list[str]:
    """What a response gives as its answer; where it says so twice, both. [] where it gives none."""
    text = _UNSAID.sub(" ", final_answer(response))
    for place in order:
        found = _PLACES[place](text, readable)
        if found is not None:
            return found
    return []
