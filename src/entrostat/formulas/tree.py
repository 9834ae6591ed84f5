"""Tokens and trees of answers, and the known names."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple


class Token(NamedTuple):
    r"""A piece of an answer.

    Attributes:
        kind: "number"; "word", a run of letters; "text", the content of \text{}; "sign", a command
            with its backslash or any other character; "unclear", digits with commas that may be one
            number or several; "clock", 10:15; "begin", "end"; "name", a left side such as Area.
        value: a Fraction for a number, else a string.
    """

    kind: str
    value: Any

    @property
    def command(self) -> str:
        """A command's name without its backslash; "" for other tokens."""
        name = str(self.value)[1:]
        return name if self.kind == "sign" and name.isalpha() else ""


class Node(NamedTuple):
    r"""A node of a formula's tree.

    Attributes:
        kind: of values: "number", "symbol", "+", "*", "/", "^", "-", "root", "call", "opaque",
            "!", "%", "abs", "\pm", "\mp", "degree"; of others "list", "set", "union", "without",
            "matrix", "row", "text", "based", "quantity", "relation", "choice", "ratio", "clock",
            "residue", "<>", and pairs of brackets such as "(]".
        parts: child nodes.
        value: a number's Fraction; a name; a unit; a relation's signs; a choice's letter.
    """

    kind: str
    parts: tuple[Node, ...] = ()
    value: Any = None


def number(value: Fraction | int) -> Node:
    return Node("number", (), Fraction(value))


NAMELESS = Node("symbol", (), "?")  # the left side of a lone \approx 2.5
EMPTY, INFINITY, REALS = (Node("symbol", (), name) for name in ("emptyset", "infty", "bbR"))
BRACKETS = frozenset({"()", "(]", "[)", "[]"})
RELATIONS = {
    "=": "=", "<": "<", ">": ">", r"\le": "<=", r"\ge": ">=", r"\ne": "!=", r"\in": "in",
    r"\approx": "~",
}  # fmt: skip
FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log lg exp abs sqrt cbrt "
    "floor ceil".split()
)
GREEK = (
    "alpha beta gamma delta epsilon theta lambda mu nu rho sigma tau phi psi omega Delta Gamma "
    "Omega Sigma Phi Theta zeta eta xi chi kappa pi"
).split()
# spellings of symbols: pi, \pi, \mathbb{R}
SYMBOLS = {
    **{written: name for name in (*GREEK, "infty", "emptyset") for written in (name, f"\\{name}")},
    **{f"\\bb{letter}": f"bb{letter}" for letter in "RZNQC"},
    **dict.fromkeys(("infinity", r"\infinity"), "infty"),
}
CHOICES = frozenset("ABCDEFGHIJ")


def walk(node: Node) -> Iterator[Node]:
    """A node and all its descendants."""
    yield node
    for part in node.parts:
        yield from walk(part)


def about(node: Node) -> bool:
    r"""Whether a tree contains \approx."""
    return any(part.kind == "relation" and "~" in part.value for part in walk(node))


def exactly(node: Node) -> Node:
    r"""Replace \approx by =."""
    if not about(node):
        return node
    if NAMELESS in node.parts:
        return exactly(node.parts[1])
    value = tuple("=" if s == "~" else s for s in node.value) if node.kind == "relation" else None
    return Node(node.kind, tuple(map(exactly, node.parts)), value or node.value)


def signed(node: Node, sign: str) -> Node:
    r"""Replace \pm by `sign` and \mp by the opposite sign."""
    parts = tuple(signed(part, sign) for part in node.parts)
    if node.kind in (r"\pm", r"\mp"):
        plus = (node.kind == r"\pm") == (sign == "+")
        return parts[0] if plus else Node("-", parts)
    return Node(node.kind, parts, node.value)


def applied(kind: str, node: Node, *left: Node) -> Node:
    """A sign or product, applied to each entry of a matrix."""
    if node.kind in ("matrix", "row") and kind in "-*":
        return Node(node.kind, tuple(applied(kind, part, *left) for part in node.parts))
    return Node(kind, (*left, node))
