r"""Grader "math": whether an answer is mathematically equal to the expected one.

An answer that cannot be read is wrong, and nothing is rounded. Equal tokens are right. If
`formulas` can read both sides, it compares them. Sums, integrals and limits go to math-verify and
sympy. `rule="minerva"` and `rule="math_verify"` grade like other projects, to compare scores.
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

# places of an answer, each with its extractor; docs/grading.md has the rules
_PLACES: dict[str, Callable[[str, Callable[[str], bool]], list[str] | None]] = {
    "boxed": from_boxes,
    "phrase": from_phrase,
    "last": from_last,
}
ORDER = tuple(_PLACES)
# ~~struck out~~ text in Markdown, and the mark at the end of a proof
_UNSAID = re.compile(
    r"(?<![^\s(*])~~(?=\S)[^~\n]+(?<=\S)~~(?![^\s.,;:)*])"
    r"|(?:\\(?:blacksquare|square|qed|Box|checkmark)|[\u220e\u25a0\u25a1\u2713])[\s$.]*\Z"
)
_LETTER = r"(?:\\text(?:bf)?\{)?\(?([A-J])\)?\}?"
_OPTION = re.compile(
    rf"{_LETTER}\s*(?:[.:]|\)(?=\s*[A-Za-z]+\s+[a-z]))\}}?\s*(?!.*(?:^|\W)[A-J](?:[.:)]|\Z))(?=\S)",
    re.DOTALL,
)
# after a family of solutions: "where k is an integer", ", k \in \mathbb{Z}"
_INTEGER = re.compile(
    r"[\s,;(]*(?:\\(?:text|mathrm)\{[^{}]*\}|\\q?quad|\\[,; ]|\\forall|where|for|any|all|every|"
    r"some|with|\s)*(?:\$?\b([kmnl])\$?\s*(?:\\in\s*\\mathbb\s*\{?\s*Z\s*\}?|"
    r"(?:\\text\{)?\s*is\s+an?\s+integer\s*\}?)|integers?\s*\}?\s*\$?([kmnl])\$?)\s*\)?\s*\Z"
)
# expected answers that no response can match: "see figure 3", "answers may vary", "proof"
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
    """1 if the response's answer equals the expected one.

    Args:
        response: the policy's full response.
        answer: the expected answer: mathematics in LaTeX or plain text, or a solution that ends in
            a box or in "#### 42".
        extract: where to search for the response's answer, in order: "boxed", "phrase", "last".
        rule: "strict", "minerva" (the normalisation of Lewkowycz et al. 2022, appendix D.1, and
            sympy's equivalence, as in REPO D.1) or "math_verify" (the package alone).
    """
    given = extracted(response, extract)
    expected = expected_answer(answer)
    return float(bool(given and expected) and all(_rule(rule)(expected, one) for one in given))


def check_math(answer: str, *, extract: str | Sequence[str] = ORDER, rule: Rule = "strict") -> None:
    """Raise ValueError for unknown options, an empty answer, or a mere reference to the answer."""
    _order(extract)
    _rule(rule)
    expected = expected_answer(answer)
    if not tokens(expected):
        raise ValueError(f"needs an answer of at most 1000 characters, got {answer!r:.80}")
    if _ELSEWHERE.search(expected):
        raise ValueError(f"needs an answer, got words on where it is, {answer!r:.80}")


def expected_answer(answer: str) -> str:
    r"""The content of an expected answer's last box, or the text after "####", or all of it.

    Boxes that belong together ("x = \boxed{3} or x = \boxed{5}") are a list; of equal values in
    several forms only the first is used. Earlier boxes, separated by other words, are ignored.
    """
    said, connectors = boxed(answer)
    if not said:
        return answer.rpartition("####")[2].strip()
    alike = all(equal(said[0], one) for one in said[1:])
    return said[0] if alike else listed(said, connectors)


def extracted(response: str, extract: str | Sequence[str] = ORDER) -> list[str]:
    """The answers that a response gives, which must all be right; [] if it gives none.

    The first place with an answer decides, readable or not. Takes time linear in the length of the
    response, except for its last few thousand characters.
    """
    order, text = _order(extract), _UNSAID.sub(" ", final_answer(response))
    places = (_PLACES[place](text, _readable) for place in order)
    return next((found for found in places if found is not None), [])


def equal(expected: str, given: str) -> bool:
    """Whether two extracted answers are equal by the strict rule."""
    if re.fullmatch(_LETTER, expected.strip()) and (option := _OPTION.match(given.strip())):
        given = option[1]
    expected, given = _same_letter(latex(expected), latex(given))
    wanted = tokens(expected)
    # the expected answer decides whether 100,200,300 is one number or three
    ways = [tokens(given, commas) for commas in (None, "number", "list")] if wanted else []
    return any(
        way and way not in ways[:place] and _equal(wanted, way, expected, given)
        for place, way in enumerate(ways)
    )


def _same_letter(expected: str, given: str) -> tuple[str, str]:
    r"""Rename the letter of a family: 3 + 7k, k \in \mathbb{Z}, and 7n + 3; drop "k \in ..."."""
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
    if value is not None:  # latex2sympy cannot read 1/2 and \frac12
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
