r"""Where in a response its answer stands.

After the last </think>, in the last <answer>...</answer> if there is one. There, in an order that
is an option:

- "boxed": the last \boxed{}, \boxed 7 or \boxed\frac12. Boxes of one sentence are one answer, a
  list; so are those that only commas, "and", "or", x = and y = part, with their names where these
  differ. A percent sign or a unit right behind a box belongs to it; a box that is part of a
  formula, or behind "not" or "or", is no answer.
- "phrase": what follows the last "answer is", "answer:" or "####", to the end of its sentence.
- "last": the last sentence, if it says one thing: x = 3, "so the total is $5$", "he has 42 apples".
  One with two numbers in it, or with a word such as "not", "or", "about", "at least", says none.

What the first of these finds is the answer, readable or not. A phrase behind the box has to say the
same. All are linear in the length of the response but for the last few thousand characters.
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
    """What a response gives as its answer; where it says so twice, both. [] where it gives none.

    Args:
        response: all of it.
        order: which places are looked at, the first first.
        readable: whether a text says something.
    """
    text = _UNSAID.sub(" ", final_answer(response))
    for place in order:
        found = _PLACES[place](text, readable)
        if found is not None:
            return found
    return []
