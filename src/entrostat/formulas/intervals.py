"""Subsets of the real line: intervals, unions, and equivalent inequalities."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from .tree import BRACKETS, INFINITY, REALS, Node, number
from .values import affine, real_value, symbols

FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
_FAR = 10**1000  # beyond any value


class Subset(NamedTuple):
    """A subset of the real line, for the variable `letter` ("" if there is none).

    `cuts` are, in order, its beginnings and ends: (place, 0) is right before the place, (place, 1)
    right after it.
    """

    letter: str
    cuts: tuple[tuple[int, int], ...]

    @property
    def bounded(self) -> bool:
        return all(abs(place) < _FAR for place, _ in self.cuts)


_LINE = Subset("", ((-_FAR, 1), (_FAR, 0)))


def infinite(node: Node) -> int:
    """1 and -1 for the infinities, 0 for other nodes."""
    if node.kind == "-":
        return -(node.parts[0] == INFINITY)
    return int(node == INFINITY)


def same_subset(a: Subset, b: Subset) -> bool:
    """Whether two subsets are equal, with the same letter if both have one."""
    return a.cuts == b.cuts and (not a.letter or not b.letter or a.letter == b.letter)


def subset(node: Node) -> Subset | None:
    rule = _SUBSETS.get(node.kind)
    return None if rule is None else rule(node)


def _place(node: Node) -> int | None:
    return infinite(node) * _FAR or real_value(node)


def _interval(node: Node) -> Subset | None:
    if len(node.parts) != 2:
        return None
    return _between(_place(node.parts[0]), _place(node.parts[1]), node.kind)


def _between(low: int | None, high: int | None, brackets: str) -> Subset | None:
    if low is None or high is None:
        return None
    cuts = (low, int(brackets[0] == "(")), (high, int(brackets[1] == "]"))
    return Subset("", cuts) if cuts[0] < cuts[1] else None


def _points(places: Sequence[int | None]) -> Subset | None:
    return _combined(any, [_between(place, place, "[]") for place in places])


def _relation(node: Node) -> Subset | None:
    """The subset of a chain of inequalities in one letter, or of x in A."""
    if node.value == ("in",):
        inside = subset(node.parts[1])
        named = node.parts[0].kind == "symbol" and inside is not None and not inside.letter
        return inside._replace(letter=node.parts[0].value) if named and inside else None
    links = zip(node.value, pairwise(node.parts), strict=True)
    return _combined(all, [_inequality(sign, *sides) for sign, sides in links])


def _inequality(sign: str, left: Node, right: Node) -> Subset | None:
    r"""The subset of x < 3, 3 > x, |2x - 1| \ge 3, or x \ne 1."""
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
    sides = (right, Node("-", (right,))) if modulus else (right,)
    ends = sorted(place for side in sides if (place := _place(_solved(side, line))) is not None)
    close = sign in ("<=", ">")
    if not ends:
        found = None
    elif (sign, infinite(right)) in (("<", 1), (">", -1)):
        found = _LINE
    elif sign == "!=":
        found = _points(ends)
    else:
        low = ends[0] if modulus else -_FAR
        found = _between(low, ends[-1], "(["[close and modulus] + ")]"[close])
    if sign[0] != "<" and not infinite(right):
        found = _combined(_outside, [_LINE, found])
    return None if found is None else found._replace(letter=letter)


def _solved(value: Node, line: tuple[Fraction, Fraction]) -> Node:
    """The x at which start + slope * x has a value."""
    start, slope = map(number, line)
    if line == (0, 1):
        return value
    return Node("/", (Node("+", (value, Node("-", (start,)))), slope))


def _outside(inside: Sequence[bool]) -> bool:
    return inside[0] and not any(inside[1:])


def _combined(rule: Callable[[list[bool]], bool], parts: list[Subset | None]) -> Subset | None:
    """The subset where a rule holds, given whether a point is in each of some subsets."""
    known = [part for part in parts if part is not None]
    letters = {part.letter for part in known} - {""}
    if len(known) < len(parts) or len(letters) > 1:
        return None
    cuts: list[tuple[int, int]] = []
    for cut in sorted({cut for part in known for cut in part.cuts}):
        inside = [bisect_right(part.cuts, cut) % 2 == 1 for part in known]
        if rule(inside) != (len(cuts) % 2 == 1):
            cuts.append(cut)
    return Subset("".join(letters), tuple(cuts))


def _list(node: Node) -> Subset | None:
    avoids = all(part.value == ("!=",) for part in node.parts)
    rule = {"or": any, "and": all, ",": all if avoids else None}[node.value]
    if rule is None or any(part.kind != "relation" for part in node.parts):
        return None
    parts = [subset(part) for part in node.parts]
    return _combined(rule, parts) if all(part and part.letter for part in parts) else None


_SUBSETS: dict[str, Callable[[Node], Subset | None]] = {
    **dict.fromkeys(BRACKETS, _interval),
    "set": lambda node: _points([_place(part) for part in node.parts]),
    "symbol": lambda node: _LINE if node == REALS else None,
    "relation": _relation,
    "list": _list,
    "union": lambda node: _combined(any, [subset(part) for part in node.parts]),
    "without": lambda node: _combined(_outside, [subset(part) for part in node.parts]),
}
