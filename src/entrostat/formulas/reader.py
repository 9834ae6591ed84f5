r"""What an answer says: a tree, or nothing where it could be read in two ways.

A reader of our own, because a grader has to know what it does not understand. It takes what final
answers are made of, in LaTeX or plain: numbers, letters, + - * / ^, roots, fractions, common
functions, percent, units, tuples, intervals, sets, unions, matrices, equations, inequalities, \pm,
several answers in a list. Nothing is evaluated here, no name is looked up anywhere, and work is
linear in the number of tokens. Unknown words, and what is ambiguous (1/2x, \sqrt23), are refused.
"""

from __future__ import annotations

from fractions import Fraction

from .cursor import Cursor
from .tree import (
    CALLED,
    CONSTANTS,
    DEEPEST,
    FUNCTIONS,
    GREEK,
    RELATIONS,
    SETS,
    WORDS,
    Node,
    Token,
    Unreadable,
)


class Parser(Cursor):
    """Recursive descent over the tokens of an item."""

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self._bars = 0
        self._depth = 0

    def relation(self) -> Node:
        """A chain of sides with relations between them, or one side."""
        sides, signs = [self._sets()], []
        while (sign := self._relation_sign()) is not None:
            signs.append(sign)
            sides.append(self._sets())
        return Node("relation", tuple(sides), tuple(signs)) if signs else sides[0]

    def _sets(self) -> Node:
        parts = [self._chosen()]
        if parts[0].kind == "+" and len(parts[0].parts) == 2:  # \mathbb{R} - \{0\}
            whole, less = parts[0].parts
            if less.kind == "-" and less.parts[0].kind == "set":
                return Node("without", (whole, less.parts[0]))
        while self._take("command", "cup"):
            parts.append(self._chosen())
        if self._take("command", "setminus"):
            if len(parts) > 1:
                raise Unreadable
            return Node("without", (parts[0], self._primary()))
        return parts[0] if len(parts) == 1 else Node("union", tuple(parts))

    def _chosen(self) -> Node:
        r"""A sum, or n \choose k, which has all that stands on either side in its braces."""
        node = self._sum()
        if self._take("command", "choose"):
            return Node("call", (node, self._sum()), "binom")
        return node

    def _sum(self) -> Node:
        self._depth += 1
        if self._depth > DEEPEST:
            raise Unreadable
        parts = [self._signed()]
        while True:
            if self._take("sign", "+"):
                minus = self._take("sign", "-")  # 14 + -1i
                parts.append(Node("-", (self._product(),)) if minus else self._product())
            elif self._take("sign", "-"):
                parts.append(Node("-", (self._product(),)))
            elif (sign := self._plus_minus()) is not None:
                parts.append(Node(sign, (self._product(),)))
            else:
                break
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Node("+", tuple(parts))

    def _signed(self) -> Node:
        if self._take("sign", "+"):
            return self._product()
        if self._take("sign", "-"):
            return Node("-", (self._product(),))
        sign = self._plus_minus()
        return self._product() if sign is None else Node(sign, (self._product(),))

    def _product(self) -> Node:
        node = self._factor()
        divided = False
        while True:
            if self._take("sign", "*"):
                node = Node("*", (node, self._signed_factor()))
            elif self._take("sign", "/"):
                node = Node("/", (node, self._signed_factor()))
                divided = True
                if node.parts[1].kind == "%":  # 1/2%
                    raise Unreadable
            elif self._starts():
                token = self._peek()
                if divided or (token is not None and token.kind == "number"):
                    raise Unreadable  # 1/2x; x 2
                node = Node("*", (node, self._factor()))
            else:
                return node

    def _signed_factor(self) -> Node:
        return Node("-", (self._factor(),)) if self._take("sign", "-") else self._factor()

    def _starts(self) -> bool:
        token = self._peek()
        if token is None:
            return False
        if token.kind == "sign":
            return token.value in ("(", "{") or (token.value == "|" and not self._bars)
        if token.kind == "command":
            return token.value not in RELATIONS and token.value not in (
                "cup", "pm", "mp", "rfloor", "rceil", "rangle", "setminus", "choose",
            )  # fmt: skip
        return token.kind in ("number", "word", "text")

    def _factor(self) -> Node:
        """A primary with what may follow it: a power, !, %."""
        node = self._primary()
        while True:
            if self._take("sign", "^"):
                if self._take("command", "circ"):
                    node = Node("*", (node, Node("degree")))
                    continue
                if (half := self._half_line(node)) is not None:
                    return half
                node = Node("^", (node, self._exponent()))
                if self._follows("sign", "^"):
                    raise Unreadable
            elif self._take("sign", "!"):
                node = Node("!", (node,))
                if self._follows("sign", "!"):
                    raise Unreadable  # 5!! is a product of odd numbers to some
            elif self._take("sign", "%"):
                node = Node("%", (node,))
            else:
                return node

    def _half_line(self, node: Node) -> Node | None:
        r"""\mathbb{R}^+ and \mathbb{R}^-, whose sign is no power."""
        if node != Node("symbol", (), "bbR"):
            return None
        zero, infinity = Node("number", (), Fraction(0)), Node("symbol", (), "infty")
        if self._take("sign", "+"):
            return Node("()", (zero, infinity))
        if self._take("sign", "-"):
            return Node("()", (Node("-", (infinity,)), zero))
        return None

    def _exponent(self) -> Node:
        minus = self._take("sign", "-")
        token = self._peek()
        if token is None or (token.kind == "word" and len(str(token.value)) > 1):
            raise Unreadable  # e^ix
        number = token.kind == "number"  # of x^2 \frac{a}{b} it is 2
        node = Node("number", (), self._next().value) if number else self._primary()
        return Node("-", (node,)) if minus else node

    def _primary(self) -> Node:
        token = self._next()
        match token.kind:
            case "number":
                return self._number(token)
            case "word" | "text":
                return self._letters(token)
            case "command":
                return self._command(str(token.value))
            case "begin":
                return self._matrix(str(token.value))
            case "sign" if token.value in ("(", "["):
                return self._brackets(str(token.value))
            case "sign" if token.value == "{":
                return self._until("}")
            case "sign" if token.value == r"\{" and self._take("sign", r"\}"):
                return Node("symbol", (), "emptyset")
            case "sign" if token.value == r"\{":
                return Node("set", self._parts(r"\}")[0])
            case "sign" if token.value == "|":
                self._bars += 1
                inside = self._sum()
                self._expect("sign", "|")
                self._bars -= 1
                return Node("abs", (inside,))
        raise Unreadable

    def _number(self, token: Token) -> Node:
        """A number: with a base, or mixed with the fraction behind it."""
        assert isinstance(token.value, Fraction)
        number = Node("number", (), token.value)
        if self._take("sign", "_"):
            return Node("based", (), (token.value, self._subscript()))
        if self._take("command", "frac"):
            fraction = self._command("frac")
            if {part.kind for part in fraction.parts} <= {"number", "-"}:
                return _mixed(token.value, *fraction.parts)
            return Node("*", (number, fraction))
        ahead = [Node(t.kind, (), t.value) for t in self._tokens[self._at : self._at + 3]]
        if [node.kind for node in ahead] == ["number", "sign", "number"] and ahead[1].value == "/":
            self._at += 3
            return _mixed(token.value, ahead[0], ahead[2])
        return number

    def _letters(self, token: Token) -> Node:
        word = str(token.value)
        if word in FUNCTIONS:
            return self._call(word)
        if word in CONSTANTS or word in GREEK:
            return self._symbol(CONSTANTS.get(word, word))
        product = len(word) <= 3 and (word.islower() or word.isupper()) and word not in WORDS
        if len(word) > 1 and (token.kind == "text" or not product):
            raise Unreadable
        if len(word) > 1:  # xy is x times y
            self._tokens[self._at : self._at] = [Token("word", letter) for letter in word[1:]]
        return self._symbol(word[0])

    def _symbol(self, name: str) -> Node:
        if self._take("sign", "_"):
            name += f"_{self._subscript()}"
        while self._take("sign", "'"):
            name += "'"
        if name in CALLED and self._take("sign", "("):
            return Node("opaque", self._parts(")")[0], name)
        return Node("symbol", (), name)

    def _command(self, name: str) -> Node:
        if name in FUNCTIONS and name != "sqrt":
            return self._call(name)
        if name in CONSTANTS or name in GREEK or name in SETS:
            return self._symbol(CONSTANTS.get(name, name))
        match name:
            case "frac" | "binom":
                parts = (self._argument(), self._argument())
                if {part.kind for part in parts} == {"number"} and self._follows("number"):
                    raise Unreadable  # \frac123
                if self._follows("sign", "^"):
                    raise Unreadable  # \frac{1}{2}^2
                return Node("/", parts) if name == "frac" else Node("call", parts, "binom")
            case "sqrt":
                index = self._until("]") if self._take("sign", "[") else None
                argument = self._argument()
                return Node("root", (argument,) if index is None else (argument, index))
            case "surd":
                return Node("root", (self._primary(),))
            case "lfloor" | "lceil":
                inside = self._sum()
                self._expect("command", "r" + name[1:])
                return Node("call", (inside,), name[1:])
            case "langle":
                return Node("<>", self._parts("rangle", "command")[0])
        raise Unreadable

    def _argument(self) -> Node:
        r"""{...}, or the one digit or letter that \frac and \sqrt take without braces."""
        if self._take("sign", "{"):
            return self._until("}")
        before, token = self._tokens[self._at - 1], self._next()
        value = token.value
        two = before in (Token("command", "frac"), Token("command", "binom"))
        two = two and not self._follows("sign", "{")  # \frac12, \binom nk
        if token.kind == "number" and isinstance(value, Fraction) and value.denominator == 1:
            if value < 10:
                return Node("number", (), value)
            if two and value < 100:
                self._tokens.insert(self._at, Token("number", value % 10))
                return Node("number", (), value // 10)
        elif token.kind == "word" and len(str(value)) == 2 and value not in GREEK | {"pi"}:
            if two:
                self._tokens.insert(self._at, Token("word", str(value)[1]))
                return Node("symbol", (), str(value)[0])
        elif (token.kind == "word" and len(str(value)) == 1) or value == "pi":
            return Node("symbol", (), value)
        elif token == Token("sign", "("):  # \sqrt(2)
            return self._until(")")
        raise Unreadable

    def _call(self, name: str) -> Node:
        """A function with its argument: brackets, or letters and numbers up to the next sign."""
        base = power = None
        if name == "log" and self._take("sign", "_"):
            base = self._base()
        if self._take("sign", "^"):
            power = self._exponent()
        if name in ("sqrt", "cbrt") and self._peek() != Token("sign", "("):
            raise Unreadable
        token = self._peek()
        if token is not None and token.kind == "sign" and token.value in ("(", "{", "|"):
            argument = self._primary()
            if self._follows("sign", "^"):
                raise Unreadable  # \sin(x)^2
        else:
            argument = self._bare_argument()
        if argument.kind in ("()", "(]", "[)", "[]"):
            raise Unreadable
        node = self._applied(name, base, argument)
        if power == Node("-", (Node("number", (), Fraction(1)),)) and name in ("sin", "cos", "tan"):
            return Node("call", (argument,), f"arc{name}")
        return node if power is None else Node("^", (node, power))

    def _base(self) -> Node:
        r"""Of a logarithm: a number as a whole, \log_{10} and \log_10 alike, or an argument."""
        token = self._peek()
        if token is None or token.kind != "number":
            return self._argument()
        if token.value in (0, 1):
            raise Unreadable  # no logarithm
        self._at += 1
        return Node("number", (), token.value)

    def _applied(self, name: str, base: Node | None, argument: Node) -> Node:
        if name in ("sqrt", "cbrt"):
            index = (Node("number", (), Fraction(3)),) if name == "cbrt" else ()
            return Node("root", (argument, *index))
        if name == "abs":
            return Node("abs", (argument,))
        return Node("call", (argument,) if base is None else (argument, base), name)

    def _bare_argument(self) -> Node:
        node = self._factor()
        while (token := self._peek()) is not None and self._starts():
            if token.kind == "command" and token.value in FUNCTIONS:
                return node
            simple = token.kind == "word" or (token.kind == "command" and token.value != "sqrt")
            if not simple:
                raise Unreadable
            node = Node("*", (node, self._factor()))
        if self._follows("sign", "/"):
            raise Unreadable  # \sin x/2
        return node

    def _brackets(self, opening: str) -> Node:
        """What is grouped, or a tuple or an interval with its brackets."""
        if (token := self._peek()) is not None and token.kind == "begin":
            self._at += 1
            matrix = self._matrix("p" + str(token.value).removeprefix("p"))
            self._next()
            return matrix
        parts, closing = self._parts(")", "sign", "]")
        if len(parts) == 1 and opening + closing != "()":
            raise Unreadable
        return parts[0] if len(parts) == 1 else Node(opening + closing, parts)

    def _parts(
        self, closing: str, kind: str = "sign", other: str = ""
    ) -> tuple[tuple[Node, ...], str]:
        """Items between commas up to what closes."""
        bars, self._bars = self._bars, 0
        item = self.relation if closing == r"\}" else self._chosen
        parts = [item()]
        comma = ";" if self._follows("sign", ";") else ","  # one of them in all places
        while True:
            if self._take("sign", comma):
                parts.append(item())
                continue
            token = self._next()
            self._bars = bars
            if token.kind == kind and token.value in (closing, other):
                return tuple(parts), str(token.value)
            raise Unreadable

    def _until(self, closing: str) -> Node:
        (part, *others), _ = self._parts(closing)
        if others:
            raise Unreadable
        return part

    def _matrix(self, name: str) -> Node:
        if name != "pmatrix":
            raise Unreadable
        rows: list[list[Node]] = [[self._sum()]]
        while True:
            token = self._next()
            if token == Token("sign", "&"):
                rows[-1].append(self._sum())
            elif token == Token("sign", "\\\\"):
                if self._peek() != Token("end", name) and self._peek() != Token("end", "matrix"):
                    rows.append([self._sum()])
            elif token.kind == "end":
                return Node("matrix", tuple(Node("row", tuple(row)) for row in rows))
            else:
                raise Unreadable


def _mixed(whole: Fraction, top: Node, bottom: Node) -> Node:
    r"""1\frac{1}{2} is 3/2; 2\frac{5}{3} and 0.5\frac{1}{2} are no mixed numbers."""
    numbers = [node.value for node in (top, bottom) if node.kind == "number"]
    if any(number.denominator != 1 for number in (whole, *numbers)) or len(numbers) < 2:
        raise Unreadable
    if not 0 < numbers[0] < numbers[1]:
        raise Unreadable
    return Node("number", (), whole + numbers[0] / numbers[1])
