"""Grader "number": exact plain numbers, extracted as by grader "math"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from ..formulas.equality import assigned
from ..formulas.items import DOUBTS, read
from ..formulas.notation import tokens
from ..formulas.tree import Node
from .mathematics import ORDER, extracted

_PLAIN = re.compile(
    r"[-+\u2212]?[0-9.,]+(?:[eE][-+]?[0-9]{1,3})?(?:/[0-9.,]+(?:[eE][-+]?[0-9]+)?)?"
)
_JOINED = re.compile(r"\d(?![eE][-+]?\d)[A-Za-z_]")  # 42x, 0x2a
_NOUN = re.compile(r"\\(?:text|mathrm)\{\s*[A-Za-z]{2}[A-Za-z -]*\}\s*\Z")  # 18 \text{ muffins}
_FRACTION = re.compile(r"-?\\[dt]?frac\{[0-9]+\}\{[0-9]+\}")


def grade_number(response: str, answer: str, *, extract: str | Sequence[str] = ORDER) -> float:
    r"""1 if a response's answer is the expected number.

    The answer must be a number in digits or a fraction of two, with nothing left to compute. Units
    are ignored, as the expected number has none; 25% is 25. The comparison is exact.

    Args:
        response: the policy's full response.
        answer: a number.
        extract: where to search for the response's answer, as in grader "math".
    """
    return float(last_number(response, extract) == parse_number(answer) is not None)


def check_number(answer: str, *, extract: str | Sequence[str] = ORDER) -> None:
    """Raise ValueError unless the expected answer is a number."""
    extracted("", extract)
    if parse_number(answer) is None:
        raise ValueError(f"needs a number, got {answer!r:.80}")


def parse_number(text: str) -> Fraction | None:
    r"""Parse a number such as 42, -1,234.5, 2e-3, 3/4 or \frac{3}{4}; None if it is not one."""
    bare = text.strip()
    return _number(bare) if _PLAIN.fullmatch(bare) or _FRACTION.fullmatch(bare) else None


def last_number(response: str, extract: str | Sequence[str] = ORDER) -> Fraction | None:
    found = {_number(one) for one in extracted(response, extract)}
    return found.pop() if len(found) == 1 else None


def _number(text: str) -> Fraction | None:
    if _JOINED.search(text):
        return None
    noun = _NOUN.search(text)
    if noun is not None and not DOUBTS.search(noun[0]) and read(tokens(text)) is None:
        text = text[: noun.start()]
    node = read(tokens(text))
    while node is not None and node.kind in ("quantity", "%", "relation"):
        node = assigned(node) if node.kind == "relation" else node.parts[0]
    return None if node is None else _value(node)


def _value(node: Node) -> Fraction | None:
    if node.kind == "-":
        value = _value(node.parts[0])
        return None if value is None else -value
    if node.kind == "/":
        top, bottom = (
            _value(part) if part.kind in ("number", "-") else None for part in node.parts
        )
        return None if top is None or not bottom else top / bottom
    return node.value if node.kind == "number" else None
