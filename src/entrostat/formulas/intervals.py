"""Subsets of the real line: intervals, unions, and inequalities that say the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from .tree import Node
from .values import affine, real_value, same_value, symbols

FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
BRACKETS = frozenset({"()", "(]", "[)", "[]"})
INFINITY = Node("symbol", (), "infty")
REALS = Node("symbol", (), "bbR")
_FAR = 10**1000  # beyond all that has a value


class Cut(NamedTuple):
    """Where a subset begins or ends: right before a point (side 0) or right behind it (1)."""

    place: int
    side: int
    node: Node


class Subset(NamedTuple):
    """A part of the real line by its cuts, in order, and the letter that it is about, or ""."""

    letter: str
    cuts: tuple[Cut, ...]


def infinite(node: Node) -> int:
    """1 and -1 for the infinities, 0 for what is none."""
    if node.kind == "-":
        return -(node.parts[0] == INFINITY)
    return int(node == INFINITY)


def same_subset(a: Subset, b: Subset) -> bool:
    """Whether two subsets are one, in the same letter where both have one."""
    return (not a.letter or not b.letter or a.letter == b.letter) and (
        len(a.cuts) == len(b.cuts)
        and all(
            x.side == y.side
            and (x.place == y.place if infinite(x.node) else same_value(x.node, y.node))
            for x, y in zip(a.cuts, b.cuts, strict=True)
        )
    )


def subset(node: Node) -> Subset | None:
    """The part of the real line that an answer is, or None."""
    rule = _SUBSETS.get(node.kind)
    return None if rule is None else rule(node)


def _interval(node: Node) -> Subset | None:
    if len(node.parts) != 2:
        return None
    return _between(*node.parts, node.kind)


def _between(low: Node, high: Node, brackets: str) -> Subset | None:
    cuts = _cut(low, int(brackets[0] == "(")), _cut(high, int(brackets[1] == "]"))
    if cuts[0] is None or cuts[1] is None or not cuts[0][:2] < cuts[1][:2]:
        return None
    return Subset("", (cuts[0], cuts[1]))


def _cut(node: Node, side: int) -> Cut | None:
    value = real_value(node)
    place = infinite(node) * _FAR if infinite(node) else value
    return None if place is None else Cut(place, side, node)


def _points(node: Node) -> Subset | None:
    return _combined(any, [_between(part, part, "[]") for part in node.parts])


def _symbol(node: Node) -> Subset | None:
    return _between(Node("-", (INFINITY,)), INFINITY, "()") if node == REALS else None


def _relation(node: Node) -> Subset | None:
    """Inequalities in one letter, each link of a chain one; x in A."""
    if node.value == ("in",):
        inside = subset(node.parts[1])
        named = node.parts[0].kind == "symbol" and inside is not None and not inside.letter
        return inside._replace(letter=node.parts[0].value) if named and inside else None
    links = zip(node.value, pairwise(node.parts), strict=True)
    return _combined(all, [_inequality(sign, *sides) for sign, sides in links])


def _inequality(sign: str, left: Node, right: Node) -> Subset | None:
    r"""X < 3, 3 > x, |2x - 1| \ge 3, x \ne 1."""
    if symbols(right) and not symbols(left):
        left, right, sign = right, left, FLIPPED.get(sign, "")
    modulus = left.kind == "abs"
    if sign not in FLIPPED or sign == "=" or len(symbols(left)) != 1:
        return None
    (letter,) = symbols(left)
    line = affine(left.parts[0] if modulus else left, letter)
    if line is None or not line[1] or not (modulus or left.kind == "symbol"):
        return None
    if modulus and ((bound := real_value(right)) is None or bound < 0):
        return None
    sides = (right, Node("-", (right,)))[: 1 + modulus]
    ends = sorted((_solved(side, line) for side in sides), key=lambda end: real_value(end) or 0)
    if (sign, infinite(right)) in (("<", 1), (">", -1)):
        found = _symbol(REALS)
    elif sign == "!=":
        found = _points(Node("set", tuple(ends)))
    else:
        close = sign in ("<=", ">")
        low = ends[0] if modulus else Node("-", (INFINITY,))
        found = _between(low, ends[-1], "(["[close and modulus] + ")]"[close])
    if sign[0] != "<" and not infinite(right):
        found = _combined(_outside, [_symbol(REALS), found])
    return None if found is None else found._replace(letter=letter)


def _solved(value: Node, line: tuple[Fraction, Fraction]) -> Node:
    """Where start + slope * x has a value."""
    start, slope = (Node("number", (), number) for number in line)
    if line == (0, 1):
        return value
    return Node("/", (Node("+", (value, Node("-", (start,)))), slope))


def _outside(inside: Iterable[bool]) -> bool:
    first, *others = inside
    return first and not any(others)


def _combined(rule: Callable[[list[bool]], bool], parts: list[Subset | None]) -> Subset | None:
    """Where a rule of being in each of some subsets holds."""
    known = [part for part in parts if part is not None]
    letters = {part.letter for part in known} - {""}
    if len(known) < len(parts) or len(letters) > 1:
        return None
    inside, held, found = [False] * len(known), False, []
    places: Iterator[tuple[Cut, int]] = (
        (cut, i) for i, part in enumerate(known) for cut in part.cuts
    )
    order = sorted(places, key=lambda each: each[0][:2])
    for at, (cut, i) in enumerate(order):
        inside[i] = not inside[i]
        if at + 1 < len(order) and order[at + 1][0][:2] == cut[:2]:
            continue
        if rule(inside) != held:
            held = not held
            found.append(cut)
    return Subset("".join(letters), tuple(found))


def _list(node: Node) -> Subset | None:
    avoids = all(part.value == ("!=",) for part in node.parts)
    rule = {"or": any, "and": all, ",": all if avoids else None}[node.value]
    if rule is None or any(part.kind != "relation" for part in node.parts):
        return None
    parts = [subset(part) for part in node.parts]
    return _combined(rule, parts) if all(part and part.letter for part in parts) else None


_SUBSETS: dict[str, Callable[[Node], Subset | None]] = {
    **dict.fromkeys(BRACKETS, _interval),
    "set": _points,
    "symbol": _symbol,
    "relation": _relation,
    "list": _list,
    "union": lambda node: _combined(any, [subset(part) for part in node.parts]),
    "without": lambda node: _combined(_outside, [subset(part) for part in node.parts]),
}
