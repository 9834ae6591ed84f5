r"""Grader "math": whether an answer is equal to the expected one, in mathematics.

What is not understood is not right, and nothing is rounded. The same tokens are right; what
`formulas` reads on both sides it compares; sums, integrals and limits go to math-verify and sympy.
`rule="minerva"` and `rule="math_verify"` grade as others do, to compare figures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal

from .._names import unknown
from ..formulas import symbolic
from ..formulas.equality import same
from ..formulas.items import read
from ..formulas.notation import latex, tokens
from ..formulas.tree import Token
from ..formulas.values import exact_value
from .boxes import boxed, from_boxes, listed
from .sentences import from_last, from_phrase
from .texts import final_answer

# where an answer may stand, and what finds it there; docs/grading.md says what each takes
_PLACES: dict[str, Callable[[str, Callable[[str], bool]], list[str] | None]] = {
    "boxed": from_boxes,
    "phrase": from_phrase,
    "last": from_last,
}
ORDER = tuple(_PLACES)
# ~~struck out~~ in Markdown, and the mark that ends a proof
_UNSAID = re.compile(
    r"(?<![^\s(*])~~(?=\S)[^~\n]+(?<=\S)~~(?![^\s.,;:)*])"
    r"|(?:\\(?:blacksquare|square|qed|Box|checkmark)|[\u220e\u25a0\u25a1\u2713])[\s$.]*\Z"
)
_LETTER = r"(?:\\text(?:bf)?\{)?\(?([A-J])\)?\}?"
_OPTION = re.compile(
    rf"{_LETTER}\s*(?:[.:]|\)(?=\s*[A-Za-z]+\s+[a-z]))\}}?\s*(?!.*(?:^|\W)[A-J](?:[.:)]|\Z))(?=\S)",
    re.DOTALL,
)
# behind a family: "where k is an integer", ", k \in \mathbb{Z}"
_INTEGER = re.compile(
    r"[\s,;(]*(?:\\(?:text|mathrm)\{[^{}]*\}|\\q?quad|\\[,; ]|\\forall|where|for|any|all|every|"
    r"some|with|\s)*(?:\$?\b([kmnl])\$?\s*(?:\\in\s*\\mathbb\s*\{?\s*Z\s*\}?|"
    r"(?:\\text\{)?\s*is\s+an?\s+integer\s*\}?)|integers?\s*\}?\s*\$?([kmnl])\$?)\s*\)?\s*\Z"
)
# an answer that no response can give: "see figure 3", "answers may vary", "proof"
_ELSEWHERE = re.compile(
    r"\b(?:see|refer to|shown in|given in|as in)\b.*\b(?:figures?|fig|graphs?|diagrams?|tables?|"
    r"pictures?|above|below|solutions?|texts?|proofs?|answers?)\b|"
    r"\banswers? (?:may |will |can )?var(?:y|ies)\b|"
    r"\A\W*(?:proofs?|graphs?|omitted|see (?:solution|work)|n/?a|not available|todo|tbd)\W*\Z",
    re.IGNORECASE | re.DOTALL,
)
_LONE = re.compile(r"(?<![A-Za-z\\])[kmnl](?![a-zA-Z])")
Rule = Literal["strict", "minerva", "math_verify"]


def grade_math(
    response: str,
    answer: str,
    *,
    extract: str | Sequence[str] = ORDER,
    rule: Rule = "strict",
) -> float:
    """1 where the response's answer equals the expected one.

    Args:
        response: all of it.
        answer: what is expected: mathematics in LaTeX or plain, or a solution that ends in a box or
            in "#### 42".
        extract: where the response's answer is looked for, in order: "boxed", "phrase", "last".
        rule: "strict", "minerva" (the normalisation of Lewkowycz et al. 2022, appendix D.1, and
            sympy's equivalence, as REPO D.1 grades) or "math_verify" (the package alone).
    """
    given = extracted(response, extract)
    expected = expected_answer(answer)
    return float(bool(given and expected) and all(_rule(rule)(expected, one) for one in given))


def check_math(answer: str, *, extract: str | Sequence[str] = ORDER, rule: Rule = "strict") -> None:
    """Refuse options that there are not, an empty answer, and words on where the answer is."""
    _order(extract)
    _rule(rule)
    expected = expected_answer(answer)
    if not tokens(expected):
        raise ValueError(f"needs an answer of at most 1000 characters, got {answer!r:.80}")
    if _ELSEWHERE.search(expected):
        raise ValueError(f"needs an answer, got words on where it is, {answer!r:.80}")


def expected_answer(answer: str) -> str:
    r"""What stands in an expected answer's last box, or behind "####", or all of it.

    Boxes that stand together ("x = \boxed{3} or x = \boxed{5}") are a list, but for one value in
    several forms, which is its first; boxes further up, behind other words, are no part of it.
    """
    said, connectors = boxed(answer)
    if not said:
        return answer.rpartition("####")[2].strip()
    alike = all(equal(said[0], one) for one in said[1:])
    return said[0] if alike else listed(said, connectors)


def extracted(response: str, extract: str | Sequence[str] = ORDER) -> list[str]:
    """What a response gives as its answer: each has to be right; [] where it gives none.

    The first place that has something decides, readable or not. Linear in the length of the
    response but for its last few thousand characters.
    """
    order, text = _order(extract), _UNSAID.sub(" ", final_answer(response))
    places = (_PLACES[place](text, _readable) for place in order)
    return next((found for found in places if found is not None), [])


def equal(expected: str, given: str) -> bool:
    """Whether two answers, already extracted, are the same by the strict rule."""
    if re.fullmatch(_LETTER, expected.strip()) and (option := _OPTION.match(given.strip())):
        given = option[1]
    expected, given = _same_letter(latex(expected), latex(given))
    wanted = tokens(expected)
    # whether 100,200,300 is one number or three, the expected answer says
    ways = [tokens(given, commas) for commas in (None, "number", "list")] if wanted else []
    return any(
        way and way not in ways[:place] and _equal(wanted, way, expected, given)
        for place, way in enumerate(ways)
    )


def _same_letter(expected: str, given: str) -> tuple[str, str]:
    r"""3 + 7k, k \in \mathbb{Z}, and 7n + 3: families in one letter, without what it stands for."""
    bare = [_INTEGER.sub("", text) for text in (expected, given)]
    letters = [set(_LONE.findall(text)) for text in bare]
    family = bare != [expected, given] or all(r"\pi" in text and "+" in text for text in bare)
    if family and len(letters[0]) == len(letters[1]) == 1 and all(bare):
        bare[1] = _LONE.sub(letters[0].pop(), bare[1])
    return bare[0], bare[1]


def _equal(wanted: list[Token], said: list[Token], expected: str, given: str) -> bool:
    if wanted == said:
        return True
    readings = read(wanted), read(said)
    if readings[0] is not None and readings[1] is not None:
        return same(readings[0], readings[1])
    value = None if readings[1] is None else exact_value(readings[1])
    if value is not None:  # 1/2 and \frac12, which latex2sympy does not read
        given = rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    return symbolic.same_formula(expected, given)


def _readable(text: str) -> bool:
    found = tokens(text, commas="number")
    node = read(found) if found else None
    return node is not None and "text" not in {node.kind, *(part.kind for part in node.parts)}


_RULES: dict[str, Callable[[str, str], bool]] = {
    "strict": equal,
    "minerva": symbolic.minerva,
    "math_verify": symbolic.math_verify,
}


def _rule(name: str) -> Callable[[str, str], bool]:
    if name not in _RULES:
        raise ValueError(f"has an option rule: {unknown('rule', str(name), _RULES)}")
    return _RULES[name]


def _order(extract: str | Sequence[str]) -> tuple[str, ...]:
    places = extract.split(",") if isinstance(extract, str) else extract
    if not isinstance(places, list | tuple) or not places:
        known = ", ".join(ORDER)
        raise ValueError(f"has an option extract: name a place at least ({known}), got {extract!r}")
    for place in places:
        if place not in ORDER:
            raise ValueError(f"has an option extract: {unknown('place', str(place), ORDER)}")
    return tuple(places)
