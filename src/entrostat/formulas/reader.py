r"""Parser of formulas: tokens to a tree; raises `Unreadable` for ambiguous ones.

entrostat has its own parser because a grader must know what it does not understand. The parser
reads final answers in LaTeX or plain text: numbers, letters, + - * / ^, roots, fractions, common
functions, percent, units, tuples, intervals, sets, unions, matrices, equations, inequalities, \pm,
lists of answers. It evaluates nothing, looks up no names, and takes time linear in the number of
tokens. Unknown words and ambiguous formulas (1/2x, \sqrt23) raise `Unreadable`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from .tree import BRACKETS, EMPTY, FUNCTIONS, RELATIONS, SYMBOLS, Node, Token, applied, number

# f(x+1) is not a product
_CALLED = frozenset([*"fghFGHJPW", *"Gamma Phi phi psi zeta".split()])
# arguments that make any other letter a function: y(0), x(2t), N(0, 1), K(1/2)
_ATOM = r"(?:- )?(?:\\frac \{ \d+ \} \{ \d+ \}|(?:[\d/]+ )?(?:[A-Za-z]|\\[a-z]+)|[\d/]+(?: / \d+)?)"
_ARGUMENTS = re.compile(rf"{_ATOM}(?: , {_ATOM})* \)")
_DEEPEST = 40
# words, not products of letters
_WORDS = frozenset(
    "so is he we it to of in at on no by or as if an be do go my up us me am the and are has for "
    "not get one two six ten all any was can out its our who how why now yes per day men age cow "
    "cat dog sum gcd lcm max min mod det nan inf".split()
)
_PRODUCT = re.compile(r"[A-Z][xyzt]{1,2}\^?|[A-Za-z][xyzt]?e\^|d[A-Z]")  # Ax + By, Ce^{2x}
_PLUS_MINUS = ("+", "-", r"\pm", r"\mp")
# commands that continue a formula, so cannot begin a factor
_ENDS = frozenset(RELATIONS) | set(r"\cup \pm \mp \rfloor \rceil \rangle \setminus \choose".split())
_MINUS_ONE, _D = Node("-", (number(1),)), Node("symbol", (), "d")
_NOTHING = Token("end of input", "")


class Unreadable(ValueError):  # noqa: N818 - not an error: the text has no unique reading
    """The text cannot be read, or is ambiguous."""


def require(condition: object) -> None:
    if not condition:
        raise Unreadable


class Parser:
    """Recursive-descent parser of an item's tokens; one method per level of precedence."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = list(tokens)
        self._at = self._depth = 0
        self._bars = 0  # number of open |

    def whole(self) -> Node:
        node = self._relation()
        require(self._peek() == _NOTHING)
        return node

    def _peek(self) -> Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else _NOTHING

    def _next(self) -> Token:
        token = self._peek()
        require(token != _NOTHING)
        self._at += 1
        return token

    def _follows(self, *signs: str) -> bool:
        kind, value = self._peek()
        return kind == "sign" and value in signs

    def _take(self, *signs: str) -> str:
        """Consume and return the next sign if it is one of these, else return ""."""
        return self._next().value if self._follows(*signs) else ""

    def _relation(self) -> Node:
        """Parse a chain of sides with relations between them, or one side."""
        sides, signs = [self._sets()], []
        while sign := self._take(*RELATIONS):
            sign = RELATIONS[sign]
            signs.append(sign + self._take("=") if sign in "<>" else sign)
            sides.append(self._sets())
        return Node("relation", tuple(sides), tuple(signs)) if signs else sides[0]

    def _sets(self) -> Node:
        parts = [self._chosen()]
        match parts[0]:
            case Node("+", (whole, Node("-", (Node("set") as less,)))):  # \mathbb{R} - \{0\}
                return Node("without", (whole, less))
        while self._take(r"\cup"):
            parts.append(self._chosen())
        if len(parts) == 1 and self._take(r"\setminus"):
            return Node("without", (parts[0], self._primary()))
        return _joined("union", parts)

    def _chosen(self) -> Node:
        r"""Parse a sum, or n \choose k, whose arguments extend to the enclosing braces."""
        node = self._sum()
        return Node("call", (node, self._sum()), "binom") if self._take(r"\choose") else node

    def _sum(self) -> Node:
        self._depth += 1
        require(self._depth <= _DEEPEST)
        parts = [self._term(self._take(*_PLUS_MINUS))]
        while sign := self._take(*_PLUS_MINUS):
            if sign == "+":
                sign = self._take("-")  # 14 + -1i
            parts.append(self._term(sign))
        self._depth -= 1
        return _joined("+", parts)

    def _term(self, sign: str) -> Node:
        product = self._product()
        return product if sign in ("", "+") else applied(sign, product)

    def _product(self) -> Node:
        node, divided = self._factor(), False
        while True:
            if sign := self._take("*", "/"):
                minus = self._take("-")
                factor = self._factor()
                require(sign == "*" or factor.kind != "%" or minus)  # 1/2%
                node = applied(sign, applied("-", factor) if minus else factor, node)
                divided = divided or sign == "/"
            elif self._starts():
                require(not divided and (self._peek().kind != "number" or self._at_power()))
                node = applied("*", self._factor(), node)
            else:
                return node

    def _starts(self) -> bool:
        token = self._peek()
        if token.kind != "sign" or token.command:
            return (
                token.kind in ("number", "word", "text", "sign", "begin")
                and token.value not in _ENDS
            )
        return token.value in ("(", "{") or (token.value == "|" and not self._bars)

    def _at_power(self) -> bool:
        """Whether a power of a number follows, as in n2^n; not in 3 2^n."""
        powers = self._tokens[self._at + 1 : self._at + 2] == [Token("sign", "^")]
        return powers and self._tokens[self._at - 1].kind != "number"

    def _factor(self) -> Node:
        """Parse a primary, followed by powers, ! or %."""
        node = self._primary()
        while sign := self._take("^", "!", "%"):
            if sign != "^":
                node = Node(sign, (node,))
            elif self._take(r"\circ"):
                node = Node("*", (node, Node("degree")))
                continue
            else:
                node = self._raised(node, self._exponent())
            # ambiguous: 5!! may be a double factorial
            require(sign == "%" or not self._follows(sign))
        return node

    def _exponent(self) -> Node:
        minus = self._take("-")
        kind, value = self._peek()
        require(kind != "word" or len(value) == 1)  # e^ix
        if kind == "word" or value in SYMBOLS:  # the exponent of e^x(2) is x
            node = Node("symbol", (), SYMBOLS.get(self._next().value, value))
        else:  # the exponent of x^2 \frac{a}{b} is 2
            node = number(self._next().value) if kind == "number" else self._primary()
        return Node("-", (node,)) if minus else node

    def _raised(self, node: Node, power: Node) -> Node:
        """A power, or a function such as f^{-1}(x); h^2(a + b) is a product."""
        letter = node.value if node.kind == "symbol" and self._follows("(") else ""
        function = letter in _CALLED and (letter in "fg" or power == _MINUS_ONE)
        if not letter or not (function or self._called(letter)):
            return Node("^", (node, power))
        sign, part = ("-", power.parts[0]) if power.kind == "-" else ("", power)
        require(part.kind in ("number", "symbol"))
        self._next()
        return Node("opaque", self._parts(")")[0], f"{letter}^{sign}{part.value}")

    def _primary(self) -> Node:
        kind, value = self._next()
        if isinstance(value, Fraction):
            return self._number(value)
        if value.removeprefix("\\") in FUNCTIONS and value != r"\sqrt":
            return self._call(value.removeprefix("\\"))
        if value in SYMBOLS:
            return self._symbol(SYMBOLS[value])
        if kind in ("word", "text"):
            return self._letters(kind, value)
        if kind == "begin":
            return self._matrix(value)
        if kind == "name":
            return Node("symbol", (), value)
        match value:
            case "(" | "[":
                return self._brackets(value)
            case "{":
                parts, _ = self._parts("}")
                return parts[0] if len(parts) == 1 else Node("set", parts)
            case r"\{":
                empty = self._take(r"\}")
                return EMPTY if empty else Node("set", self._parts(r"\}")[0])
            case "|":
                self._bars += 1
                inside = self._sum()
                require(self._take("|"))
                self._bars -= 1
                return Node("abs", (inside,))
            case r"\frac" | r"\binom":
                return self._fraction(value)
            case r"\sqrt":
                index = (self._until("]"),) if self._take("[") else ()
                return Node("root", (self._argument(), *index))
            case r"\surd":
                return Node("root", (self._primary(),))
            case r"\lfloor" | r"\lceil":
                inside = self._sum()
                require(self._take(rf"\r{value[2:]}"))
                return Node("call", (inside,), value[2:])
            case r"\langle":
                return Node("<>", self._parts(r"\rangle")[0])
        raise Unreadable

    def _number(self, value: Fraction) -> Node:
        """Parse a number, with a base or as a mixed number with a following fraction."""
        if self._take("_"):
            return Node("based", (), (value, self._subscript()))
        if self._take(r"\frac"):
            fraction = self._fraction(r"\frac")
            if {part.kind for part in fraction.parts} <= {"number", "-"}:
                return _mixed(value, *(part.value for part in fraction.parts))
            return Node("*", (number(value), fraction))
        match self._tokens[self._at : self._at + 3]:
            case [Token("number", top), Token("sign", "/"), Token("number", bottom)]:
                self._at += 3
                return _mixed(value, top, bottom)
        return number(value)

    def _letters(self, kind: str, word: str) -> Node:
        product = len(word) <= 3 and (word.islower() or word.isupper()) and word not in _WORDS
        product = product or _PRODUCT.fullmatch(word + "^" * self._follows("^")) is not None
        require(len(word) == 1 or (kind == "word" and product))
        # read xy as x times y
        self._tokens[self._at : self._at] = [Token("word", letter) for letter in word[1:]]
        return self._symbol(word[0])

    def _symbol(self, letter: str) -> Node:
        name = letter
        if self._take("_"):
            name += f"_{self._subscript()}"
        while self._take("'"):
            name += "'"
        if self._follows("(") and (letter in _CALLED or self._called(letter)):
            self._next()
            return Node("opaque", self._parts(")")[0], name)
        return Node("symbol", (), name)

    def _called(self, letter: str) -> bool:
        """Whether the bracket after a letter holds only numbers, letters and their multiples."""
        said = " ".join(str(token.value) for token in self._tokens[self._at + 1 : self._at + 21])
        return letter not in ("e", "i", "pi", "infty") and _ARGUMENTS.match(said) is not None

    def _subscript(self) -> str:
        if not self._take("{"):
            kind, value = self._next()
            said = str(value).removeprefix("\\")
            short = len(said) <= 2 and kind in ("number", "word")
            require(short or kind == "text" or said in ("min", "max"))
            return said
        said = ""
        while not self._take("}"):
            kind, value = self._next()
            require(kind in ("number", "word", "text") or value == ",")
            said += str(value)
        return said

    def _fraction(self, command: str) -> Node:
        parts = (self._argument(), self._argument())
        numbers = {part.kind for part in parts} == {"number"}
        require(not numbers or self._peek().kind != "number")  # \frac123
        require(not self._follows("^"))  # \frac{1}{2}^2
        match parts:  # dy/dx is not y/x
            case [Node("*", (d, Node("symbol", _, y))), Node("*", (e, Node("symbol", _, x)))]:
                if d == e == _D:
                    return Node("symbol", (), f"d{y}/d{x}")
        return Node("/", parts) if command == r"\frac" else Node("call", parts, "binom")

    def _argument(self) -> Node:
        r"""Parse {...}, or the digit or letter that \frac and \sqrt take without braces."""
        if self._take("{"):
            return self._until("}")
        if self._take("("):  # \sqrt(2)
            return self._until(")")
        kind, value = self._next()
        if isinstance(value, Fraction):
            if value in range(10):
                return number(value)
        elif value in ("pi", r"\pi") or (kind == "word" and len(value) == 1):
            return Node("symbol", (), value.removeprefix("\\"))
        raise Unreadable

    def _call(self, name: str) -> Node:
        """Parse a function's argument: brackets, or letters and numbers up to the next sign."""
        base = (self._base(),) if name == "log" and self._take("_") else ()
        power = self._exponent() if self._take("^") else None
        if self._follows("(", "{", "|"):
            bracket = self._follows("(")
            argument = self._primary()
            require(not self._follows("^"))  # \sin(x)^2
        else:
            argument, bracket = self._bare_argument(), False
        require(argument.kind not in BRACKETS and (bracket or name not in ("sqrt", "cbrt")))
        match name:
            case "sqrt":
                node = Node("root", (argument,))
            case "cbrt":
                node = Node("root", (argument, number(3)))
            case "abs":
                node = Node("abs", (argument,))
            case "sin" | "cos" | "tan" if power == _MINUS_ONE:
                return Node("call", (argument,), f"arc{name}")
            case _:
                node = Node("call", (argument, *base), name)
        return node if power is None else Node("^", (node, power))

    def _base(self) -> Node:
        r"""Parse the base of a logarithm: all digits of a number (\log_10), or an argument."""
        kind, value = self._peek()
        if kind != "number":
            return self._argument()
        require(value not in (0, 1))  # invalid bases
        return number(self._next().value)

    def _bare_argument(self) -> Node:
        node = self._factor()
        while self._starts():
            token = self._peek()
            if token.command in FUNCTIONS:
                return node
            require(token.command or token.kind == "word")
            node = Node("*", (node, self._factor()))
        require(not self._follows("/"))  # \sin x/2
        return node

    def _brackets(self, opening: str) -> Node:
        """Parse a group, a tuple, an interval or a matrix after an opening bracket."""
        if self._peek().kind == "begin":
            matrix = self._matrix(f"p{self._next().value.removeprefix('p')}")
            self._next()
            return matrix
        parts, closing = self._parts(")", "]")
        if len(parts) > 1:
            return Node(opening + closing, parts)
        require(opening + closing == "()")
        return parts[0]

    def _parts(self, *closing: str) -> tuple[tuple[Node, ...], str]:
        """Parse items between commas up to a closing sign; returns the items and that sign."""
        bars, self._bars = self._bars, 0
        item = self._relation if r"\}" in closing else self._chosen
        parts = [item()]
        comma = ";" if self._follows(";") else ","  # the same sign throughout
        while self._take(comma):
            parts.append(item())
        self._bars = bars
        closed = self._take(*closing)
        require(closed)
        return tuple(parts), closed

    def _until(self, closing: str) -> Node:
        (part, *others), _ = self._parts(closing)
        require(not others)
        return part

    def _matrix(self, name: str) -> Node:
        require(name == "pmatrix")
        rows = [[self._sum()]]
        while (token := self._next()).kind != "end":
            if token == Token("sign", "&"):
                rows[-1].append(self._sum())
            else:
                require(token == Token("sign", "\\\\"))
                if self._peek().kind != "end":
                    rows.append([self._sum()])
        return Node("matrix", tuple(Node("row", tuple(row)) for row in rows))


def _joined(kind: str, parts: Sequence[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Node(kind, tuple(parts))


def _mixed(whole: Fraction, top: Fraction | None, bottom: Fraction | None) -> Node:
    r"""Value of a mixed number: 3/2 for 1\frac{1}{2}; not 2\frac{5}{3} and 0.5\frac{1}{2}."""
    if top is None or bottom is None or not 0 < top < bottom:
        raise Unreadable
    require(all(part.denominator == 1 for part in (whole, top, bottom)))
    return number(whole + top / bottom)
