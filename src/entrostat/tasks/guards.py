"""What an answer must be before a data set's own scorer may see it.

Some of reasoning-gym's scorers hand the answer to Python's or SymPy's evaluator, and some take for
right what is not. A guard says no to such answers by what they are as text: nothing here evaluates.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

# an answer and the data set's entry: whether the scorer may see it
Guard = Callable[[str, Mapping[str, Any]], bool]

EVALUATES = re.compile(r"(?<![\w.])(?:eval|exec)\(|parse_expr\(|sympify\(")
_MAX_ANSWER = 1000
_MAX_EXPONENT = 20
_FUNCTIONS = frozenset(
    "sqrt exp log ln sin cos tan sec csc cot asin acos atan sinh cosh tanh Abs".split()
)
_LITERALS = (
    ast.Expression, ast.List, ast.Tuple, ast.Constant, ast.UnaryOp, ast.USub, ast.Load, ast.Name,
)  # fmt: skip
_ARITHMETIC = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.Call, ast.Load,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.USub, ast.UAdd,
)  # fmt: skip
_BASIC = re.compile(r"[0-9+\-*/() ]*")
_COMPLEX = re.compile(r"[0-9+\-.eEiIjJ() ]*")
_FACTORS = re.compile(r" *[0-9]+ *(?:\u00d7 *[0-9]+ *)*")
_PROBABILITY = re.compile(r"[0-9.,/ ]+(?:[eE][-+]?[0-9]{1,2})?")
# the signs of logic as Python operators: what is well formed stays so, whatever binds more
_LOGIC = str.maketrans({"\u2227": "&", "\u2228": "|", "\u00ac": "~", "\u2192": "^", "\u2194": "^"})
_SIGNS = re.compile(r"[A-Z()\s\u2227\u2228\u00ac\u2192\u2194]*")
_FORMULA = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Name, ast.Load,
    ast.BitAnd, ast.BitOr, ast.BitXor, ast.Invert,
)  # fmt: skip


def is_not_code(text: str) -> bool:
    """Whether evaluating `text` could only build a list of literals, or fail.

    A name in small letters could be a variable of the scorer's: its right answer, say.
    """
    if len(text) > _MAX_ANSWER:
        return False
    nodes = _nodes(text)
    return nodes is None or all(
        isinstance(node, _LITERALS) and not (isinstance(node, ast.Name) and not node.id.isupper())
        for node in nodes
    )


def is_arithmetic(text: str) -> bool:
    """Whether `text` is an expression of numbers, symbols, + - * / **, and known functions."""
    if len(text) > _MAX_ANSWER:
        return False
    nodes = _nodes(text)
    return nodes is not None and all(_is_arithmetic_node(node) for node in nodes)


def combination(text: str) -> tuple[list[int], Fraction] | None:
    """The whole numbers in an expression of + - * / and brackets, and its value, exactly.

    None where the text is no such expression, or divides by 0.
    """
    if len(text) > _MAX_ANSWER or not _BASIC.fullmatch(text):
        return None
    try:
        numbers: list[int] = []
        return numbers, _fold(ast.parse(text.strip(), mode="eval").body, numbers)
    except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError):
        return None


def _fold(node: ast.AST, numbers: list[int]) -> Fraction:
    """The value of a node; its numbers are added to `numbers`."""
    match node:
        case ast.Constant(value=int(number)):
            numbers.append(number)
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_fold(operand, numbers)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _fold(left, numbers), _fold(right, numbers)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div():
                    return a / b
    raise ValueError("another operation")


def _countdown(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer takes a float within 1e-5 of the target for it, and any expression of SymPy's."""
    found = combination(answer)
    target = entry["metadata"]["target"]
    return found is not None and (
        found[1] == target or not math.isclose(found[1], target, rel_tol=1e-4, abs_tol=1e-4)
    )


def _puzzle24(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer wants any four numbers, not those given, and cuts 24.5 to 24."""
    found = combination(answer)
    return found is not None and (sorted(found[0]), found[1]) == (
        sorted(entry["metadata"]["numbers"]), 24
    )  # fmt: skip


def _complex(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer takes `nan` for every number."""
    return _COMPLEX.fullmatch(answer) is not None


def _true_or_false(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer asks whether both texts are empty or neither is."""
    return answer.strip() == entry["answer"]


def _factors(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer raises at what are no numbers between its signs."""
    return len(answer) <= _MAX_ANSWER and _FACTORS.fullmatch(answer) is not None


def _same_shape(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer looks at the cells that there should be, and not whether there are more."""
    try:
        given, expected = json.loads(answer), json.loads(entry["answer"])
        return list(map(len, given)) == list(map(len, expected))
    except (ValueError, TypeError, RecursionError):
        return False


def _probability(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer gives 1 to a wrong number whose digits begin the right one: to 0 nearly always."""
    if not _PROBABILITY.fullmatch(answer.strip()) or len(answer) > _MAX_ANSWER:
        return False
    try:
        given, expected = (Fraction(t.replace(",", "")) for t in (answer, entry["answer"]))
    except (ValueError, ZeroDivisionError):
        return False
    ours, right = f"{float(given):.10g}", f"{float(expected):.10g}"
    prefix = right.startswith(ours) or ours.startswith(right)
    return not prefix or abs(given - expected) <= Fraction(1, 10_000)


def _formula(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer takes whatever it cannot read for the name of another variable."""
    readable = len(answer) <= _MAX_ANSWER and _SIGNS.fullmatch(answer)
    nodes = _nodes(answer.translate(_LOGIC)) if readable else None
    return nodes is not None and all(
        isinstance(node, _FORMULA)
        and not (isinstance(node, ast.Name) and node.id not in entry["metadata"]["variables"])
        for node in nodes
    )


GUARDS: dict[str, Guard] = {
    "countdown": _countdown,
    "puzzle24": _puzzle24,
    "complex_arithmetic": _complex,
    "game_of_life_halting": _true_or_false,
    "game_of_life": _same_shape,
    "prime_factorization": _factors,
    "coin_flip": _probability,
    "propositional_logic": _formula,
}


def guard_of(name: str, scorer_source: str) -> Guard | None:
    """The guard of a data set: its own, or what a scorer that evaluates asks for."""
    if name in GUARDS or not EVALUATES.search(scorer_source):
        return GUARDS.get(name)
    if "parse_expr" in scorer_source:
        return lambda answer, entry: is_arithmetic(answer)
    return lambda answer, entry: is_not_code(answer)


def _nodes(text: str) -> list[ast.AST] | None:
    """The nodes of a Python expression; None where it is not one."""
    try:
        return list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_arithmetic_node(node: ast.AST) -> bool:
    if not isinstance(node, _ARITHMETIC):
        return False
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.Name):
        return not node.id.startswith("_")
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
        return named and not node.keywords
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        # a tower of powers is a number that fills the memory
        exponent = node.right
        if isinstance(exponent, ast.Constant) and isinstance(exponent.value, int | float):
            inner = any(isinstance(child, ast.Pow) for child in ast.walk(node.left))
            return exponent.value <= _MAX_EXPONENT and not inner
        return all(not isinstance(child, ast.Pow) for child in ast.walk(exponent)) and any(
            isinstance(child, ast.Name) for child in ast.walk(node)
        )
    return True
