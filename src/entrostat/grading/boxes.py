r"""Boxes: the content of the last \boxed{}, with boxes that join it and a unit after it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..formulas.items import read
from ..formulas.notation import tokens
from ..formulas.tree import number
from ..formulas.units import SCALES, UNITS
from .sentences import NEAR, OR_MORE, REGRET, TAIL, from_phrase, sentence
from .texts import closing

_MOST = 20  # most boxes of one answer
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_ARGUMENT = r"\s*(?:\{(?:[^{}]|\{[^{}]*\})*\}|[0-9a-zA-Z])"
_BARE_BOX = re.compile(
    rf"\\(?:boxed|fbox)\s*(?P<held>-?(?:[0-9]+(?:,[0-9]{{3}})*(?:\.[0-9]+)?|\\[dt]?frac{_ARGUMENT}{_ARGUMENT}|"
    rf"\\sqrt{_ARGUMENT}|\\(?:pi|infty)\b)|(?<![a-z])[a-zA-Z](?![a-zA-Z]))"
)
_LETTER_IS = r"(?P<name>[a-zA-Z](?:_\{?\w\}?)?)\s*&?=\s*"
_MORE = "and|or|also|both|either|alternatively"
# anything between two boxes of a list
_JOINT = re.compile(
    r"\s*(?:(?P<sign>\\?%|\^\s*\{?\\circ\}?|\u00b0)|"
    rf"(?!(?:{_MORE})\b)(?P<word>[A-Za-z]{{2,}}))?"
    rf"(?P<how>(?:[\s,;&]|\\\\|\\q?quad\b|\b(?:{_MORE})\b)*)(?:{_LETTER_IS})?"
)
_NAMED = re.compile(rf"(?:\A\s*|[A-Za-z.,:;]\s+|[,:;]){_LETTER_IS}\Z")
_IN_TEXT = re.compile(r"\\(?:text\w*|mbox|mathrm)\s*\{([^{}]*)\}")
_SENTENCE_END = re.compile(r"[.!?:;](?=[\s*$)\]]|\\\)|\Z)|\n")
_ALSO = re.compile(r"\b(?:or|alternatively|another|also|either|possibly)\b", re.IGNORECASE)
_DELIMITERS = re.compile(r"\\[()\[\],;!]|\$|(?<=[.:])[*_]{1,3}|\*\*|~")
# text after a box that belongs to it
_BELONGS = re.compile(
    r"\s*(?:\\?%|percent\b|\^\s*\{?\\circ\}?|\u00b0|\\(?:text|mathrm)\s*\{[^{}]*\}(?:\^\{?\d\}?)?)"
)
_GOES_ON = re.compile(r"[ \t]+(?:and[ \t]+)?\d")  # 8 hours 30 minutes
_WORD = re.compile(r"\s+([a-zA-Z]+)\b")
# text allowed after a box that is an answer: the end of mathematics; outside it also words
_ENDS = re.compile(
    r"\s*(?:\Z|\\(?:approx|simeq|[rR]ightarrow|implies)\b|[.,;:]?\s*(?:\$|\\[)\]]|\\\\|&|\\(?:end|q?quad|checkmark|blacksquare|square)\b|\})|\n)"
)
# end of a possible unit after a box
_TAIL_END = re.compile(
    r"\$|\\[)\]]|\\\\|\\(?:end|q?quad|approx|simeq|[rR]ightarrow|implies)\b|[&=\n]|(?<!\\)[.,;](?=\s|\Z)"
)
_IN_UNIT = re.compile(r"\\(?:text|mathrm|operatorname)\w*\s*\{\s*~?((?:[^{}]|\{[^{}]*\})*?)\s*\}")
_LETTERS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]+")
_MODULUS = re.compile(r"\s*(?:\\[pb]?mod\b|\(\s*(?:\\?mod|\\(?:text|mathrm)\{\s*mod)\b)")
# commands next to a box that make it a factor
_FACTOR = (
    r"sqrt|[dt]?frac|[dt]?binom|times|cdot|div|pm|mp|pi|theta|alpha|beta|gamma|phi|infty|log|ln|exp|"
    r"sin|cos|tan|neq?|leq?|geq?|lt|gt|approx|sim|[bp]?mod|choose|over"
)
_APART = re.compile(
    rf"\Z|\s+(?![-+*/^=<>|!0-9\u00d7\u2248]|\\(?:{_FACTOR})\b|(?![aAI]\b)[A-Za-z]\b)|[.,](?![0-9])|"
    r"[;:!?)\]}*\"'$]|\\\\|\\[)\]]|\\(?:end|q?quad)\b"
)
_ANSWER = r"(?:the|my|our|its|this)\s+(?:\w+\s+)?answer"
# directly before a box: a factor, or a relation or operator sign
_BESIDE = re.compile(
    r"(?:[-+*/^_<>~\u2248\u2260\u2264\u2265\u2212\u00b1]|!=|[0-9]|"
    r"\\(?:pi|theta|alpha|beta|gamma|phi)|\\sqrt\{[^{}]*\})\s*:?\s*\Z|[A-Za-z)}]\Z"
)
# before a box, even on another line: an operator, or a word that retracts the box
_BOUND = re.compile(
    r"(?:\\(?:times|cdot|div|pm|mp|neq?|"
    r"leq?|geq?|lt|gt|approx|sqrt|frac|not|sim)|\b(?:or|about|approximately|roughly|around|nearly|"
    r"almost|than|least|most|half|twice|double|triple|minus|negative|plus|times|between|up to|"
    r"over|choose|excluding|except|ruling\s+out|"
    r"(?:is|lies|falls|strictly|well|far)\s+(?:below|above|under|beyond)|exceeds?|(?:divisible|bounded)\s+by|(?:congruent|coprime|close)\s+to|"
    r"(?:half|third|quarter|out|multiple|bound|power|divisor|factor|part|fraction|root|log|logarithm|sine|cosine|tangent|"
    r"square|cube|reciprocal|inverse|factorial)\s+of)|"
    r"\\(?:log|ln|exp|sin|cos|tan)|"
    r"(?:\bnot|\bcannot|n't|\bnever|\b(?:suppose|assume|reject|discard|eliminate|rule\s+out|"
    r"perhaps|maybe|possibly)|\bif\s+(?:it|this|that)\s+(?:is|was|were))(?:\s+\w+){0,3}|"
    r"\b(?:may|might|could)\s+be|\b(?<!\bi\s)(?<!\bwe\s)(?:says?|said|thinks?|believes?)(?:\s+(?:that|it|this|the|answer|is))*|"
    r"\b(?:first|intermediate|partial|previous|initial)\s+(?:step|result|estimate)\s+(?:is|was|gives|yields))\s*:?\s*\Z"
    r"|\bif\b[^.\n]{0,99}\bwould\b[^.,\n]{0,60}\Z"
    r"|\b(?:or|not)\s+[A-Za-z]\w*\s*=\s*\Z|\d\W*\band\s*\Z"
    r"|[\[(][^\[\]()\n]*,\s*\Z"
    r"|\b(?:friend|claim(?:s|ed)?|answer\s*,?\s+(?:plus|minus|"
    r"times|divided|mod|modulo|squared|cubed|doubled|halved|tripled|increased|reduced)|guess(?:es|ed)?|doubt|naive(?:ly)?|false\s+that|"
    rf"(?<!form\s)(?<!value\s)(?:of|on|for|in|than|times|plus|minus|twice|double|half|triple)\s+{_ANSWER}\s+is)\b[^.\n]{{0,60}}\Z",
    re.IGNORECASE,
)
_OWN_LINE = re.compile(r"(?:=|\bis)\s(?!.*\bbetween)[^\n]*\band[ ]*\n[\s$\\(\[*]*\Z")
_WITHDRAWN = re.compile(
    r"\b(?:wrong|incorrect|not|false|if|unless|otherwise|bound|half|twice|friend|guess|"
    r"too (?:small|large|big|few|many|high|low|much))\b|n't\b",
    re.IGNORECASE,
)
_CHANGED = re.compile(
    r"\s*(?:\w+\s+)?(?:times(?!\s+(?:that|those|more|as|larger|greater|\w+er)\b)|plus|minus|over|divided|squared|cubed|more|less|fewer|factorial|mod|modulo|"
    r"choose|fails|at\s+(?:least|most)|is\s+what\s+(?:most|many|some|people|they|others)|of\s+[0-9]|and\s+an?\s+(?:half|third|quarter)|(?:is|was|(?:can|must|would)\s+be)\s+"
    r"(?:impossible|excluded|discarded|rejected|eliminated|extraneous|invalid|ruled))\b|[\s*]*\?",
    re.IGNORECASE,
)
_DISPLAYS = r"\{(?:align|equation|gather|multline|eqnarray|math|displaymath)\w*\*?\}"
_MATHEMATICS = re.compile(rf"(\\[(\[]|\\begin{_DISPLAYS})|\\[)\]]|\\end{_DISPLAYS}")
_BEGINS = re.compile(rf"(?<!\\)\$+|\\[(\[]|\\begin{_DISPLAYS}")
# text allowed right before a box: space, words set in mathematics
_INTRODUCES = re.compile(r"(?:\\(?:q?quad|displaystyle)\b|\\text\w*\s*\{[^{}]*\}|\s)+\Z")
_ARROW = re.compile(r"\\(?:(?:[lL]ong)?(?:left)?[rR]ightarrow|implies|therefore|to|iff)\b|[-=]>")
# possible separators between a box and the text before it
_PARTS = rf"(?:\s|\*\*|\$|\\[()\[\]]|\\(?:begin|end){_DISPLAYS})*\Z"
_SEAM = re.compile(_PARTS)
_BULLET = re.compile(rf"(?:\A|\n)\s*[-*+>]\s+(?:\\text\w*\s*\{{[^{{}}]*\}}?)?{_PARTS}")
_LABEL = re.compile(r"\b[A-Z]\w*\s+\d+\**:\Z")  # Question 3:
_WRAPPER = re.compile(
    r"(?:\\(?:text)?color\s*\{\w+\}\s*|\\(?:boxed|fbox|text\w*|math\w+|bm|boldsymbol)\s*|(?:\A|[\s$]))\Z"
)


def boxed(text: str) -> tuple[list[str], list[str]]:
    r"""Contents of the last \boxed{} and the boxes that join it, and the connectors between them.

    "x = \boxed{3} or x = \boxed{5}" gives [3, 5] and ["or"]; contents include names that differ,
    such as x = 3 and y = 5. An unclosed box holds "". Without boxes both lists are empty.
    """
    said: list[str] = []
    joints: list[_Joint] = []
    start = len(text)
    while len(said) < _MOST and (box := _last_box(text, start)) is not None:
        if said:
            joint = _joint(text[box.end : start]) if box.said and box.end <= start else None
            if joint is None:
                break
            joints.insert(0, joint)
        said.insert(0, box.said.strip())
        start = box.start
    return _with_names(text, start, said, joints), [joint.how for joint in joints]


def listed(said: Sequence[str], connectors: Sequence[str]) -> str:
    """Join answers, without repeats, by "and" or "or" if only one of them occurs, else by ","."""
    words = set(connectors) - {","}
    how = rf"\text{{ {words.pop()} }}" if len(words) == 1 else ","
    return f" {how} ".join(dict.fromkeys(said))


class _Box(NamedTuple):
    """A box: its start, its content ("" if it is cut off), its end."""

    start: int
    said: str
    end: int


class _Joint(NamedTuple):
    """Text between two boxes: ",", "and" or "or"; the first box's unit and the second's name."""

    how: str
    unit: str
    name: str


def _last_box(text: str, before: int) -> _Box | None:
    start = max(text.rfind("\\boxed", 0, before), text.rfind("\\fbox", 0, before))
    if start < 0:
        return None
    match = _BOX.match(text, start)
    if match is not None:
        end = closing(text, match.end())
        return _Box(start, "", start) if end < 0 else _Box(start, text[match.end() : end], end + 1)
    match = _BARE_BOX.match(text, start)
    after = "" if match is None else text[match.end() : match.end() + 100]
    if match is None or not any(end.match(after) for end in (_ENDS, _APART, _BELONGS)):
        return _Box(start, "", start)  # \boxed 2x is ambiguous
    return _Box(start, match["held"], match.end())


def _joint(between: str) -> _Joint | None:
    """The joint between two boxes that form a list, else None; a mere line break does not join."""
    if len(between) > NEAR:
        return None
    match = _JOINT.fullmatch(_IN_TEXT.sub(r" \1 ", _DELIMITERS.sub(" ", between)))
    if match is None or ("\n" in between and not match["how"].strip()):
        return None
    word, words = match["word"], re.findall(r"or\b|and\b", match["how"])
    if word and word not in UNITS:
        return None
    unit = f" \\text{{{word}}}" if word else match["sign"] or ""
    return _Joint(words[-1] if words else ",", unit, match["name"] or "")


def _with_names(
    text: str, start: int, said: list[str], joints: Sequence[_Joint | None]
) -> list[str]:
    """Contents of boxes, with their names if these differ; the first box begins at `start`."""
    before = _BEGINS.sub(" ; ", text[max(0, start - NEAR) : start])
    first = _NAMED.search(_IN_TEXT.sub(r" \1 ", _DELIMITERS.sub(" ", before)))
    names = [first["name"] if first else "", *(joint.name if joint else "" for joint in joints)]
    if not said or "" in names or len(set(names)) == 1:
        return said
    return [f"{name} = {one}" for name, one in zip(names, said, strict=True)]


def from_boxes(text: str, readable: Callable[[str], bool]) -> list[str] | None:
    """The answer in a response's last boxes; [] if they give none, None without boxes."""
    box = _last_box(text, len(text))
    if box is None:
        return None
    if not box.said:
        return []
    said, joints, start = [_with_neighbours(text, box)], [], box.start
    while len(said) < _MOST and (other := _last_box(text, start)) and other.end <= start:
        between = text[other.end : start]
        joins = between.strip() and other.said and "\\boxed" not in other.said
        joint = _joint(between) if joins else None
        ends = _SENTENCE_END.search(between) and not _ALSO.search(between)
        if joint is None and (len(between) > NEAR or ends):
            break
        said.append(other.said + joint.unit if joint else _with_neighbours(text, other))
        joints.append(joint)
        start = other.start
    said = [one.strip() for one in reversed(said)]
    if "" in said or _is_bound(text[max(0, start - 2000) : start]):
        return []
    said = _with_names(text, start, said, joints[::-1])
    rest = text[box.end : box.end + TAIL]
    bare = _DELIMITERS.sub(" ", rest)
    if OR_MORE.match(bare) or _CHANGED.match(bare) or REGRET.search(rest):
        return []
    if _WITHDRAWN.search(sentence(rest.partition("\n")[0])):
        return []
    phrase = from_phrase(rest, readable)
    if phrase == []:
        return []
    answer = listed(said, [joint.how if joint else "," for joint in joints])
    return [answer, *(one for one in phrase or () if re.search(r"[0-9\\]", one))]


