"""Parts of the real line: intervals, their unions, and inequalities that say the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from .tree import Node
from .values import exact_value, symbols

FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
BRACKETS = frozenset({"()", "(]", "[)", "[]"})
INFINITY = Node("symbol", (), "infty")
MOST = 50  # parts of a list or set


def infinite(node: Node) -> int:
    """1 and -1 for the infinities, 0 for what is none."""
    if node.kind == "-":
        return -(node.parts[0] == INFINITY)
    return int(node == INFINITY)


def punctured(points: Sequence[Fraction | None]) -> Node | None:
    """The real line without some points; None where one of them is not known exactly."""
    known = sorted({point for point in points if point is not None})
    if None in points or not known or len(known) > MOST:
        return None
    places = [Node("number", (), point) for point in known]
    ends = [Node("-", (INFINITY,)), *places, INFINITY]
    return Node("union", tuple(Node("()", pair) for pair in pairwise(ends)))


def without_modulus(node: Node) -> Node | None:
    """|2x - 1| < 3 as -1 < x < 2, |x| > 1 as a union of intervals; None for all others."""
    if len(node.value) != 1 or node.value[0] not in ("<", "<=", ">", ">="):
        return None
    inner, most = node.parts[:: 1 if node.parts[0].kind == "abs" else -1]
    sign = node.value[0] if node.parts[0].kind == "abs" else FLIPPED[node.value[0]]
    bound, letters = exact_value(most), symbols(inner)
    if inner.kind != "abs" or len(letters) != 1 or bound is None or bound <= 0:
        return None
    (letter,) = letters
    start, one, two = (exact_value(_put(inner.parts[0], letter, Fraction(at))) for at in (0, 1, 2))
    if start is None or one is None or two is None or not two - one == one - start != 0:
        return None
    low, high = (
        Node("number", (), end)
        for end in sorted((s * bound - start) / (one - start) for s in (1, -1))
    )
    if sign[0] == "<":
        return Node("relation", (low, Node("symbol", (), letter), high), (sign, sign))
    opening, closing = ("(", ")") if sign == ">" else ("[", "]")
    left = Node(f"({closing}", (Node("-", (INFINITY,)), low))
    return Node("union", (left, Node(f"{opening})", (high, INFINITY))))


def _put(node: Node, letter: str, value: Fraction) -> Node:
    """With a number for a letter."""
    if node.kind == "symbol":
        return Node("number", (), value) if node.value == letter else node
    return Node(node.kind, tuple(_put(part, letter, value) for part in node.parts), node.value)


def joined(union: Node) -> Node | None:
    """A union of intervals that meet, worked out; None where nothing meets."""
    if not all(part.kind in BRACKETS and len(part.parts) == 2 for part in union.parts):
        return None
    ends = [[_end(one) for one in part.parts] for part in union.parts]
    if any(end is None for pair in ends for end in pair):
        return None
    order = sorted(range(len(ends)), key=lambda i: (ends[i][0], union.parts[i].kind[0] == "("))
    found = [[union.parts[order[0]], ends[order[0]][1]]]
    for i in order[1:]:
        part, (last, high) = union.parts[i], found[-1]
        touch = ends[i][0] == high and (part.kind[0] == "[" or last.kind[1] == "]")
        if not (ends[i][0] < high or touch):
            found.append([part, ends[i][1]])
        elif (ends[i][1], part.kind[1] == "]") > (high, last.kind[1] == "]"):
            kind = last.kind[0] + part.kind[1]
            found[-1] = [Node(kind, (last.parts[0], part.parts[1])), ends[i][1]]
    if len(found) == len(union.parts):
        return None
    parts = tuple(part for part, _ in found)
    return parts[0] if len(parts) == 1 else Node("union", parts)


def _end(node: Node) -> Any:
    """An interval's end as a number, or None."""
    return math.inf * infinite(node) if infinite(node) else exact_value(node)


def as_interval(relation: Node) -> Node | None:
    """X > 3 and 1 <= x < 2 as intervals; None for 1 < x < 2, which looks like a point."""
    signs, parts = relation.value, relation.parts
    if not set(signs) <= {"<", "<=", ">", ">="}:
        return None
    if {sign[0] for sign in signs} == {">"}:
        signs, parts = tuple(FLIPPED[sign] for sign in reversed(signs)), parts[::-1]
    if any(sign[0] == ">" for sign in signs):
        return None
    if len(parts) == 2 and parts[0].kind == "symbol":
        low, high, signs = Node("-", (INFINITY,)), parts[1], ("<", *signs)
    elif len(parts) == 2 and parts[1].kind == "symbol":
        low, high, signs = parts[0], INFINITY, (*signs, "<")
    elif len(parts) == 3 and parts[1].kind == "symbol" and signs != ("<", "<"):
        low, high = parts[0], parts[2]
    else:
        return None
    if symbols(low) - {"infty"} or symbols(high) - {"infty"}:
        return None
    return Node(f"{'(' if signs[0] == '<' else '['}{')' if signs[1] == '<' else ']'}", (low, high))
