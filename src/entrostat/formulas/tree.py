"""What readers make of an answer, and the names they know."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple


class Token(NamedTuple):
    r"""A piece of an answer.

    Attributes:
        kind: "number"; "word", a run of letters; "text", what stands in \text{}; "command", whose
            name has no backslash; "sign", any other character; "unclear", digits and commas that
            are one number to some and several to others.
        value: a Fraction of a number, a text of all others.
    """

    kind: str
    value: Fraction | str


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


class Unreadable(ValueError):  # noqa: N818 - no error: it is how a reader says no
    """There is no reading, or there are several."""


NAMELESS = Node("symbol", (), "?")  # what is only \approx 2.5
RELATIONS = {
    "=": "=", "<": "<", ">": ">", "le": "<=", "ge": ">=", "ne": "!=", "in": "in",
    "approx": "~",
}  # fmt: skip
FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log lg exp abs sqrt cbrt "
    "floor ceil".split()
)
GREEK = frozenset(
    "alpha beta gamma delta epsilon theta lambda mu nu rho sigma tau phi psi omega Delta Gamma "
    "Omega Sigma Phi Theta zeta eta xi chi kappa".split()
)
CONSTANTS = {"pi": "pi", "infty": "infty", "infinity": "infty", "emptyset": "emptyset"}
CHOICES = frozenset("ABCDEFGHIJ")
SETS = ("bbR", "bbZ", "bbN", "bbQ", "bbC")
CALLED = frozenset("fghFGHP")  # f(x+1) is no product
DEEPEST = 40
# words, and no products of letters
WORDS = frozenset(
    "so is he we it to of in at on no by or as if an be do go my up us me am the and are has for "
    "not get one two six ten all any was can out its our who how why now yes per day men age cow "
    "cat dog sum gcd lcm max min mod det nan inf".split()
)


def about(node: Node) -> bool:
    r"""Whether something is only \approx."""
    return (node.kind == "relation" and "~" in node.value) or any(map(about, node.parts))


def exactly(node: Node) -> Node:
    r"""With = for \approx."""
    if not about(node):
        return node
    if NAMELESS in node.parts:
        return exactly(node.parts[1])
    value = tuple("=" if s == "~" else s for s in node.value) if node.kind == "relation" else None
    return Node(node.kind, tuple(map(exactly, node.parts)), value or node.value)


def holds(node: Node, kinds: Sequence[str]) -> bool:
    """Whether a piece is of a kind, or a part of it."""
    return node.kind in kinds or any(holds(part, kinds) for part in node.parts)


def signed(node: Node, sign: str) -> Node:
    r"""With + or - for \pm, the other for \mp."""
    parts = tuple(signed(part, sign) for part in node.parts)
    if node.kind in (r"\pm", r"\mp"):
        plus = (node.kind == r"\pm") == (sign == "+")
        return parts[0] if plus else Node("-", parts)
    return Node(node.kind, parts, node.value)
