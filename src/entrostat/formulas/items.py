"""What an answer says: one value, a text, or several with a connector between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from .reader import Parser
from .tree import CHOICES, CONSTANTS, FUNCTIONS, GREEK, NAMELESS, RELATIONS, Node, Token, Unreadable
from .units import CURRENCIES, HEAT, SCALES, Unit, named, unit_at_end
from .values import symbols

_OPENING, _CLOSING = ("(", "[", r"\{", "{"), (")", "]", r"\}", "}")
_PAIRED = {"langle": 1, "lfloor": 1, "lceil": 1, "rangle": -1, "rfloor": -1, "rceil": -1}
_ANGLED = FUNCTIONS | {"circ"}  # with these a degree sign belongs to an angle, not to the answer
_APPROXIMATELY = Token("command", "approx")
_RESIDUE = Token("command", "pmod")
_CIRCLE = [Token("sign", "^"), Token("command", "circ")]
_OPEN, _CLOSE = Token("sign", "("), Token("sign", ")")
_SHORT = {"dne": "does not exist"}
_REALS = frozenset(
    f"{begin}{those}" for begin in ("all ", "the ", "any ", "every ", "the set of all ",
    "the set of ", "") for those in ("real numbers", "real number", "reals")
)  # fmt: skip


def read(tokens: Sequence[Token]) -> Node | None:
    """What an answer says, or None."""
    if not tokens:
        return None
    letter, rest, certain = _choice(list(tokens))
    node = None if certain else _read(list(tokens))
    if node is not None or letter is None:
        return node
    if not rest:
        return Node("symbol", (), letter)
    value = _read(rest)
    return None if value is None else Node("choice", (value,), letter)


def _choice(tokens: list[Token]) -> tuple[str | None, list[Token], bool]:
    r"""The letter of a choice and what follows it; whether no formula can begin so.

    (A) 12 and A) 12, of which nobody makes a product; \text{(A)} -3 and \textbf{A} 12.
    """
    bracket = tokens[0] == _OPEN
    name, rest = tokens[bracket : bracket + 1], tokens[bracket + 1 :]
    if not name or name[0].kind not in ("word", "text") or name[0].value not in CHOICES:
        return None, [], False
    letter, text = str(name[0].value), name[0].kind == "text"
    if rest[:1] == [_CLOSE]:
        return letter, rest[1:], bracket and text and len(rest) > 1 and _begins(rest[1])
    labels = text and not bracket and rest[:1] and rest[0].kind == "number"
    return (letter, rest, True) if labels else (None, [], False)


def _begins(token: Token) -> bool:
    """Whether a value may begin here, and nothing goes on."""
    if token.kind == "sign":
        return token.value in ("-", "(", "[", "{", r"\{", "|", "$", r"\$")
    return not _connects(token) and token.value not in (*RELATIONS, "cup")


def _read(tokens: list[Token]) -> Node | None:
    try:
        return _answer(tokens)
    except (Unreadable, RecursionError):
        return None


def _answer(tokens: list[Token]) -> Node:
    """One item, or several with a connector between them."""
    items, connectors = _split(tokens)
    if len(items) == 1:
        return _item(items[0])
    between = {word for word in connectors if word not in (",", ";")} or {","}
    if len(between) > 1:
        raise Unreadable
    return Node("list", tuple(map(_item, items)), between.pop())


def _split(tokens: list[Token]) -> tuple[list[list[Token]], list[str]]:
    """Items at the top level and what stands between; ", and" is one connector."""
    items: list[list[Token]] = [[]]
    connectors: list[str] = []
    depth = 0
    for token in tokens:
        depth += _depth(token)
        if depth < 0:
            raise Unreadable
        joins = token.value in (",", ";") if token.kind == "sign" else _connects(token)
        if not joins or depth:
            items[-1].append(token)
        elif items[-1]:
            items.append([])
            connectors.append(str(token.value))
        elif connectors and connectors[-1] == "," and token.value in ("and", "or"):
            connectors[-1] = str(token.value)
        else:
            raise Unreadable
    if depth or not items[-1]:
        raise Unreadable
    return items, connectors


def _depth(token: Token) -> int:
    if token.kind in ("begin", "end"):
        return 1 if token.kind == "begin" else -1
    if token.kind == "command":
        return _PAIRED.get(str(token.value), 0)
    if token.kind != "sign":
        return 0
    return (token.value in _OPENING) - (token.value in _CLOSING)


def _connects(token: Token) -> bool:
    return token.kind in ("word", "text") and token.value in ("and", "or")


def _item(tokens: list[Token]) -> Node:
    r"""A value with its unit, a text, a ratio, a time, a residue, or what the parser reads."""
    if len(words := _words(tokens)) == 1:
        return words[0]
    if tokens[0].kind == "clock":
        return _clock(tokens)
    if _RESIDUE in tokens:
        return _residue(tokens)
    if Token("sign", ":") in tokens:
        return Node("ratio", tuple(map(_item, _cut(tokens, Token("sign", ":")))))
    if tokens[0] == _APPROXIMATELY and tokens[1:]:
        return Node("relation", (NAMELESS, _item(tokens[1:])), ("~",))
    if _APPROXIMATELY in tokens:
        tokens = _approximated(tokens)
    bare, unit, factor = _without_unit(tokens)
    parser = Parser(bare)
    node = parser.relation()
    if not parser.ended():
        raise Unreadable
    if factor != 1 and node.kind == "number":
        node = Node("number", (), node.value * factor)
    elif factor != 1:
        node = Node("*", (node, Node("number", (), Fraction(factor))))
    return node if unit is None else Node("quantity", (node,), unit)


def _cut(tokens: list[Token], at: Token) -> list[list[Token]]:
    """The parts between a sign, none of which is empty."""
    parts: list[list[Token]] = [[]]
    for token in tokens:
        if token == at:
            parts.append([])
        else:
            parts[-1].append(token)
    if not all(parts):
        raise Unreadable
    return parts


def _approximated(tokens: list[Token]) -> list[Token]:
    r"""Of 1/3 \approx 0.33 the exact part; of x \approx 1.41 all."""
    first, *others = _cut(tokens, _APPROXIMATELY)
    if Token("sign", "=") in first:
        return first
    parser = Parser(list(first))
    node = parser.relation()
    letters = symbols(node) or node.kind == "opaque"
    if not parser.ended() or (letters and len(others) > 1):
        raise Unreadable
    return [*first, _APPROXIMATELY, *others[0]] if letters else first


def _clock(tokens: list[Token]) -> Node:
    """A time of day, or a ratio that looks like one."""
    said = "".join(str(token.value) for token in tokens[1:])
    half = re.sub(r"[^a-z]", "", said.casefold())
    if half not in ("", "am", "pm") or re.search(r"[^a-zA-Z.\s]", said):
        raise Unreadable
    return Node("clock", (), f"{tokens[0].value} {half}".strip())


def _residue(tokens: list[Token]) -> Node:
    r"""3 \pmod 7, x \equiv 3 (mod 7)."""
    at = tokens.index(_RESIDUE)
    value, modulus = tokens[:at], tokens[at + 1 :]
    if value[-1:] == [_OPEN] and modulus[-1:] == [_CLOSE]:
        value, modulus = value[:-1], modulus[:-1]
    if not value or not modulus:
        raise Unreadable
    return Node("residue", (_item(value), _item(modulus)))


def _words(tokens: list[Token]) -> list[Node]:
    """An answer in words; one letter, pi or a function's name is none, "all reals" a set."""
    if not tokens or not all(token.kind in ("word", "text") for token in tokens):
        return []
    said = " ".join(str(token.value) for token in tokens)
    if len(said) == 1:
        return [Node("symbol", (), said)]
    if said.casefold() in _REALS:
        return [Node("symbol", (), "bbR")]
    known = said in FUNCTIONS or said in CONSTANTS or said in GREEK
    said = " ".join(said.casefold().split()).rstrip(".")
    return [] if known else [Node("text", (), _SHORT.get(said, said))]


def _without_unit(tokens: list[Token]) -> tuple[list[Token], Unit | None, int]:
    """An item without the unit at its end or the currency before it, and without "million"."""
    first = tokens[0]
    unit: Unit | None
    if first.kind == "sign" and first.value in CURRENCIES:
        rest, unit = tokens[1:], named(CURRENCIES[str(first.value)])
    elif tokens[-2:] == _CIRCLE and not any(
        token.kind == "command" and token.value in _ANGLED for token in tokens[:-2]
    ):
        rest, unit = tokens[:-2], named("degree")
    elif tokens[-3:-1] == _CIRCLE and tokens[-1].kind != "sign" and tokens[-1].value in HEAT:
        rest, unit = tokens[:-3], named(HEAT[str(tokens[-1].value)])
    else:
        rest, unit = unit_at_end(tokens)
    factor = 1
    if rest and rest[-1].kind in ("word", "text") and rest[-1].value in SCALES:
        rest, factor = rest[:-1], SCALES[str(rest[-1].value)]
    if not rest:
        raise Unreadable
    return rest, unit, factor
