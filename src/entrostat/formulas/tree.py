"""What readers make of an answer, and the names they know."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple


class Token(NamedTuple):
    r"""A piece of an answer.

    Attributes:
        kind: "number"; "word", a run of letters; "text", what stands in \text{}; "sign", a command
            with its backslash or any other character; "unclear", digits and commas that are one
            number to some and several to others; "name", what a value is given of: Area.
        value: a Fraction of a number, a text of all others.
    """

    kind: str
    value: Any

    @property
    def command(self) -> str:
        """A command's name without its backslash; nothing of all else."""
        name = str(self.value)[1:]
        return name if self.kind == "sign" and name.isalpha() else ""


class Node(NamedTuple):
    r"""A piece of mathematics.

    Attributes:
        kind: of values: "number", "symbol", "+", "*", "/", "^", "-", "root", "call", "opaque",
            "!", "%", "abs", "\pm", "\mp", "degree"; of others "list", "set", "union", "without",
            "matrix", "row", "text", "based", "quantity", "relation", "choice", and brackets with
            what they open and close with: "(]".
        parts: what it is made of.
        value: a number's Fraction; a name; a unit; of a relation its signs; of a choice its letter.
    """

    kind: str
    parts: tuple[Node, ...] = ()
    value: Any = None


def number(value: Fraction | int) -> Node:
    return Node("number", (), Fraction(value))


NAMELESS = Node("symbol", (), "?")  # what is only \approx 2.5
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
# how a symbol is written: pi, \pi, \mathbb{R}
SYMBOLS = {
    **{written: name for name in (*GREEK, "infty", "emptyset") for written in (name, f"\\{name}")},
    **{f"\\bb{letter}": f"bb{letter}" for letter in "RZNQC"},
    **dict.fromkeys(("infinity", r"\infinity"), "infty"),
}
CHOICES = frozenset("ABCDEFGHIJ")


def walk(node: Node) -> Iterator[Node]:
    """A piece and all its parts."""
    yield node
    for part in node.parts:
        yield from walk(part)


def about(node: Node) -> bool:
    r"""Whether something is only \approx."""
    return any(part.kind == "relation" and "~" in part.value for part in walk(node))


def exactly(node: Node) -> Node:
    r"""With = for \approx."""
    if not about(node):
        return node
    if NAMELESS in node.parts:
        return exactly(node.parts[1])
    value = tuple("=" if s == "~" else s for s in node.value) if node.kind == "relation" else None
    return Node(node.kind, tuple(map(exactly, node.parts)), value or node.value)


def signed(node: Node, sign: str) -> Node:
    r"""With + or - for \pm, the other for \mp."""
    parts = tuple(signed(part, sign) for part in node.parts)
    if node.kind in (r"\pm", r"\mp"):
        plus = (node.kind == r"\pm") == (sign == "+")
        return parts[0] if plus else Node("-", parts)
    return Node(node.kind, parts, node.value)
