"""Any reasoning-gym data set by name, with its own scorer and parameters.

The scorers assume well-meant answers. For others, some scorers raise, some take hours, and some
accept wrong answers. Guards reject the known cases of the last kind, among them code: some scorers
pass the answer to Python's or SymPy's evaluator. A guard decides by the text, without evaluating
it. Trainers run scorers in worker processes, so the other two cases cost only one answer.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from fractions import Fraction
from typing import Any

from .._names import unknown
from ..errors import extra
from ..grading import as_reward, final_answer
from ..workers import Call
from ..workers.wire import is_plain
from .base import Example

# (answer, entry of the data set) -> whether the scorer may see the answer
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
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Load,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.USub, ast.UAdd,
)  # fmt: skip
_EXACT: dict[type[ast.AST], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_BASIC = re.compile(r"[0-9+\-*/() ]*")
_COMPLEX = re.compile(r"[0-9+\-.eEiIjJ() ]*")
_FACTORS = re.compile(r" *[0-9]+ *(?:\u00d7 *[0-9]+ *)*")
_PROBABILITY = re.compile(r"[0-9.,/ ]+(?:[eE][-+]?[0-9]{1,2})?")
# logic signs as Python operators: this keeps well-formedness, though not precedence
_LOGIC = str.maketrans({"\u2227": "&", "\u2228": "|", "\u00ac": "~", "\u2192": "^", "\u2194": "^"})
_SIGNS = re.compile(r"[A-Z()\s\u2227\u2228\u00ac\u2192\u2194]*")
_FORMULA = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Name, ast.Load,
    ast.BitAnd, ast.BitOr, ast.BitXor, ast.Invert,
)  # fmt: skip


class GymTask:
    """A reasoning-gym data set.

    The data set's own scorer gets the completion's last <answer>...</answer>, or without one all of
    it. The splits `train` and `test` use disjoint seeds.

    Args:
        name: the data set's name, such as `chain_sum`.
        seed: seed of the training prompts.
        max_new_tokens: most tokens of an answer.
        **params: fields of the data set's own configuration.
    """

    splits: tuple[str, ...] = ("train", "test")

    def __init__(self, name: str, seed: int = 0, max_new_tokens: int = 256, **params: Any) -> None:
        _, config = data_set(name)
        known = {field.name for field in fields(config)} - {"seed"}
        for key in params:
            if key not in known:
                raise ValueError(
                    f"task 'gym:{name}': {unknown('parameter', key, known | {'max_new_tokens'})}"
                )
        self.name: str = f"gym:{name}"
        self._max_new_tokens = max_new_tokens
        self._call = (name, params)
        # prompt i uses seed + i; the splits' seeds are far apart, so they share no prompt
        self._data = {
            "train": _make(name, params, (10_000_000 + seed * 1_000_003) % 2**31),
            "test": _make(name, params, 0),
        }
        self._score = _scorer(name, self._data["train"])

    def max_new_tokens(self, split: str) -> int:
        return self._max_new_tokens

    def size(self, split: str) -> int | None:
        return len(self._data[split])

    def example(self, index: int, split: str) -> Example:
        entry = _plain(self._data[split][index])
        return Example(entry["question"], entry["answer"], {"entry": entry, "split": split})

    def score(self, completion: str, example: Example) -> float:
        """The reward by the data set's own scorer, which may raise or take long."""
        return self._score(completion, example.data["entry"])

    def remote(self, completion: str, example: Example) -> Call:
        return Call("entrostat.tasks.gym:grade", (*self._call, completion, example.data["entry"]))

    def remote_setup(self) -> Call:
        return Call("entrostat.tasks.gym:prepare", self._call)


def _scorer(name: str, data: Any) -> Callable[[str, dict[str, Any]], float]:
    guard = guard_of(name, inspect.getsource(type(data).score_answer))

    def score(completion: str, entry: dict[str, Any]) -> float:
        answer = final_answer(completion)
        seen = guard is None or guard(answer, entry)
        return as_reward(data.score_answer(answer if seen else None, entry))

    return score


# scorers of this process; a worker has those of its run
_SCORERS: dict[str, Callable[[str, dict[str, Any]], float]] = {}


def prepare(name: str, params: dict[str, Any]) -> None:
    _SCORERS[f"{name} {params!r}"] = _scorer(name, _make(name, params, 0))


def grade(name: str, params: dict[str, Any], completion: str, entry: dict[str, Any]) -> float:
    """The reward of a completion; called in workers."""
    key = f"{name} {params!r}"
    if key not in _SCORERS:
        prepare(name, params)
    return _SCORERS[key](completion, entry)


def data_set(name: str) -> tuple[Any, Any]:
    with extra("tasks", f"task 'gym:{name}'"):
        from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        listed = f"`entrostat tasks gym` lists all {len(DATASETS)}."
        raise ValueError(unknown("reasoning-gym data set", name, DATASETS, listed))
    return DATASETS[name]


