r"""Equality of two parsed answers, by kind.

Answers of different kinds differ, except for one thing in two notations: x = 3 and 3, a list and a
set, inequalities and intervals, (A) 12 and A, a number with and without a unit. The table in
docs/grading.md lists them all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from .intervals import FLIPPED, infinite, same_subset, subset
from .tree import BRACKETS, CHOICES, Node, about, exactly, number, signed, walk
from .values import exact_value, ratio, same_value, symbols

_SETS = BRACKETS | {"union", "set", "symbol"}
_SUBSETS = frozenset({"union", "without", "relation", "list", "symbol"})
_VALUES = frozenset("number symbol + * / ^ - root call opaque ! % abs degree".split())
_ANGULAR = frozenset("sin cos tan cot sec csc".split())
MOST = 50  # most parts of a list or set


def same(expected: Node, given: Node) -> bool:
    """Whether a given answer equals the expected one."""
    if about(given) and not about(expected):
        return False
    expected, given = exactly(expected), exactly(given)
    letters = _letter(expected), _letter(given)
    if "list" in (expected.kind, given.kind) and None not in letters and letters[0] != letters[1]:
        return False  # x = 1 or x = 2, y = 1 or y = 2
    roots = _indexed(expected), _indexed(given)
    if roots.count(None) == 1:
        sides = roots[0] or _plain(expected), roots[1] or _plain(given)
        if {side.kind for side in sides} <= {"list", "set"}:
            expected, given = sides
    if (alike := _same_subsets(expected, given)) is not None:
        return alike
    expected, given = _plain(expected), _plain(given)
    kinds = {expected.kind, given.kind}
    for kind, rule in _EITHER.items():
        if kind in kinds:
            return rule(expected, given)
    if kinds == {"list", "()"}:
        return _same_point(*((expected, given) if given.kind == "()" else (given, expected)))
    if kinds <= {"list", "set"}:
        return _same_connectors(expected, given) and _unordered(expected.parts, given.parts)
    if kinds <= _VALUES:
        return _same_values(expected, given)
    return len(kinds) == 1 and _ALIKE[expected.kind](expected, given)


def _plain(node: Node) -> Node:
    r"""Expand \pm to two values, and turn x = 3, x = 4 into 3, 4."""
    two = any(part.kind in (r"\pm", r"\mp") for part in walk(node))
    if two and node.kind in _VALUES | {r"\pm", r"\mp"}:
        return Node("list", (signed(node, "+"), signed(node, "-")), ",")
    if node.kind == "list":
        parts = [part for item in node.parts for part in _listed(_plain(item))]
        if _letter(Node("list", tuple(parts))) is not None:
            parts = [part.parts[-1] if part.kind == "relation" else part for part in parts]
        first, *others = parts
        values = all(part.kind in _VALUES for part in parts)
        if node.value == "or" and values and all(same(first, part) for part in others):
            return first
        return Node("list", tuple(parts), node.value)
    return node


def _letter(node: Node) -> str | None:
    """The letter x of x = 3, x in A, and the lists x = 1, x = 2 and x = 1, 2."""
    if node.kind == "list":
        first, *others = map(_name, node.parts)
        bare = all(part.kind in _VALUES for part in node.parts[1:])
        return first if bare or set(others) <= {first} else None
    if node.kind == "relation" and node.value == ("in",) and node.parts[0].kind == "symbol":
        return node.parts[0].value
    return _name(node)


def _indexed(node: Node) -> Node | None:
    """Values of roots with indices, x_1 = 2, x_2 = 3, as a list; or None."""
    names = [str(_name(part) or "").partition("_") for part in _listed(node)]
    many = node.kind == "list" and len({index for _, _, index in names}) == len(names)
    if not many or len({letter for letter, _, _ in names}) > 1 or not all(i for _, _, i in names):
        return None
    return Node("list", tuple(part.parts[-1] for part in node.parts), ",")


def _same_residue(a: Node, b: Node) -> bool:
    r"""Whether two residues are equal: 3 \pmod 7 is x \equiv 10 \pmod 7, but not a number."""
    if a.kind != b.kind or not same(a.parts[1], b.parts[1]):
        return False
    sides = a.parts[0], b.parts[0]
    names = [_name(side) for side in sides]
    if None not in names and names[0] != names[1]:
        return False
    values = [
        exact_value(side.parts[-1] if name else side)
        for side, name in zip(sides, names, strict=True)
    ]
    modulus = exact_value(a.parts[1])
    if not modulus or values[0] is None or values[1] is None:
        return same(*sides)
    return (values[0] - values[1]) % modulus == 0


def _same_ratio(expected: Node, given: Node) -> bool:
    """Whether two ratios are equal: 2:3 is 4:6, and 2/3 if a ratio is expected; or two times."""
    if expected.kind == given.kind == "clock":
        return expected.value == given.value
    sides = [_of_clock(expected), _of_clock(given)]
    if sides[0].kind != "ratio":
        return False
    if sides[1].kind != "ratio":
        value = len(sides[0].parts) == 2 and sides[1].kind in _VALUES
        return value and same_value(Node("/", sides[0].parts), sides[1])
    (first, *left), (other, *right) = (side.parts for side in sides)
    return len(left) == len(right) and all(
        same_value(Node("*", (a, other)), Node("*", (b, first)))
        for a, b in zip(left, right, strict=True)
    )


def _of_clock(node: Node) -> Node:
    """Turn a time such as 10:15 into a ratio; 3:00 pm stays a time."""
    if node.kind != "clock" or not re.fullmatch(r"\d+(?::[1-9]\d)+", node.value):
        return node
    return Node("ratio", tuple(number(int(part)) for part in node.value.split(":")))


def _same_subsets(a: Node, b: Node) -> bool | None:
    """Whether two subsets of the real line are equal; None if one is none, or both are tuples.

    1 < x < 2 is not equal to (1, 2), which may be a point.
    """
    kinds = {a.kind, b.kind}
    if kinds <= BRACKETS | {"set"} or not kinds & _SUBSETS:
        return None
    left, right = subset(a), subset(b)
    if left is None or right is None:
        return None
    chain = any(node.kind == "relation" and node.value != ("in",) for node in (a, b))
    return same_subset(left, right) and not ("()" in kinds and chain and left.bounded)


def _same_point(named: Node, point: Node) -> bool:
    """Whether x = 3, y = 4 equals (3, 4): in alphabetical order, with no letter skipped."""
    said = {_name(part) or "": part for part in named.parts}
    letters = sorted(said)
    if not all(len(name) == 1 and name.islower() for name in letters) or named.value == "or":
        return False
    follow = all(ord(b) - ord(a) == 1 for a, b in pairwise(letters))
    if not follow or len(letters) != len(point.parts) or len(letters) != len(named.parts):
        return False
    values = [assigned(said[name]) for name in letters]
    return all(v is not None and same(v, p) for v, p in zip(values, point.parts, strict=True))


def _same_connectors(a: Node, b: Node) -> bool:
    """Whether two lists have equivalent connectors.

    "3 and 4" equals "3 or 4", but "and" and "or" differ between relations, words and choices, where
    a comma is "and". Between inequalities in the same letter a comma may also be "or".
    """
    joined = any(part.kind in ("relation", "text") or _is_choice(part) for part in a.parts)
    if a.value == b.value or "set" in (a.kind, b.kind) or not joined:
        return True
    signs = "".join(sign for part in a.parts if part.kind == "relation" for sign in part.value)
    unclear = set("<>") & set(signs) and frozenset.intersection(*map(symbols, a.parts))
    return "or" not in (a.value, b.value) and not (unclear and "and" in (a.value, b.value))


def _listed(node: Node) -> Sequence[Node]:
    return node.parts if node.kind == "list" else (node,)


def _same_values(a: Node, b: Node) -> bool:
    if infinite(a) or infinite(b):
        return infinite(a) == infinite(b)
    plain = not symbols(b) and all(part.kind != "%" for part in walk(b))
    if a.kind == "%" and plain and same_value(a.parts[0], b):
        return True  # accept 25 for 25%
    return a == b or same_value(a, b)


def _is_choice(node: Node) -> bool:
    return node.kind == "symbol" and node.value in CHOICES


def _same_choice(expected: Node, given: Node) -> bool:
    """Whether choices are equal: (A) 12 equals A, and 12; (A) 12 or B does not equal A."""
    if expected.kind == given.kind:
        return expected.value == given.value and same(expected.parts[0], given.parts[0])
    choice, other = (expected, given) if expected.kind == "choice" else (given, expected)
    if _is_choice(other):
        return other.value == choice.value and choice.parts[0].kind != "list"
    return same(choice.parts[0], other)


def _same_quantity(expected: Node, given: Node) -> bool:
    units = [node.value for node in (expected, given) if node.kind == "quantity"]
    if len(set(units)) > 1 or "%" in (expected.kind, given.kind):
        return False
    bare = [node.parts[0] if node.kind == "quantity" else node for node in (expected, given)]
    return same(*bare)


def _in_order(a: Node, b: Node) -> bool:
    return len(a.parts) == len(b.parts) and all(map(same, a.parts, b.parts))


def _unordered(expected: Sequence[Node], given: Sequence[Node]) -> bool:
    """Match parts in any order. Equality is transitive, so the first match found suffices."""
    if len(expected) != len(given) or len(expected) > MOST:
        return False
    left = list(given)
    for node in expected:
        # 1, 2 does not equal x = 1, y = 2
        related = (one for one in left if (one.kind == "relation") == (node.kind == "relation"))
        found = next((one for one in related if same(node, one)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _same_relation(expected: Node, given: Node) -> bool:
    """Compare equations and inequalities, also with a value that they assign."""
    if expected.kind == given.kind:
        return _same_chain(expected, given)
    relation, other = (expected, given) if expected.kind == "relation" else (given, expected)
    if set(relation.value) == {"in"}:
        where = relation.parts[-1]
        listed = other.kind == "list" and where.kind == "set"
        return (listed or other.kind in _SETS) and same(where, other)
    value = assigned(relation)
    if value is None:
        return False
    if relation is expected:  # an expected x + y = 7 may be a line
        return not _combines(relation) and same(value, other)
    return same(other, value)


def _name(node: Node) -> str | None:
    """The left side of x = ..., f(x) = ...: a name that the right side does not contain."""
    if node.kind != "relation" or node.value != ("=",):
        return None
    left, right = node.parts
    if left.kind == "symbol" and left.value not in symbols(right):
        return left.value
    if left.kind == "call" and left.value in _ANGULAR and left.parts[0].kind == "symbol":
        return f"{left.value}({left.parts[0].value})"
    letters = _letters(left, "*", "abs")
    if letters and all(map(str.isupper, letters)):  # AB = 5, |AB| = 5
        said = "".join(letters) if left.kind != "abs" else f"|{''.join(letters)}|"
        return said if not symbols(right) & set(letters) else None
    if left.kind in ("opaque", "()") and all(part.kind == "symbol" for part in left.parts):
        return left.value or ",".join(part.value for part in left.parts)
    simple = all(part.kind in ("number", "symbol") for part in left.parts)
    if left.kind == "opaque" and (simple or not symbols(left)):  # f(x, 0) = 1, f(-2) = 3
        return f"{left.value}{left.parts}"
    return None


def _letters(node: Node, *kinds: str) -> list[str]:
    """The letters of a value whose other parts are all of some kinds; else []."""
    parts = list(walk(node))
    alone = all(part.kind in ("symbol", *kinds) for part in parts)
    return [part.value for part in parts if part.kind == "symbol"] if alone else []


def _combines(relation: Node) -> bool:
    """Whether a relation may give the value of several letters combined: m + n = 7."""
    first, last = relation.parts[0], relation.parts[-1]
    letters = _letters(first, "+", "-", "*", "/")
    return bool(letters) and len(symbols(first)) > 1 and not symbols(last)


def assigned(relation: Node) -> Node | None:
    """The value of x = 42 or 6 * 7 = 42, here 42; None for 2 + 2 = 5 and 42 = 42."""
    if set(relation.value) != {"="}:
        return None
    first, *rest = relation.parts
    if rest[-1].kind == "symbol" and symbols(rest[-1]):  # 5 = x, but not x = \pi
        first, *rest = reversed(relation.parts)
    if _name(Node("relation", (first, rest[-1]), ("=",))) is None and not _combines(relation):
        if first.kind == "number":
            return None
        rest = [first, *rest]
    last = rest[-1]
    return last if all(same(last, part) for part in rest[:-1]) else None


def _same_chain(a: Node, b: Node) -> bool:
    if a.value == b.value and all(map(same, a.parts, b.parts)):
        return True
    if _name(a) == _name(b) is not None and a.parts[0].kind != b.parts[0].kind:
        return same(a.parts[1], b.parts[1])  # y(x) = 2x and y = 2x
    if len(a.value) == len(b.value) == 1:
        return _same_sides(a, b)
    turned = tuple(FLIPPED.get(sign, "") for sign in reversed(b.value))
    return a.value == turned and all(map(same, a.parts, reversed(b.parts)))


def _same_sides(a: Node, b: Node) -> bool:
    """Compare single relations: left minus right is equal up to a factor of the right sign."""
    if "in" in (*a.value, *b.value):
        return False
    if any(part.kind not in _VALUES or infinite(part) for part in (*a.parts, *b.parts)):
        return False
    left, right = (Node("+", (one.parts[0], Node("-", (one.parts[1],)))) for one in (a, b))
    factor = ratio(left, right, lambda x, y: x / y) if symbols(left) else None
    if not factor:
        return False
    if a.value[0] in ("=", "!="):
        return a.value == b.value
    turned = b.value[0] if factor.real > 0 else FLIPPED[b.value[0]]
    return factor.imag == 0 and a.value[0] == turned


# rules by the kind of either side, in this order
_EITHER: dict[str, Callable[[Node, Node], bool]] = {
    "residue": _same_residue,
    "ratio": _same_ratio,
    "clock": _same_ratio,
    "choice": _same_choice,
    "quantity": _same_quantity,
    "relation": _same_relation,
}
# rules by the kind of both sides
_ALIKE: dict[str, Callable[[Node, Node], bool]] = {
    **dict.fromkeys((*BRACKETS, "<>", "matrix", "row", "without"), _in_order),
    "union": lambda a, b: _unordered(a.parts, b.parts),
    **dict.fromkeys(("text", "based"), lambda a, b: a.value == b.value),
}
