"""Any reasoning-gym data set by name, with its own scorer and parameters.

Some of reasoning-gym's scorers hand the answer to Python's or SymPy's evaluator. Answers come from
a model, so for those data sets an answer reaches the scorer only if it is plain arithmetic (or a
plain list of literals) by its syntax tree; anything else scores as no answer.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from typing import Any

from .._names import unknown
from .base import Example
from .jsonl import final_answer

_EVALUATES = re.compile(r"(?<![\w.])(?:eval|exec)\(|parse_expr\(|sympify\(")
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


class GymTask:
    """A reasoning-gym data set.

    The completion's last <answer>...</answer> (or, without one, all of it) goes to the data set's
    own scorer. Splits `train` and `test` are made from seeds that never meet.

    Args:
        name: the data set's name, as `chain_sum`.
        seed: of the training prompts.
        max_new_tokens: tokens that an answer may take.
        **params: fields of the data set's own configuration.

    Raises:
        ValueError: an unknown data set or parameter, or values that the data set refuses.
    """

    splits: tuple[str, ...] = ("train", "test")

    def __init__(self, name: str, seed: int = 0, max_new_tokens: int = 256, **params: Any) -> None:
        from reasoning_gym.factory import DATASETS

        if name not in DATASETS:
            listed = f"reasoning-gym's GALLERY.md shows all {len(DATASETS)}."
            raise ValueError(unknown("reasoning-gym data set", name, DATASETS, listed))
        cls, config_cls = DATASETS[name]
        known = {field.name for field in fields(config_cls)} - {"seed"}
        for key in params:
            if key not in known:
                raise ValueError(
                    f"task 'gym:{name}': {unknown('parameter', key, known | {'max_new_tokens'})}"
                )
        self.name: str = f"gym:{name}"
        self._max_new_tokens = max_new_tokens
        try:
            # prompt i of a data set is made from seed + i: far apart, splits never share a prompt
            self._data = {
                "train": cls(config_cls(**params, seed=(10_000_000 + seed * 1_000_003) % 2**31)),
                "test": cls(config_cls(**params, seed=0)),
            }
        except (AssertionError, TypeError, ValueError) as error:
            raise ValueError(f"task 'gym:{name}': its configuration says: {error}") from None
        source = inspect.getsource(cls.score_answer)
        self._guard = None
        if _EVALUATES.search(source):
            self._guard = is_arithmetic if "parse_expr" in source else is_not_code

    def max_new_tokens(self, split: str) -> int:
        """As given."""
        return self._max_new_tokens

    def size(self, split: str) -> int | None:
        """The data set's size (its parameter `size`)."""
        return len(self._data[split])

    def example(self, index: int, split: str) -> Example:
        """Item number `index` of a split."""
        entry = self._data[split][index]
        return Example(entry["question"], entry["answer"], {"entry": entry, "split": split})

    def score(self, completion: str, example: Example) -> float:
        """What the data set's own scorer says."""
        answer = final_answer(completion)
        if self._guard is not None and not self._guard(answer):
            answer = None
        scorer = self._data[example.data["split"]]
        return float(scorer.score_answer(answer, example.data["entry"]))


def _nodes(text: str) -> list[ast.AST] | None:
    """The nodes of a Python expression; None where it is not one."""
    try:
        return list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def is_not_code(text: str) -> bool:
    """Whether evaluating `text` could only build a list of literals or names, or fail."""
    if len(text) > _MAX_ANSWER:
        return False
    nodes = _nodes(text)
    return nodes is None or all(isinstance(node, _LITERALS) for node in nodes)


def is_arithmetic(text: str) -> bool:
    """Whether `text` is an expression of numbers, symbols, + - * / **, and known functions."""
    if len(text) > _MAX_ANSWER:
        return False
    nodes = _nodes(text)
    return nodes is not None and all(_is_arithmetic_node(node) for node in nodes)


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
