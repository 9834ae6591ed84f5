"""Parsing of an answer: one value, a text, or several with a connector between them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .intervals import subset
from .reader import Parser, Unreadable, require
from .tree import CHOICES, FUNCTIONS, NAMELESS, REALS, RELATIONS, SYMBOLS, Node, Token, number
from .units import CURRENCIES, HEAT, SCALES, Unit, named, unit_at_end
from .values import symbols

_DEPTH = {
    "begin": 1,
    "end": -1,
    **dict.fromkeys(("(", "[", "{", *r"\{ \langle \lfloor \lceil".split()), 1),
    **dict.fromkeys((")", "]", "}", *r"\} \rangle \rfloor \rceil".split()), -1),
}
_APPROXIMATELY = Token("sign", r"\approx")
_RESIDUE, _RATIO = Token("sign", r"\pmod"), Token("sign", ":")
_LONGEST_NAME = 60  # tokens
_EQUALS = Token("sign", "=")
_CIRCLE = [Token("sign", "^"), Token("sign", r"\circ")]
# with these functions a degree sign belongs to an angle, not to the answer
_ANGLED = {f"\\{name}" for name in FUNCTIONS | {"circ"}}
_BAR, _IN_REALS = Token("sign", "|"), [Token("sign", r"\in"), Token("sign", r"\bbR")]
_OPEN, _CLOSE = Token("sign", "("), Token("sign", ")")
_BEGIN = frozenset("- ( [ { | $".split()) | {r"\{", r"\$"}  # signs that a value may begin with
_SHORT = {"dne": "does not exist"}
_REALS = re.compile("(?:the set of )?(?:all |the |any |every )?(?:real numbers?|reals)")

# words that change the value next to them, or cast doubt on it
DOUBTS = re.compile(
    r"\b(?:not|cannot|never|no|nor|or|either|neither|between|least|most|than|about|approximately|around|"
    r"roughly|nearly|almost|negative|minus|half|double|twice|triple|thirds?|quarters?|percent|"
    r"hundreds?|thousands?|millions?|billions?|trillions?|dozens?|squared|cubed|root|times|factor|"
    r"factorial|mod|modulo|base|if|unless|except|other|versus|wrong|incorrect|instead|suppose|"
    r"assume|another|also|plus|over|under|above|below|up|more|less|fewer|maybe|perhaps|possibly|"
    r"might|could|may|but|all|any|which|whose|first|step|case|equation|line|option|positive|log|sin|"
    r"cos|tan|sqrt|pi|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|"
    r"forty|fifty|originally|initially|previously|once|both|every|when|where|let|given|would|bound|"
    r"estimate|guess|mistake|so far|yesterday|used to|answers?|hint|check|note|example|attempt|"
    r"still|says?|said|claims?|thinks?|thought|believes?|start)\b|n't\b",
    re.IGNORECASE,
)
# left sides of "=" that are not formulas
_NAME = re.compile(
    r"(?P<words>[A-Za-z]{2,}(?: [A-Za-z]+){0,3})|(?:m )?\\angle [A-Z]{1,3}|\[ [A-Z]{3,} \]|"
    r"\\(?:overline|overrightarrow|vec|bar|hat|tilde) (?:\{ [A-Za-z]{1,2} \}|[A-Za-z])|"
    r"(?:P|E|Var|lcm|gcd|\\(?:Pr|bbP|bbE|gcd|det|dim|deg)) [(\[] [^()\[\]]+ [)\]]"
)
# the same, without what is in brackets: \lim_{x \to 0} f(x), \int_0^1 (x + 1) dx
_OPERATION = re.compile(
    r"\\(?:lim|sum|prod|i*int|oint) [^-+=(){}]*|\\(?:i*int|oint) [^=(){}]*d ?[A-Za-z]\s*"
)


def read(tokens: Sequence[Token]) -> Node | None:
    """Parse an answer; None if it cannot be read."""
    if not tokens:
        return None
    letter, rest, certain = _choice(list(tokens))
    node = None if certain else _read(tokens)
    if node is not None or letter is None:
        return node
    if not rest:
        return Node("symbol", (), letter)
    value = _read(rest)
    return None if value is None else Node("choice", (value,), letter)


def _choice(tokens: list[Token]) -> tuple[str | None, list[Token], bool]:
    r"""The letter of a choice, the tokens after it, and whether this cannot be a formula.

    Choices are (A) 12 and A) 12, where nobody means a product; \text{(A)} -3 and \textbf{A} 12.
    """
    bracket = tokens[0] == _OPEN
    match tokens[bracket:]:
        case [Token("word" | "text" as kind, letter), *rest] if letter in CHOICES:
            text = kind == "text"
            if rest[:1] == [_CLOSE]:
                begins = bracket and text and len(rest) > 1 and _begins(rest[1])
                return letter, rest[1:], begins
            if text and not bracket and rest and rest[0].kind == "number":
                return letter, rest, True
    return None, [], False


def _begins(token: Token) -> bool:
    """Whether a token may begin a value, rather than continue one."""
    if token.command:
        return token.value not in (*RELATIONS, r"\cup")
    return token.value in _BEGIN if token.kind == "sign" else not _connects(token)


def _read(tokens: Sequence[Token]) -> Node | None:
    try:
        return _answer(tokens)
    except (Unreadable, RecursionError):
        return None


def _answer(tokens: Sequence[Token]) -> Node:
    """Parse one item, or several with a connector between them; ", and" is one connector."""
    items: list[list[Token]] = [[]]
    connectors: list[str] = []
    depth = 0
    for token in tokens:
        sign = token.kind == "sign"
        depth += _DEPTH.get(token.value if sign else token.kind, 0)
        require(depth >= 0)
        joins = token.value in (",", ";") if sign else _connects(token)
        if not joins or depth:
            items[-1].append(token)
        elif items[-1]:
            items.append([])
            connectors.append(token.value)
        elif connectors[-1:] == [","] and _connects(token):
            connectors[-1] = token.value
        else:
            raise Unreadable
    require(items[-1] and not depth)
    if len(items) == 1:
        return _item(items[0])
    between = set(connectors) - {",", ";"} or {","}
    require(len(between) == 1)
    return Node("list", tuple(map(_item, items)), between.pop())


def _connects(token: Token) -> bool:
    return token.kind in ("word", "text") and token.value in ("and", "or")


def _item(tokens: list[Token]) -> Node:
    r"""Parse a value with its unit, a text, a ratio, a time, a residue, or a formula."""
    if (words := _words(tokens)) is not None:
        return words
    if (condition := _condition(tokens)) is not None:
        node = _answer(condition)
        require(subset(node))
        return Node("union", (node,))  # a set, also where 1 < x < 2 might be a point
    if tokens[0].kind == "clock":
        return _clock(tokens)
    if _RESIDUE in tokens:
        return _residue(tokens)
    if _RATIO in tokens:
        return Node("ratio", tuple(map(_item, _cut(tokens, _RATIO))))
    if tokens[0] == _APPROXIMATELY and tokens[1:]:
        return Node("relation", (NAMELESS, _item(tokens[1:])), ("~",))
    if _APPROXIMATELY in tokens:
        tokens = _approximated(tokens)
    bare, unit, factor = _without_unit(tokens)
    try:
        node = Parser(bare).whole()
    except Unreadable:
        node = Parser(_with_name(bare)).whole()
    if factor != 1:
        plain = node.kind == "number"
        node = number(node.value * factor) if plain else Node("*", (node, number(factor)))
    return node if unit is None else Node("quantity", (node,), unit)


def _condition(tokens: list[Token]) -> list[Token] | None:
    r"""The tokens of x > 3 in \{x \in \mathbb{R} \mid x > 3\}; None for other answers."""
    match tokens:
        case [Token("sign", "{" | r"\{"), Token("word", _), *rest, Token("sign", "}" | r"\}")]:
            rest = rest[2:] if rest[:2] == _IN_REALS else rest
            if rest[:1] in ([_BAR], [_RATIO]):
                return rest[1:]
    return None


def _with_name(tokens: list[Token]) -> list[Token]:
    r"""Replace a named left side by one token: Area = 5, \angle A = 30, P(X = 1) = 1/2."""
    for at in (at for at, token in enumerate(tokens[:_LONGEST_NAME]) if token == _EQUALS):
        said = " ".join(str(token.value) for token in tokens[:at])
        found = _NAME.fullmatch(said)
        unclear = found and found["words"] and (at > 1 or DOUBTS.search(said))
        if (found and not unclear) or _OPERATION.fullmatch(_outside(said)):
            return [Token("name", said), *tokens[at:]]
    raise Unreadable


def _outside(said: str) -> str:
    """A text without what is in brackets."""
    while (bare := re.sub(r"\{[^{}]*\}|\([^()]*\)", "", said)) != said:
        said = bare
    return said


def _cut(tokens: list[Token], at: Token) -> list[list[Token]]:
    """Split tokens at a sign; no part may be empty."""
    parts: list[list[Token]] = [[]]
    for token in tokens:
        if token == at:
            parts.append([])
        else:
            parts[-1].append(token)
    require(all(parts))
    return parts


def _approximated(tokens: list[Token]) -> list[Token]:
    r"""The exact part 1/3 of 1/3 \approx 0.33; all of x \approx 1.41."""
    first, *others = _cut(tokens, _APPROXIMATELY)
    if _EQUALS in first:
        return first
    node = Parser(first).whole()
    if not symbols(node) and node.kind != "opaque":
        return first
    require(len(others) == 1)
    return tokens


def _clock(tokens: list[Token]) -> Node:
    """Parse a time of day, or a ratio that looks like one."""
    said = "".join(str(token.value) for token in tokens[1:])
    half = re.sub(r"[^a-z]", "", said.casefold())
    require(half in ("", "am", "pm") and not re.search(r"[^a-zA-Z.\s]", said))
    return Node("clock", (), f"{tokens[0].value} {half}".strip())


def _residue(tokens: list[Token]) -> Node:
    r"""Parse a residue: 3 \pmod 7, x \equiv 3 (mod 7)."""
    at = tokens.index(_RESIDUE)
    value, modulus = tokens[:at], tokens[at + 1 :]
    if value[-1:] == [_OPEN] and modulus[-1:] == [_CLOSE]:
        value, modulus = value[:-1], modulus[:-1]
    require(value and modulus)
    return Node("residue", (_item(value), _item(modulus)))


def _words(tokens: list[Token]) -> Node | None:
    """Parse an answer in words: a letter is a symbol, "all reals" a set; None for pi or sin."""
    if not all(token.kind in ("word", "text") for token in tokens):
        return None
    said = " ".join(token.value for token in tokens)
    if len(said) == 1:
        return Node("symbol", (), said)
    if _REALS.fullmatch(said.casefold()):
        return REALS
    if said in FUNCTIONS or said in SYMBOLS:
        return None
    said = " ".join(said.casefold().split()).rstrip(".")
    return Node("text", (), _SHORT.get(said, said))


def _without_unit(tokens: list[Token]) -> tuple[list[Token], Unit | None, int]:
    """Split off the unit at the end or the currency before, and a factor such as "million"."""
    last = tokens[-1].value
    unit: Unit | None
    if tokens[0].kind == "sign" and tokens[0].value in CURRENCIES:
        rest, unit = tokens[1:], named(CURRENCIES[tokens[0].value])
    elif tokens[-2:] == _CIRCLE and not any(token.value in _ANGLED for token in tokens[:-2]):
        rest, unit = tokens[:-2], named("degree")
    elif tokens[-3:-1] == _CIRCLE and last in HEAT:
        rest, unit = tokens[:-3], named(HEAT[last])
    else:
        rest, unit = unit_at_end(tokens)
    factor = 1
    if rest and rest[-1].kind in ("word", "text") and rest[-1].value in SCALES:
        rest, factor = rest[:-1], SCALES[rest[-1].value]
    require(rest)
    return rest, unit, factor
