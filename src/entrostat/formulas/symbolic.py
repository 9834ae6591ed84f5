"""Comparison of two answers by math-verify and sympy.

It serves formulas that `reader` has no rules for. It also provides other projects' rules, so that
scores can be compared.

math-verify parses LaTeX with a grammar (latex2sympy2), without `eval`: names become letters. Only
plain sums go to `parse_expr`, limited to digits, brackets and operators. Evaluating the result may
take forever. Its time limits use signals, which work only in a main thread, so they are off and the
worker pool's limit applies. Both packages are imported on first use.
"""

from __future__ import annotations

import logging
import re
from typing import Any

_LONGEST = 200
# commands that the guard allows: mathematics with letters, no new objects
_COMMANDS = frozenset(
    "frac dfrac tfrac sqrt sum prod int lim infty pi to cdot times left right binom ln log exp sin "
    "cos tan theta alpha beta lambda phi le ge displaystyle limits rightarrow".split()
)
_UNEVALUATED = ("sum", "prod", "int", "lim")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_ALLOWED = re.compile(r"[0-9A-Za-z\s+\-*/^_(){}\\=!.,;]*")
_LARGE = re.compile(r"[0-9]{7}|\^\s*\{?\s*-?\(?[0-9]{4}|\^\s*\{[^{}]*\^|![^,]*!|[0-9]{3}\s*!")
_SPACES = re.compile(r"\\[,;:! ]")  # x\,dx
_GROUPED = re.compile(r"(?<=[0-9])(?:\{,\}|\\,|,?\\!)\s?(?=[0-9]{3})")  # 10\,000
_APART = re.compile(r"(?<![\^_0-9])[0-9]+\s+[0-9]")  # 2 3, but not \int_0^1 2x
_LETTERS = re.compile(r"[A-Za-z]{2}")


def load() -> tuple[Any, Any]:
    """math-verify and latex2sympy2's parser; ImportError also for an unsupported antlr version."""
    import math_verify
    from latex2sympy2_extended import latex2sympy

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of no time limit
    return math_verify, latex2sympy


def warm() -> None:
    """Import both and build the grammar, which takes a second."""
    load()
    _parsed("x")


def same_formula(expected: str, given: str) -> bool:
    r"""Whether two formulas are equal for both math-verify and sympy.

    False unless the expected answer has a sum, product, integral or limit, which `reader` cannot
    parse. (If a number is expected, such an answer only repeats the question.) False also unless
    both are values: no relations, lists, words, or large numbers or powers.
    """
    expected, given = (
        _SPACES.sub(" ", _GROUPED.sub("", text)).replace(r"\mathrm{d}", "d")
        for text in (expected, given)
    )
    if not (_is_formula(expected) and _is_formula(given)):
        return False
    asked = [{name for name in _UNEVALUATED if f"\\{name}" in text} for text in (expected, given)]
    if not asked[0] or not asked[1] <= asked[0]:
        return False
    package, _ = load()
    sides = [_parsed(text) for text in (expected, given)]
    return (
        None not in sides
        and sides[0].free_symbols == sides[1].free_symbols
        and _no_difference(*sides)
        and package.verify(*[side.doit() for side in sides], timeout_seconds=None)
    )


def _is_formula(text: str) -> bool:
    bare = _COMMAND.sub(" ", text)
    return (
        len(text) <= _LONGEST
        and "/" not in text  # 1/2x
        and _ALLOWED.fullmatch(text) is not None
        and not set(_COMMAND.findall(text)) - _COMMANDS
        and not _LARGE.search(text)
        and not _APART.search(text)
        and not re.search(r"[,;]", bare)
        and not _LETTERS.search(re.sub(r"d[a-z]\b", " ", bare))
        and ("=" not in bare or any(f"\\{name}" in text for name in ("sum", "prod")))
    )


def math_verify(expected: str, given: str) -> bool:
    """math-verify's own verdict on two formulas, with its defaults."""
    package, _ = load()
    sides = [package.parse(f"${text}$", parsing_timeout=None) for text in (expected, given)]
    return bool(package.verify(sides[0], sides[1], timeout_seconds=None))


def minerva(expected: str, given: str) -> bool:
    """Equal after normalisation, or for sympy: as in lm-eval's minerva_math, which REPO uses."""
    sides = [normalised(text) for text in (expected, given)]
    if sides[0] == sides[1]:
        return True
    formulas = [_parsed(text) for text in sides]
    return None not in formulas and _no_difference(*formulas)


def _parsed(text: str) -> Any:
    from sympy import Expr

    _, latex2sympy = load()
    try:
        found = latex2sympy(text, normalization_config=None)
    except Exception:  # it may raise any type if it cannot parse
        return None
    return found if isinstance(found, Expr) else None


def _no_difference(a: Any, b: Any) -> bool:
    from sympy import simplify

    try:
        return bool(simplify(a.doit() - b.doit()) == 0)
    except Exception:
        return False


# Lewkowycz et al. 2022, appendix D.1
_REPLACED = (
    ("an ", ""), ("a ", ""), (".$", "$"), (r"\$", ""), (r"\ ", ""), (" ", ""), ("mbox", "text"),
    (r",\text{and}", ","), (r"\text{and}", ","), (r"\text{m}", r"\text{}"),
)  # fmt: skip
_REMOVED = (
    *"square ways integers dollars mph inches ft hours km units".split(), r"\ldots",
    *"sue points feet minutes digits cents degrees cm gm pounds meters meals edges".split(),
    *"students childrentickets multiples".split(), r"\text{s}", r"\text{.}", "\\text{\ns}",
    r"\text{}^2", r"\text{}^3", r"\text{\n}", r"\text{}", r"\mathrm{th}", r"^\circ", r"^{\circ}",
    r"\;", r",\!", "{,}", '"', r"\dots",
)  # fmt: skip
_UNWRAPPED = (
    r"\\text\{(.*?)\}", r"\\textbf\{(.*?)\}", r"\\overline\{(.*?)\}", r"\\boxed\{(.*)\}"
)  # fmt: skip


def normalised(text: str) -> str:
    """Normalise an answer by Minerva's rules: last side of an equation, no units, fonts or $."""
    text = text.split("=")[-1]
    for old, new in _REPLACED:
        text = text.replace(old, new)
    for old in _REMOVED:
        text = text.replace(old, "")
    text = re.sub(r".*?\$(.*?)\$.*", r"$\1$", text)
    for pattern in _UNWRAPPED:
        text = re.sub(pattern, r"\1", text)
    text = re.sub(r"frac([^{])(.)", r"frac{\1}{\2}", text)
    text = re.sub(r"sqrt([^{])", r"sqrt{\1}", text).replace("$", "")
    digits = text.replace(",", "")
    return digits if digits.isdigit() else text
