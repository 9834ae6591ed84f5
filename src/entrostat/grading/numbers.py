"""Grader "number": plain numbers, exactly; and what a plain number is."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from fractions import Fraction

from .texts import closing, final_answer

_MOST_DIGITS = 1000

_UNSIGNED = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?"
_NUMBER = re.compile(
    rf"(?P<sign>[-+\u2212]?)"
    rf"(?:(?P<value>{_UNSIGNED})(?:/(?P<below>{_UNSIGNED}))?"
    r"|\\[dt]?frac\{(?P<top>[0-9]+)\}\{(?P<bottom>[0-9]+)\})"
)
# what may stand right before a number: a start, a blank, a sign of equality, an opening
_BEFORE = re.compile(r"(?:^|[\s:#\"'`\u201c\u2018]|(?<![!<>~])=|(?<![\w)\]}])[(\[])\Z")
# and right after: an end, a blank, punctuation, a closing, a unit that is set apart
_AFTER = re.compile(
    r"[*_]{0,3}(?:\Z|[\s)\]}$\"'`\u201d\u2019%\u00b0]|[.,;:?]+(?:\Z|[\s)\]}$\"'`\u201d\u2019*_])"
    r"|\\(?:[%)\]$,;! ]|text|mathrm))"
)
_MARKUP = re.compile(r"(?:[*_]{1,3}|\\?\$)?\Z")  # emphasis, or what opens a formula or a price


def grade_number(response: str, answer: str) -> float:
    r"""1 where the last number of the final answer (or of its \boxed{}) is the expected one.

    Strict: a number in plain digits that stands for itself. What is part of an expression, a list,
    a word, or written in another script is none, and then there is no answer. Units are not looked
    at. Exact: 0.1 is one tenth.
    """
    expected = parse_number(answer)
    return float(expected is not None and last_number(final_answer(response)) == expected)


def check_number(answer: str) -> None:
    """Refuse an expected answer that is no number.

    Raises:
        ValueError: it is none.
    """
    if parse_number(answer) is None:
        raise ValueError(f"needs a number, got {answer!r:.80}")


def parse_number(text: str) -> Fraction | None:
    r"""The number that a text is: 42, -1,234.5, 2e-3, 3/4, \frac{3}{4}; None where it is none."""
    match = _NUMBER.fullmatch(text.strip())
    return None if match is None else _value(match)


def last_number(text: str) -> Fraction | None:
    """The last number of a text, if it stands for itself."""
    text = _boxed(text)
    match = None
    for match in _NUMBER.finditer(text):  # noqa: B007 - the last one counts
        pass
    if match is None:
        return None
    before, after = text[: match.start()], text[match.end() :]
    if any(map(str.isnumeric, after)) or not _AFTER.match(after):
        return None
    bare = _MARKUP.sub("", before[-4:])
    bare = before[:-4] + bare
    if not _BEFORE.search(bare[-2:]):
        return None
    marked, earlier = bare != before, bare.rstrip()
    listed = earlier.endswith(",") and earlier[-2:-1].isnumeric()
    power = marked and earlier[-1:].isalnum() and "\n" not in bare[len(earlier) :]
    return None if listed or power or _ends_in_operator(earlier) else _value(match)


def _ends_in_operator(text: str) -> bool:
    """Whether what follows is a part of an expression: a mathematical sign, any script's dash."""
    sign = text[-2:-1] if text.endswith("=") else text[-1:]
    return sign != "" and (sign in "*/\\^%&!\u00b7" or unicodedata.category(sign) in ("Sm", "Pd"))


def _boxed(text: str) -> str:
    r"""What stands in the last \boxed{...}, or the whole text."""
    start = text.rfind("\\boxed{") + len("\\boxed{")
    end = closing(text, start) if start >= len("\\boxed{") else -1
    return text if end < 0 else text[start:end].strip()


def _value(match: re.Match[str]) -> Fraction | None:
    if len(match[0]) > _MOST_DIGITS:
        return None
    top = match["value"] or match["top"]
    bottom = Fraction(Decimal((match["below"] or match["bottom"] or "1").replace(",", "")))
    if not bottom:
        return None
    value = Fraction(Decimal(top.replace(",", ""))) / bottom
    return -value if match["sign"] in ("-", "\u2212") else value
