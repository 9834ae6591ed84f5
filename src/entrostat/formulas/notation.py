r"""Tokens of an answer: one spelling for equivalent notations.

Sizes and spacing (\left, \displaystyle, \,), fonts and math delimiters are removed; \dfrac becomes
\frac, 10{,}000 becomes 10000, Unicode signs become LaTeX. Only notation changes: texts with equal
tokens are equal. Removing spaces joins no tokens: "1 1/2" and "11/2" have different ones.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from typing import Literal

from .tree import CHOICES, GREEK, Token
from .units import UNITS

LONGEST = 1000  # most characters of an answer; longer ones have no tokens
Commas = Literal["number", "list"]

_GREEK = {
    unicodedata.lookup(
        f"GREEK {'CAPITAL' if name.istitle() else 'SMALL'} LETTER {name.upper().replace('MB', 'M')}"
    ): f"\\{name} "
    for name in GREEK
}
# characters that NFKC does not change
_SIGNS = str.maketrans({
    **_GREEK, "\u2212": "-", "\u2010": "-", "\u00d7": r"\times ", "\u00b7": r"\cdot ",
    "\u22c5": r"\cdot ", "\u00f7": "/", "\u2044": "/", "\u2236": ":", "\u2264": r"\le ",
    "\u2265": r"\ge ", "\u2260": r"\ne ", "\u2261": r"\equiv ", "\u2248": r"\approx ",
    "\u221e": r"\infty ", "\u221a": r"\surd ", "\u00b1": r"\pm ", "\u2213": r"\mp ",
    "\u222a": r"\cup ", "\u2229": r"\cap ", "\u2216": r"\setminus ", "\u2208": r"\in ",
    "\u2205": r"\emptyset ", "\u00b0": r"^\circ ", "\u2220": r"\angle ", "\u00c5": r"\AA ",
    "\u230a": r"\lfloor ", "\u230b": r"\rfloor ", "\u2308": r"\lceil ", "\u2309": r"\rceil ",
    "\u27e8": r"\langle ", "\u27e9": r"\rangle ", "\u2032": "'", "\u2019": "'",
    "\u2227": r"\wedge ", "\u2228": r"\vee ", "\u00ac": r"\neg ",
})  # fmt: skip
# characters that NFKC would turn into plain letters and digits, and other non-ASCII characters
# except full-width digits
_SPECIAL = re.compile(
    "(?P<raised>[\u00b9\u00b2\u00b3\u2070-\u207f]+)|(?P<lowered>[\u2080-\u209c]+)|"
    "(?P<fraction>[\u00bc-\u00be\u2150-\u215e])|(?P<set>[\u2102\u2115\u211a\u211d\u2124])|"
    r"[^\x00-\x7f\uff10-\uff19]"
)
# commands -> their standard form; "" for those that only affect appearance
_COMMANDS: dict[str, str] = {
    **dict.fromkeys((
        "displaystyle textstyle limits left right big Big bigg Bigg bigl bigr Bigl Bigr quad qquad "
        "boldsymbol bm rm bf it sf tt em middle tiny scriptsize footnotesize small normalsize "
        "large Large LARGE huge Huge scriptstyle scriptscriptstyle"
    ).split(), ""),
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "leq": r"\le", "geq": r"\ge",
    "neq": r"\ne", "leqslant": r"\le", "geqslant": r"\ge", "varnothing": r"\emptyset",
    "dbinom": r"\binom", "tbinom": r"\binom", "varphi": r"\phi", "lang": r"\langle",
    "rang": r"\rangle", "land": r"\wedge", "lor": r"\vee", "lnot": r"\neg", "to": r"\rightarrow",
    "backslash": r"\setminus", "bmod": r"\pmod", "mod": r"\pmod", "simeq": r"\approx",
    "thickapprox": r"\approx", "lt": "<", "gt": ">", "lvert": "|", "rvert": "|", "vert": "|",
    "mid": "|", "ast": "*", "colon": ":", "equiv": "=", "lparen": "(", "rparen": ")",
    "lbrack": "[", "rbrack": "]", "lbrace": r"\{", "rbrace": r"\}", "times": "*", "cdot": "*",
    "div": "/", "varepsilon": r"\epsilon",
}  # fmt: skip
_NAMED = {"mod": Token("sign", r"\pmod"), "percent": Token("sign", "%"), "%": Token("sign", "%")}
_WORDS = re.compile("[A-Za-z]{2}")
# equivalent notations, rewritten in this order
_REWRITTEN: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(pattern, re.DOTALL), written)
    for pattern, written in (
        (  # 1st
            r"(?<=\d)\s*\^\s*\{?\s*(?:\\(?:text|mathrm|textrm)\s*\{\s*)?(?:st|nd|rd|th)\b\s*\}{0,2}",
            "",
        ),
        (  # invisible or coloured parts, with their arguments
            r"\\[hv]?phantom\s*\{[^{}]*\}|\\[hv]space\*?\s*\{[^{}]*\}|\\(?:math)?strut\b"
            r"|\\(?:text)?color(?:box)?\s*(?:\[\w*\])?\s*\{[^{}]*\}"
            r"|\\fcolorbox\s*\{[^{}]*\}\s*\{[^{}]*\}|\{\s*\}(?=\s*\^)",
            " ",
        ),
        (r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|e[mx]|mm|cm|in)\s*\]", r"\\\\ "),
        (r"\A-\s*(\\?\$|\u20ac|\u00a3)(?=[\d.][^$]*\Z)", r"\1-"),  # -\$5
        (r"(?<!\d)\u2013|\u2013(?!\d)", "-"),  # 3\u20135 may be a range
        (  # 10.000,50
            r"(?<![\d.,])\d{1,3}(?:\.\d{3})+,(?:\d{2,}|[1-9])(?![\d.,])",
            lambda found: found[0].replace(".", "").replace(",", "."),
        ),
        (
            r"\\begin\s*\{array\}\s*\{[^{}]*\}(.*?)\\end\s*\{array\}",
            r"\\begin{matrix}\1\\end{matrix}",
        ),
        (r"\^\s*\{\s*\\degree\s*\}|(?:\^\s*)?\\degree(?![A-Za-z])", r"^\\circ "),
        (  # unit vectors: \vec{i}, \hat{\imath}, \hat{\mathbf{k}} and \mathbf{j}
            r"\\(?:vec|hat)\s*(?:\{\s*\\?([ij])(?:math)?\s*\}|\{\s*(k)\s*\}"
            r"|\{\s*\\math(?:bf|rm)\s*\{\s*([ijk])\s*\}\s*\}|\s+([ijk])\b)",
            r"\\mathrm{\1\2\3\4}",
        ),
        # half lines, whose sign is not a power
        (r"\\mathbb\s*(?:\{\s*R\s*\}|R)\s*\^\s*(?:\{\s*\+\s*\}|\+)", r"(0,\\infty)"),
        (r"\\mathbb\s*(?:\{\s*R\s*\}|R)\s*\^\s*(?:\{\s*-\s*\}|-)", r"(-\\infty,0)"),
        (  # \frac12, \binom nk
            r"(\\[dtc]?frac|\\[dt]?binom)(?:\s*(\d)(\d)(?!\d|[.:]\d|,\d{3}\b|\s*\{)"
            r"|\s+(?!pi|mu|nu|xi)([a-zA-Z])([a-zA-Z])(?![a-zA-Z]|\s*\{))",
            r"\1{\2\4}{\3\5}",
        ),
    )
]
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")
_GOES_ON = re.compile(r",[^\s\\$~]")
_NUMBER = r"(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3}(?![\d.]))?"
_PIECES = re.compile(
    r"(?P<row>\\\\)"
    r"|(?P<blank>\\[,;:! ]|\\?\$\$|(?<!\\)\$|\\[()\[\]]|(?<=[^\s$(=])~|\s+|`)"
    r"|(?P<recurring>\d*\.\d*(?:\\(?:overline|bar)\s*(?:\{\d+\}|\d)|\\dot\s*\{?\d\}?(?:\d*\\dot\s*\{?\d\}?)?"
    r"|(?<=\.)\(\d+\)))"
    r"|(?P<clock>\d{1,2}\s?(?:\\[!,])?:(?:\\[!,])?\d\d(?:(?:\\[!,])?:\d\d)?(?![\d:]))"
    r"|(?P<grouped>\d{1,3}(?:(?:\{,\}|\\[,; ]|,?\\!\s?|~|\x20)\d{3})+(?!\d|\s*/|,\d)(?:\.\d+)?)"
    r"|(?P<commas>\d+(?:,\d+)+(?:\.\d+)?)"
    rf"|(?P<number>{_NUMBER})"
    r"|\\(?:text|mbox|textbf|textit|textrm|textnormal|textsf|texttt|emph|mathrm"
    r"|mathbf|mathit|mathsf|mathtt|mathnormal|operatorname)\*?\s*"
    r"\{(?P<text>(?:[^{}]|\{[^{}]*\})*)\}"
    r"|\\(?P<environment>begin|end)\s*\{(?P<name>[a-z]+)\*?\}"
    r"|\\math(?P<script>bb|cal)\s*\{?(?P<letter>[A-Z])\}?"
    r"|\\(?P<command>[a-zA-Z]+)"
    r"|\\(?P<escaped>[^a-zA-Z])"
    r"|(?P<power>\*\*)"
    r"|(?P<word>[a-zA-Z]+)"
    r"|(?P<sign>.)",
    re.DOTALL | re.ASCII,
)


def tokens(text: str, commas: Commas | None = None) -> list[Token]:
    """The tokens of an answer; [] if it is longer than `LONGEST`.

    `commas` decides what 100,200 is; without it 100,200 is a number, and 100,200,300 is unclear.
    In any case 1,234 is a number, and 12,34 and 100, 200 are lists.
    """
    if len(text) > LONGEST:
        return []
    text = latex(text.strip())
    for pattern, written in _REWRITTEN:
        text = pattern.sub(written, text)
    if text.replace(r"\$", "").count("$") == 1:  # a price, not mathematics
        text = text.replace("$", r"\$").replace(r"\\$", r"\$")
    found, position, depth, listed = [], 0, 0, 0
    while match := _PIECES.match(text, position):
        position = match.end()
        kind = match.lastgroup or ""
        if kind == "commas":
            inside = depth or match.start() < listed  # (1,234) is a pair
            kind = "digits" if inside else _said_with_commas(text, match, commas)
            if kind == "digits":
                listed = position
                match = re.compile(_NUMBER).match(text, match.start())
                assert match is not None
                position = match.end()
        found += _token(kind, match)
        value = found[-1].value if found else ""
        if kind in ("sign", "escaped"):
            depth += (value in ("(", "[", r"\{")) - (value in (")", "]", r"\}"))
    while found[-1:] == [Token("sign", "\\\\")]:  # a line break at the end
        found.pop()
    if found[-1:] == [Token("sign", ".")]:
        found.pop()
    return _bare_scripts(found)


def latex(text: str) -> str:
    """Replace Unicode signs by LaTeX commands, and other letters and digits by plain ones."""
    return _SPECIAL.sub(_special, text).translate(_SIGNS)


def _special(found: re.Match[str]) -> str:
    said = unicodedata.normalize("NFKC", found[0])
    match found.lastgroup:
        case "raised":
            return f"^{{{said}}}"
        case "lowered":
            return f"_{{{said}}}"
        case "fraction":
            return r"\frac{{{}}}{{{}}}".format(*said.split("\u2044"))
        case "set":
            return rf"\mathbb{{{said}}}"
    return said


def _said_with_commas(text: str, match: re.Match[str], commas: Commas | None) -> str:
    """Kind of digits with commas: "commas" for one number, "digits" for several, or "unclear"."""
    run = match[0].partition(".")[0]
    groups = run.split(",")
    listed = not any(len(group) > 1 and group[0] == "0" for group in groups)  # 100,000
    if not _THOUSANDS.fullmatch(run):
        return "digits" if listed else "unclear"
    goes_on = text[: match.start()].endswith(",") or _GOES_ON.match(text, match.end())
    if not listed or (len(groups[0]) < 3 and not goes_on):
        return "commas"
    if commas is not None:
        return "commas" if commas == "number" else "digits"
    return "unclear" if goes_on or len(groups) > 2 else "commas"


def _bare_scripts(found: list[Token]) -> list[Token]:
    """Rewrite x^{2} as x^2."""
    out: list[Token] = []
    for token in found:
        out.append(token)
        match out[-4:]:
            case [("sign", "^" | "_"), ("sign", "{"), inside, ("sign", "}")]:
                out[-3:] = [inside]
    return out


def _token(kind: str, match: re.Match[str]) -> list[Token]:
    said = match[0]
    match kind:
        case "blank":
            return []
        case "number" | "digits":
            return [Token("number", Fraction(said))]
        case "grouped" | "commas":
            return [Token("number", Fraction(re.sub(r"[^\d.]", "", said)))]
        case "recurring":
            return [Token("number", _recurring(said))]
        case "unclear":
            return [Token("unclear", said)]
        case "clock":
            return [Token("clock", re.sub(r"[^\d:]", "", said))]
        case "text":
            return _text(" ".join(match["text"].replace("~", " ").split()))
        case "name":
            return [Token(match["environment"], match["name"].replace("bmatrix", "pmatrix"))]
        case "word":
            return [_NAMED.get(said, Token("word", said))]
        case "letter":
            said = f"\\{match['script']}{match['letter']}"
        case "command":
            said = _COMMANDS.get(match["command"], said)
        case "escaped" if match["escaped"] not in "{}$":
            said = match["escaped"]
        case "power":
            said = "^"
    return [Token("sign", said)] if said else []


def _text(said: str) -> list[Token]:
    r"""Tokens of \text{...}: (A) is a choice, 42 a number; words and units are texts."""
    bare = said[1:-1] if len(said) == 3 and said[0] + said[-1] == "()" else said
    if bare != said and bare in CHOICES:
        return [Token("sign", "("), Token("text", bare), Token("sign", ")")]
    if bare in _NAMED:
        return [_NAMED[bare]]
    sign = len(bare) > 1 and bare not in UNITS and not _WORDS.search(bare)
    if sign or re.match(r"\d|\(mod ", bare):
        found = tokens(bare)  # the m of \mathrm{m^2} is a unit, not a letter
        return [
            Token("text", t.value) if t.kind == "word" and t.value in UNITS else t for t in found
        ]
    return [Token("text", bare)] if bare else []


def _recurring(said: str) -> Fraction:
    r"""Value of a recurring decimal: 0.1\overline{6}, 0.1\dot{6}, 0.(142857)."""
    plain, again = re.split(r"\\|\(", said, maxsplit=1)
    whole, decimals = plain.split(".")
    period = re.sub(r"\D", "", again)
    tail = Fraction(int(period), 10 ** len(decimals) * (10 ** len(period) - 1))
    return Fraction(f"{whole or 0}.{decimals or 0}") + tail
