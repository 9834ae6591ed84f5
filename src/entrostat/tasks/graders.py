"""Graders: a response and the expected answer to a reward.

`exact`, `contains` and `number` look at the last <answer>...</answer>, or at the whole response
where there is none. They are total: any text has a grade, in time linear in its length. A grader
of the user's own, MODULE:FUNCTION, gets the whole response and the answer; hosts run it in a worker
process under a time limit (`entrostat.workers`).
"""

from __future__ import annotations

import inspect
import math
import re
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any

from .._names import unknown
from .._plugins import find

Grader = Callable[[str, str], float]
LARGEST_REWARD = 1e18  # float32 cannot hold the square of much more, and statistics take squares
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


def final_answer(response: str) -> str:
    """What stands in the last <answer>...</answer>, or the whole text, stripped.

    Linear in the text: whatever an answer holds, it is searched three times.
    """
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


def grade_number(response: str, answer: str) -> float:
    r"""1 where the last number of the final answer (or of its \boxed{}) is the expected one.

    Strict: a number in plain digits that stands for itself. What is part of an expression, a list,
    a word, or written in another script is none, and then there is no answer. Units are not looked
    at. Exact: 0.1 is one tenth.
    """
    expected = parse_number(answer)
    return float(expected is not None and last_number(final_answer(response)) == expected)


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
    start = text.rfind("\\boxed{")
    if start < 0:
        return text
    start += len("\\boxed{")
    depth = 1
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return text[start : start + brace.start()].strip()
    return text


def _value(match: re.Match[str]) -> Fraction | None:
    if len(match[0]) > _MOST_DIGITS:
        return None
    top = match["value"] or match["top"]
    bottom = Fraction(Decimal((match["below"] or match["bottom"] or "1").replace(",", "")))
    if not bottom:
        return None
    value = Fraction(Decimal(top.replace(",", ""))) / bottom
    return -value if match["sign"] in ("-", "\u2212") else value


GRADERS: dict[str, Grader] = {
    "exact": grade_exact,
    "contains": grade_contains,
    "number": grade_number,
}


@cache
def make_grader(name: str) -> Grader:
    """A grader by name: "exact", "contains", "number", or MODULE:FUNCTION of (response, answer).

    Raises:
        ValueError: there is none of that name, or it is no function of two texts.
    """
    if ":" not in name:
        if name not in GRADERS:
            raise ValueError(f"{unknown('grader', name, GRADERS)} Or MODULE:FUNCTION, your own.")
        return GRADERS[name]
    module, function = find(name, "grader")
    grader = getattr(module, function, None)
    if not callable(grader):
        raise ValueError(f"unknown grader {name!r}: {module.__name__} has no function {function!r}")
    try:
        inspect.signature(grader).bind("", "")
    except TypeError as error:
        raise ValueError(f"grader {name!r} must take (response, answer): {error}") from None
    except ValueError:
        pass  # one written in C may not tell
    return grader


def grade(name: str, response: str, answer: str) -> float:
    """The reward that a grader gives; what workers call.

    Raises:
        ValueError: it gave something else than a number. Whatever the grader raises.
    """
    return as_reward(make_grader(name)(response, answer))


def as_reward(value: Any) -> float:
    """A scorer's result as a number.

    Raises:
        ValueError: it is none, or one that float32 arithmetic cannot use.
    """
    number = math.nan
    if not isinstance(value, str | bytes | bytearray):
        with suppress(TypeError, ValueError, RuntimeError, OverflowError):
            number = float(value.item() if hasattr(value, "item") else value)
    if not abs(number) <= LARGEST_REWARD:
        raise ValueError(
            f"the reward is {_shown(value)}; it must be one finite number"
            + (f" of at most {LARGEST_REWARD:g}" if math.isfinite(number) else "")
        )
    return number


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except Exception:  # its own code
        return f"a {type(value).__name__}"