def _with_neighbours(text: str, box: _Box) -> str:
    """A box's content with a unit or percent sign after it; "" if it is part of a formula."""
    start, said, end = box
    after = text[end : end + 99]
    if "\\boxed" in said:
        return ""
    if _MODULUS.match(after):
        return said
    inside = _in_mathematics(text[max(0, start - 2000) : start])
    if inside and re.match(r"\s*=", after):  # 20 = 4 * 6 is ambiguous
        return said if re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", said)) else ""
    if not (_ENDS if inside else _APART).match(after):
        tail = _IN_UNIT.sub(r" \1 ", _TAIL_END.split(after.replace("~", " "), maxsplit=1)[0])
        unit = _LETTERS.sub(r"\\mathrm{\g<0>}", tail)
        node = read(tokens(f"1 {unit}"))
        known = node is not None and node.kind in ("quantity", "%") and node.parts[0] == number(1)
        return f"{said} {unit}" if known else ""
    after = _DELIMITERS.sub(" ", after)
    while (match := _BELONGS.match(after) or _WORD.match(after)) is not None:
        word = match[1] if match.re is _WORD else ""
        if word and (len(word) == 1 or not (word in UNITS or word in SCALES)):
            break
        said += f" \\text{{{word}}}" if word else f" {match[0]}"
        after = after[match.end() :]
    return "" if _GOES_ON.match(after) else said