def _make(name: str, params: dict[str, Any], seed: int) -> Any:
    cls, config = data_set(name)
    try:
        return cls(config(**params, seed=seed))
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"task 'gym:{name}': its configuration says: {error}") from None


def _plain(value: Any) -> Any:
    """Convert NumPy's numbers and strings in an entry to Python's, to send it to a worker."""
    if is_plain(value):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {_plain(key): _plain(of) for key, of in value.items()}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return kind(map(_plain, value))
    return str(value) if isinstance(value, str) else value


def is_not_code(text: str) -> bool:
    """Whether evaluating `text` can only build literals or lists of them, or fail.

    A lower-case name could be a variable of the scorer, such as its right answer.
    """
    if len(text) > _MAX_ANSWER:
        return False
    nodes = _nodes(text)
    return nodes is None or all(
        isinstance(node, _LITERALS) and not (isinstance(node, ast.Name) and not node.id.isupper())
        for node in nodes
    )


def is_arithmetic(text: str) -> bool:
    """Whether `text` is an expression of numbers, symbols, + - * / ** and known functions."""
    nodes = _nodes(text) if len(text) <= _MAX_ANSWER else None
    return nodes is not None and all(map(_is_arithmetic_node, nodes))


def combination(text: str) -> tuple[list[int], Fraction] | None:
    """The integers in an expression of + - * / and brackets, and its exact value; or None."""
    if len(text) > _MAX_ANSWER or not _BASIC.fullmatch(text):
        return None
    try:
        numbers: list[int] = []
        return numbers, _fold(ast.parse(text.strip(), mode="eval").body, numbers)
    except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError):
        return None


def _fold(node: ast.AST, numbers: list[int]) -> Fraction:
    match node:
        case ast.Constant(value=int(number)):
            numbers.append(number)
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_fold(operand, numbers)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _EXACT:
            return _EXACT[type(op)](_fold(left, numbers), _fold(right, numbers))
    raise ValueError("another operation")


def _countdown(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer accepts a float within 1e-5 of the target, and any SymPy expression."""
    found = combination(answer)
    target = entry["metadata"]["target"]
    return found is not None and (
        found[1] == target or not math.isclose(found[1], target, rel_tol=1e-4, abs_tol=1e-4)
    )


def _puzzle24(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer accepts any four numbers, not only the given ones, and truncates 24.5 to 24."""
    found = combination(answer)
    return found is not None and (sorted(found[0]), found[1]) == (
        sorted(entry["metadata"]["numbers"]), 24
    )  # fmt: skip


def _same_shape(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer checks only the expected cells, and ignores extra ones."""
    try:
        given, expected = json.loads(answer), json.loads(entry["answer"])
        return list(map(len, given)) == list(map(len, expected))
    except (ValueError, TypeError, RecursionError):
        return False


def _probability(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer accepts a number whose digits are a prefix of the right ones, such as 0."""
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
    """The scorer reads anything unknown as the name of a new variable."""
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
    # its scorer accepts `nan` for any number
    "complex_arithmetic": lambda answer, entry: _COMPLEX.fullmatch(answer) is not None,
    # its scorer compares only whether both texts are empty
    "game_of_life_halting": lambda answer, entry: answer.strip() == entry["answer"],
    "game_of_life": _same_shape,
    # its scorer raises if the factors are not numbers
    "prime_factorization": lambda answer, entry: (
        len(answer) <= _MAX_ANSWER and _FACTORS.fullmatch(answer) is not None
    ),
    "coin_flip": _probability,
    "propositional_logic": _formula,
}


def guard_of(name: str, scorer_source: str) -> Guard | None:
    if name in GUARDS or not EVALUATES.search(scorer_source):
        return GUARDS.get(name)
    if "parse_expr" in scorer_source:
        return lambda answer, entry: is_arithmetic(answer)
    return lambda answer, entry: is_not_code(answer)


def _nodes(text: str) -> list[ast.AST] | None:
    try:
        return list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_arithmetic_node(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=number):
            return type(number) in (int, float)
        case ast.Name(id=name):
            return not name.startswith("_")
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return name in _FUNCTIONS
        # a tower of powers can exhaust the memory
        case ast.BinOp(base, ast.Pow(), ast.Constant(value=int() | float() as exponent)):
            return exponent <= _MAX_EXPONENT and not _has(ast.Pow, base)
        case ast.BinOp(op=ast.Pow(), right=exponent):
            return not _has(ast.Pow, exponent) and _has(ast.Name, node)
    return isinstance(node, _ARITHMETIC)


def _has(kind: type[ast.AST], tree: ast.AST) -> bool:
    return any(isinstance(node, kind) for node in ast.walk(tree))