def _in_mathematics(before: str) -> bool:
    """Whether the paragraph before ends inside mathematics."""
    paragraph = before.rpartition("\n\n")[2].replace(r"\$", "").replace("$$", "$")
    marks = [(found.start(), found[1] is not None) for found in _MATHEMATICS.finditer(paragraph)]
    opened = max((place for place, begins in marks if begins), default=-1)
    closed = max((place for place, begins in marks if not begins), default=-1)
    return paragraph.count("$") % 2 == 1 or opened > closed


def _is_bound(before: str) -> bool:
    """Whether the text before a box makes it part of an expression, or retracts it.

    Outside mathematics a line break separates a box from the text before it, and so does
    mathematics that has ended in a value.
    """
    seam = _SEAM.search(before)
    at = seam.start() if seam else 0
    ends = r"[\w)}]\s*[$\\]" if _in_mathematics(before[:at]) else "\n"
    parted = re.search(ends, before[max(0, at - 1) :]) or _LABEL.search(before[:at])
    before = before[-NEAR:]
    if _OWN_LINE.search(before):  # "So n = 3 and", with the box on the next line
        before = _OWN_LINE.sub(".", before)
    if _BULLET.search(before):
        return False
    bare = _INTRODUCES.sub(" ", _ARROW.sub(";", _DELIMITERS.sub(" ", before)))
    bare = _unwrapped(re.sub(r"=\s*\+\s*\Z", "= ", bare))
    return bool(_BOUND.search(bare) or (not parted and _BESIDE.search(bare)))


def _unwrapped(before: str) -> str:
    r"""The text before a box, without open wrappers such as \textbf{; \frac for any other brace."""
    while (brace := _open_brace(before)) >= 0:
        if not _WRAPPER.search(before[:brace]):
            return r"\frac"
        before = _WRAPPER.sub(" ", before[:brace])
    return before


def _open_brace(text: str) -> int:
    depth = 0
    for brace in reversed(list(re.finditer(r"(?<!\\)[{}]", text))):
        depth += 1 if brace[0] == "}" else -1
        if depth < 0:
            return brace.start()
    return -1
