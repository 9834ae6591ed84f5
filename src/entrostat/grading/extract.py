r"""Where in a response its answer stands.

After the last </think>, in the last <answer>...</answer> if there is one. There, in an order that
is an option:

- "boxed": the last \boxed{}, \boxed 7 or \boxed\frac12. Boxes of one sentence are one answer, a
  list; so are those that only commas, "and", "or", x = and y = part, with their names where these
  differ. A percent sign or a unit right behind a box belongs to it; a box that is part of a
  formula, or behind "not" or "or", is no answer.
- "phrase": what follows the last "answer is", "answer:" or "####", to the end of its sentence.
- "last": the last sentence, if it says one thing: x = 3, "so the total is $5$", "he has 42 apples".
  One with two numbers in it, or with a word such as "not", "or", "about", "at least", says none.

What the first of these finds is the answer, readable or not. A phrase behind the box has to say the
same. All are linear in the length of the response but for the last few thousand characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

from .items import read
from .notation import LONGEST, tokens
from .texts import closing, final_answer
from .tree import Node
from .units import SCALES, UNITS

Place = Literal["boxed", "phrase", "last"]
ORDER: tuple[Place, ...] = ("boxed", "phrase", "last")
_NEAR = 300  # characters before a box that may make it a part of something
_MOST = 20  # boxes of one answer
_TAIL = 20_000  # characters at the end in which phrases and boxes of one sentence are looked for

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_ARGUMENT = r"\s*(?:\{(?:[^{}]|\{[^{}]*\})*\}|[0-9a-zA-Z])"
_BARE_BOX = re.compile(
    rf"\\(?:boxed|fbox)\s*(?P<held>-?(?:[0-9]+(?:,[0-9]{{3}})*(?:\.[0-9]+)?|\\[dt]?frac{_ARGUMENT}{_ARGUMENT}|"
    rf"\\sqrt{_ARGUMENT}|\\(?:pi|infty)\b)|(?<![a-z])[a-zA-Z](?![a-zA-Z]))"
)
_LETTER_IS = r"(?P<name>[a-zA-Z](?:_\{?\w\}?)?)\s*&?=\s*"
_MORE = "and|or|also|both|either|alternatively"
# all that parts two boxes of a list
_JOINT = re.compile(
    r"\s*(?:(?P<sign>\\?%|\^\s*\{?\\circ\}?|\u00b0)|"
    rf"(?!(?:{_MORE})\b)(?P<word>[A-Za-z]{{2,}}))?"
    rf"(?P<how>(?:[\s,;&]|\\\\|\\q?quad\b|\b(?:{_MORE})\b)*)(?:{_LETTER_IS})?"
)
_NAMED = re.compile(rf"(?:\A\s*|[A-Za-z.,:;]\s+|[,:;]){_LETTER_IS}\Z")
_IN_TEXT = re.compile(r"\\(?:text\w*|mbox|mathrm)\s*\{([^{}]*)\}")
_SENTENCE_END = re.compile(r"[.!?:;](?=[\s*$)\]]|\\\)|\Z)|\n")
_ALSO = re.compile(r"\b(?:or|alternatively|another|also|either|possibly)\b", re.IGNORECASE)
_DELIMITERS = re.compile(r"\\[()\[\],;!]|\$|\*\*|~")
# what belongs to a box that it stands behind
_BELONGS = re.compile(
    r"\s*(?:\\?%|percent\b|\^\s*\{?\\circ\}?|\u00b0|\\(?:text|mathrm)\s*\{[^{}]*\}(?:\^\{?\d\}?)?)"
)
_WORD = re.compile(r"\s+([a-zA-Z]+)\b")
# what may stand behind a box that is an answer: in mathematics its end, else that and words
_ENDS = re.compile(
    r"\s*(?:\Z|\\(?:approx|simeq|[rR]ightarrow|implies)\b|[.,;:]?\s*(?:\$|\\[)\]]|\\\\|&|\\(?:end|q?quad|checkmark|blacksquare|square)\b|\})|\n)"
)
# where what may be a unit behind a box ends
_TAIL_END = re.compile(
    r"\$|\\[)\]]|\\\\|\\(?:end|q?quad|approx|simeq|[rR]ightarrow|implies)\b|[&=\n]|[.,;](?=\s|\Z)"
)
_IN_UNIT = re.compile(r"\\(?:text|mathrm|operatorname)\w*\s*\{\s*~?([^{}]*?)\s*\}")
_LETTERS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]+")
_ONE = Node("number", (), Fraction(1))
_MODULUS = re.compile(r"\s*(?:\\[pb]?mod\b|\(\s*(?:\\?mod|\\(?:text|mathrm)\{\s*mod)\b)")
# commands that make a box beside them a factor
_FACTOR = (
    r"sqrt|[dt]?frac|[dt]?binom|times|cdot|div|pm|mp|pi|theta|alpha|beta|gamma|phi|infty|log|ln|exp|"
    r"sin|cos|tan|neq?|leq?|geq?|lt|gt|approx|sim|[bp]?mod|choose|over"
)
_APART = re.compile(
    rf"\Z|\s+(?![-+*/^=<>|!0-9\u00d7\u2248]|\\(?:{_FACTOR})\b|(?![aAI]\b)[A-Za-z]\b)|[.,](?![0-9])|"
    r"[;:!?)\]}*\"'$]|\\\\|\\[)\]]|\\(?:end|q?quad)\b"
)
_OR_MORE = re.compile(r"\W*\b(?:or\b|alternatively\b|and\b\W*(?:[0-9\\]|[a-z]\s*=))", re.IGNORECASE)
# before a box: an operator that it is the second side of, or a word that takes it back
_BOUND = re.compile(
    r"(?:[-+*/^_<>~\u2248\u2260\u2264\u2265\u2212\u00b1]|!=|[0-9]|\\(?:times|cdot|div|pm|mp|neq?|"
    r"leq?|geq?|lt|gt|approx|sqrt|frac|not|sim)|\b(?:or|about|approximately|roughly|around|nearly|"
    r"almost|than|least|most|half|twice|double|triple|minus|negative|plus|times|between|up to|"
    r"over|choose|excluding|except|ruling\s+out|"
    r"(?:half|third|quarter|out|multiple|factor|part|fraction|root|log|logarithm|sine|cosine|tangent|"
    r"square|cube|reciprocal|inverse|factorial)\s+of)|"
    r"\\(?:pi|theta|alpha|beta|gamma|phi|log|ln|exp|sin|cos|tan)|\\sqrt\{[^{}]*\}|"
    r"(?:\bnot|\bcannot|n't|\bnever)(?:\s+\w+){0,3})\s*:?\s*\Z|[A-Za-z)}]\Z"
    r"|\b(?:or|not)\s+[A-Za-z]\w*\s*=\s*\Z|\d\W*\band\s*\Z",
    re.IGNORECASE,
)
_OWN_LINE = re.compile(r"(?:=|\bis)\s(?!.*\bbetween)[^\n]*\band[ ]*\n[\s$\\(\[*]*\Z")
_WITHDRAWN = re.compile(
    r"\b(?:wrong|incorrect|not|false|if|unless|otherwise)\b|n't\b", re.IGNORECASE
)
_REGRET = re.compile(
    r"\b(?:wrong|incorrect|mistaken?|sorry|wait|correction|hold on|actually|"
    r"re(?:compute|calculate|do))\b",
    re.IGNORECASE,
)
_CHANGED = re.compile(
    r"\s*(?:\w+\s+)?(?:times(?!\s+(?:that|those|more|as|larger|greater|\w+er)\b)|plus|minus|over|divided|squared|cubed|more|less|fewer|factorial|mod|modulo|"
    r"choose|fails|of\s+[0-9]|and\s+an?\s+(?:half|third|quarter))\b",
    re.IGNORECASE,
)
_DISPLAYS = r"\{(?:align|equation|gather|multline|eqnarray|math|displaymath)\w*\*?\}"
_MATHEMATICS = re.compile(rf"(\\[(\[]|\\begin{_DISPLAYS})|\\[)\]]|\\end{_DISPLAYS}")
_BEGINS = re.compile(rf"(?<!\\)\$+|\\[(\[]|\\begin{_DISPLAYS}")
_BULLET = re.compile(r"(?:\A|\n)\s*[-*+>]\s+\Z")
# what may stand right before a box: arrows, space, words set in mathematics
_INTRODUCES = re.compile(
    r"(?:\\(?:q?quad|[lL]?ong(?:left)?[rR]ightarrow|[rR]ightarrow|implies|therefore|to|iff|"
    r"displaystyle)\b|\\text\w*\s*\{[^{}]*\}|[-=]>|\s)+\Z"
)
_WRAPPER = re.compile(
    r"(?:\\(?:text)?color\s*\{\w+\}\s*|\\(?:boxed|fbox|text\w*|math\w+|bm|boldsymbol)\s*|(?:\A|[\s$]))\Z"
)

_PHRASE = re.compile(
    r"(?:\banswers?\b(?P<to>\s+(?:to|of|for)\b[^\n.:?=]{0,80}?)?\s*(?:\*\*)?\s*(?:\bis\b|\bare\b|:|=)|####)"
    r"(?:\s*(?:\*\*|:|\}))*|^[#>*_ ]*(?:the )?(?:final )?answer[*_ ]*$",
    re.IGNORECASE | re.MULTILINE,
)
_TO = re.compile(
    r"\s+(?:to|of|for)\s+(?:(?:the|this|that|your|our|my)\s+)?"
    r"(?:(?:original|given|whole|entire|above)\s+)?(?:question|problem|exercise|equation|puzzle|riddle|"
    r"integral|task)\b(?:(?!\b(?:with|when|if)\b).)*",
    re.IGNORECASE,
)
# what may stand before "answer": the end of its sentence behind the last comma
_CONCLUDES = (
    r"(?:so|thus|hence|therefore|consequently|accordingly|which means|meaning|so that|then)"
)
_LEADS = re.compile(
    rf"(?:(?:{_CONCLUDES}|and|finally|now|ultimately|overall|indeed|again|"
    r"in (?:conclusion|summary|short|total)|to (?:conclude|summari[sz]e)|"
    r"(?:we|i) (?:get|have|find|conclude|see|know|think|believe)|"
    r"(?:this|it) (?:means|implies|follows|gives|shows)|that)\s+)*"
    r"(?:(?:the|my|our|your|its|this)\s+)?(?:(?:final|correct|right|required|requested|desired|exact|numerical|numeric|simplified|overall|"
    r"complete|full|only|actual|true|integer|corresponding|best|short|new|corrected|updated|revised)"
    r"\s+)*",
    re.IGNORECASE,
)
_ASIDE = re.compile(
    rf"(?:{_CONCLUDES}|and|finally|now|ultimately|overall|indeed|as a result|great|done|"
    r"in (?:conclusion|summary|short|total)|(?:the )?(?:final )?answer|"
    r"wait|no|no wait|yes|ok(?:ay)?|sorry|correction|oops|actually|hold on|"
    r"on second thought|let me correct (?:that|myself)|for this reason)",
    re.IGNORECASE,
)
_GIVES_REASON = re.compile(
    r"(?:since|because|as|given|after|by|using|from|adding|combining|simplifying|multiplying|"
    r"subtracting|dividing|summing|putting|solving|substituting|based on|"
    r"according to (?:the|this|our) (?:calculation|computation|work))\b",
    re.IGNORECASE,
)
_UNSURE = re.compile(
    r"\b(?:not|never|no|or|either|neither|nor|maybe|perhaps|possibly|might|could|would|should|unless|"
    r"if|wrong|false|incorrect|mistaken|instead|suppose|assum\w+|claims?|said|says?|"
    r"guess\w*|doubt\w*|first|approximat\w+|about|roughly|when|were)\b|n't\b",
    re.IGNORECASE,
)
_REASON = re.compile(
    r",?\s+(?:because|since|as required|I hope)\b.*|,\s+(?:and\s+)?not\s.*", re.DOTALL
)
_DOUBTS = re.compile(
    r"\b(?:not|cannot|never|no|nor|or|either|neither|between|least|most|than|about|approximately|around|"
    r"roughly|nearly|almost|negative|minus|half|double|twice|triple|thirds?|quarters?|percent|"
    r"hundreds?|thousands?|millions?|billions?|trillions?|dozens?|squared|cubed|root|times|factor|"
    r"factorial|mod|modulo|base|if|unless|except|other|versus|wrong|incorrect|instead|suppose|"
    r"assume|another|also|plus|over|under|above|below|up|more|less|fewer|maybe|perhaps|possibly|"
    r"might|could|may|but|all|any|which|whose|first|step|case|equation|line|option|positive|log|sin|"
    r"cos|tan|sqrt|pi|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|"
    r"forty|fifty|originally|initially|previously|once|both|every|when|where|let|given|would|bound|"
    r"estimate|guess|mistake|so far|still|says?|said|claims?|thinks?|thought|believes?|start)\b"
    r"|n't\b",
    re.IGNORECASE,
)
_COPULA = re.compile(r".*(?:\b(?:is|are|equals|equal to|get|gives|have|obtain)|[:\u21d2\u2234])\s+")
_LEAD = re.compile(
    r"\A(?:\s*(?:so|therefore|thus|hence|then|finally|and|we|get|have|obtain|find|that|conclude|"
    r"either|gives|it follows|simply|exactly|indeed|clearly),?\s+)+",
    re.IGNORECASE,
)
_SPANS = re.compile(r"\$([^$]+)\$|\\\((.+?)\\\)")
_DISPLAY = re.compile(r"(?:\\\[|\$\$)((?:(?!\\\[|\$\$).)*?)(?:\\\]|\$\$)\s*\Z", re.DOTALL)
# a sentence that says its one value, here "#": behind a verb or "total =", or at its beginning
_VERBS = (
    r"is|are|was|were|be|equals?|equal to|gets?|got|have|has|gives?|yields?|obtains?|finds?|found|"
    r"needs?|costs?|takes?|took|makes?|made|earns?|earned|spends?|spent|pays?|paid|sells?|sold|"
    r"buys?|bought|weighs?|contains?|receives?|received|saves?|saved|leaves?|reads?|ate|eats?|"
    r"drives?|drove|walks?|walked|travels?|collects?|collected|totals?|becomes?|remains?"
)
_STRESSES = r"only|exactly|just|therefore|thus|then|now|indeed|simply|precisely|a total of|in total"
_GOES_ELSEWHERE = (
    r"is|are|was|were|would|does|do|fails?|before|after|earlier|later|ago|too|to|from|off|away|at|by|"
    r"of|for|with|into|on|as|because"
)
_SAYS = re.compile(
    rf"\A(?:(?:[^\\=#]*(?:\b(?:{_VERBS})|:)|\s*(?:(?:of|the|an?|[a-z]{{3,}})\s+)+=)\s+"
    rf"(?:(?:{_STRESSES})\s+)*)?#"
    rf"(?:\s+of (?:them|these|those)|(?:\s+(?!(?:{_GOES_ELSEWHERE})\b)[A-Za-z-]+){{0,3}}"
    r"(?:\s+(?:in|at|on)\s+(?:the|her|his|their)(?:\s+[a-z']+){1,2})?)\Z",
    re.IGNORECASE,
)
_BOLD = re.compile(r"(?<![\w*)}])\*\*(?=[^\s*])([^*\n]{1,99})(?<=\S)\*\*(?![\w*({])")
_CLAUSE = re.compile(
    r"[,;]?\s+(?:so|therefore|thus|hence|giving|leaving|making|"
    r"which (?:is|means|gives|makes|leaves))\s+|:\s+",
    re.IGNORECASE,
)
# "2 boxes x 9 eggs = 18 eggs": what stands before the last "=", and behind it
_NUMBER = r"\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)%?"
_WORDS = r"(?:\s*/?\s*[a-z]+){0,3}\s*"
_SUM = re.compile(rf"[\d%)]{_WORDS}[-+*/x\u2013\u00d7\u00f7]\s*\(?\s*{_NUMBER}\)?{_WORDS}\Z")
_COMES_TO = re.compile(rf"\s*(-?{_NUMBER})(?![\w/^.])((?:\s+\(?[a-zA-Z'-]+\)?,?)*)\Z")
_HARMLESS = re.compile(r"\b(?:if|first|when|would|could|more|times\Z|all\Z|every)\b", re.IGNORECASE)
_PLAIN_NUMBER = re.compile(r"(?<![\w.,/^\\-])[-\u2212]?\$?[0-9](?:[0-9,./]*[0-9])?(?![\w/^%\\])")


def answers(response: str, order: tuple[Place, ...], readable: Callable[[str], bool]) -> list[str]:
    """What a response gives as its answer; where it says so twice, both. [] where it gives none.

    Args:
        response: all of it.
        order: which places are looked at, the first first.
        readable: whether a text says something.
    """
    text = final_answer(response)
    for place in order:
        found = _PLACES[place](text, readable)
        if found is not None:
            return found
    return []


def boxed(text: str) -> tuple[list[str], list[str]]:
    r"""What stands in the last \boxed{} and in those that join it, and the connectors between.

    [3, 5] and ["or"] of "x = \boxed{3} or x = \boxed{5}"; x = 3 and y = 5 where names differ. A box
    that is not closed holds "". Without boxes both are empty.
    """
    last = _last_box(text, len(text))
    if last is None:
        return [], []
    found, joints = [last], []
    while len(found) < _MOST:
        other = _last_box(text, found[-1].start)
        if other is None or not other.said or other.end > found[-1].start:
            break
        joint = _joint(text[other.end : found[-1].start])
        if joint is None:
            break
        found.append(other)
        joints.append(joint)
    said = _with_names(
        text, found[-1].start, [box.said.strip() for box in found[::-1]], joints[::-1]
    )
    return said, [joint.how for joint in joints[::-1]]


def listed(said: Sequence[str], connectors: Sequence[str]) -> str:
    """Several answers as one, each once, with "and" or "or" between if it is never the other."""
    words = set(connectors) - {","}
    how = rf"\text{{ {words.pop()} }}" if len(words) == 1 else ","
    return f" {how} ".join(dict.fromkeys(said))


class _Box(NamedTuple):
    """A box: where it begins, what it holds ("" where it is cut off), where it ends."""

    start: int
    said: str
    end: int


class _Joint(NamedTuple):
    """What parts two boxes: ",", "and", "or"; the first one's unit, the second's name, or ""."""

    how: str
    unit: str
    name: str


def _last_box(text: str, before: int) -> _Box | None:
    """The last box that begins before a place."""
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
        return _Box(start, "", start)  # of \boxed 2x nobody knows what it holds
    return _Box(start, match["held"], match.end())


def _joint(between: str) -> _Joint | None:
    """What parts two boxes, if it makes a list of them; a mere break of line does not."""
    if len(between) > _NEAR:
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
    """Contents of boxes, the first of which begins at `start`, with their names if these differ."""
    before = _BEGINS.sub(" ; ", text[max(0, start - _NEAR) : start])
    first = _NAMED.search(_IN_TEXT.sub(r" \1 ", _DELIMITERS.sub(" ", before)))
    names = [first["name"] if first else "", *(joint.name if joint else "" for joint in joints)]
    if "" in names or len(set(names)) == 1:
        return said
    return [f"{name} = {one}" for name, one in zip(names, said, strict=True)]


def _from_boxes(text: str, readable: Callable[[str], bool]) -> list[str] | None:
    box = _last_box(text, len(text))
    if box is None:
        return None
    if not box.said:
        return []
    said, joints, start = [_with_neighbours(text, box)], [], box.start
    while (
        (other := _last_box(text, start)) is not None and len(said) < _MOST and other.end <= start
    ):
        between = text[other.end : start]
        joins = between.strip() and other.said and "\\boxed" not in other.said
        joint = _joint(between) if joins else None
        ends = _SENTENCE_END.search(between) and not _ALSO.search(between)
        if joint is None and (len(between) > _NEAR or ends):
            break
        said.append(other.said + joint.unit if joint else _with_neighbours(text, other))
        joints.append(joint)
        start = other.start
    said = [one.strip() for one in reversed(said)]
    if "" in said or _is_bound(text[max(0, start - _NEAR) : start]):
        return []
    said = _with_names(text, start, said, joints[::-1])
    rest = text[box.end : box.end + _TAIL]
    if _OR_MORE.match(_DELIMITERS.sub(" ", rest)):
        return []
    if _WITHDRAWN.search(_sentence(rest.partition("\n")[0])) or _REGRET.search(rest):
        return []
    if _CHANGED.match(_DELIMITERS.sub(" ", rest)):
        return []
    phrase = _from_phrase(rest, readable)
    if phrase == []:
        return []
    answer = listed(said, [joint.how if joint else "," for joint in joints])
    return [answer, *(one for one in phrase or () if re.search(r"[0-9\\]", one))]


def _with_neighbours(text: str, box: _Box) -> str:
    """A box's content with the unit or percent sign behind it; "" where it is part of a formula."""
    start, said, end = box
    after = text[end : end + 99]
    if "\\boxed" in said:
        return ""
    if _MODULUS.match(after):
        return said
    inside = _in_mathematics(text[max(0, start - 2000) : start])
    if inside and re.match(r"\s*=", after):  # of 20 = 4 * 6 nobody knows what it says
        return said if re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", said)) else ""
    if not (_ENDS if inside else _APART).match(after):
        tail = _IN_UNIT.sub(r" \1 ", _TAIL_END.split(after, maxsplit=1)[0])
        unit = _LETTERS.sub(r"\\mathrm{\g<0>}", tail)
        node = read(tokens(f"1 {unit}"))
        known = node is not None and node.kind in ("quantity", "%") and node.parts[0] == _ONE
        return f"{said} {unit}" if known else ""
    after = _DELIMITERS.sub(" ", after)
    while (match := _BELONGS.match(after) or _WORD.match(after)) is not None:
        word = match[1] if match.re is _WORD else ""
        if word and (len(word) == 1 or not (word in UNITS or word in SCALES)):
            break
        said += f" \\text{{{word}}}" if word else f" {match[0]}"
        after = after[match.end() :]
    return said


def _in_mathematics(before: str) -> bool:
    """Whether mathematics has begun in the paragraph that ends here, and not ended."""
    paragraph = before.rpartition("\n\n")[2].replace(r"\$", "").replace("$$", "$")
    marks = [(found.start(), found[1] is not None) for found in _MATHEMATICS.finditer(paragraph)]
    opened = max((place for place, begins in marks if begins), default=-1)
    closed = max((place for place, begins in marks if not begins), default=-1)
    return paragraph.count("$") % 2 == 1 or opened > closed


def _is_bound(before: str) -> bool:
    """Whether what stands before a box makes it a part of something, or takes it back."""
    if _OWN_LINE.search(before):  # "So n = 3 and", and the box below
        before = _OWN_LINE.sub(".", before)
    bare = _INTRODUCES.sub(" ", _DELIMITERS.sub(" ", before))
    bare = re.sub(r"=\s*\+\s*\Z", "= ", bare)
    if _BULLET.search(bare):
        return False
    return _BOUND.search(_unwrapped(bare)) is not None


def _unwrapped(before: str) -> str:
    r"""Without \textbf{ and the like that a box stands in; "-" for any other brace."""
    while (brace := _open_brace(before)) >= 0:
        if not _WRAPPER.search(before[:brace]):
            return "-"
        before = _WRAPPER.sub(" ", before[:brace])
    return before


def _open_brace(text: str) -> int:
    """Where the last brace stands that is not closed; -1 without one."""
    depth = 0
    for brace in reversed(list(re.finditer(r"(?<!\\)[{}]", text))):
        depth += 1 if brace[0] == "}" else -1
        if depth < 0:
            return brace.start()
    return -1


def _from_phrase(text: str, readable: Callable[[str], bool]) -> list[str] | None:
    text = text[-_TAIL:]
    match = None
    for match in _PHRASE.finditer(text):  # noqa: B007 - the last one counts
        pass
    if match is None:
        return None
    begin = 1 + max(text.rfind(end, 0, match.start()) for end in "\n.!?")
    to = match["to"] or ""
    if not _leads(text[begin : match.start()]) or (to and not _TO.fullmatch(to)):
        return []
    said = text[match.end() :].lstrip()
    if (again := _PHRASE.match(said)) is not None and again.start() == 0:  # "#### Final answer"
        said = said[again.end() :].lstrip()
    display = re.match(r"(?:\\\[|\$\$)(.*?)(?:\\\]|\$\$)", said, re.DOTALL)
    if display is not None:
        after = said[display.end() :].lstrip()
        return [] if _OR_MORE.match(after) else [display[1].strip()]
    line = said.partition("\n")[0]
    said = _sentence(line)
    if line[len(said) :].startswith(("?", "!")) or _REGRET.search(text[match.end() :]):
        return []
    said = _trimmed(_LEAD.sub("", _REASON.sub("", _BOLD.sub(r"\1", said))))
    if readable(said) or re.search(r"\$[^$]*\$|\\", said):
        return [said]
    return _one(said, readable, "it is ") or [said]


def _leads(before: str) -> bool:
    """Whether what stands before "answer" lets it be the response's own."""
    *clauses, last = re.split(
        r"[,;:\u2014]\s*", re.sub(r"[*_#>\"'()\[\]`{}~-]+|\\text\w*", " ", before)
    )
    last = " ".join(last.split()) + " " if last.strip() else ""
    if not _LEADS.fullmatch(last):
        cut = re.search(rf"\b{_CONCLUDES}\s+(?:{_LEADS.pattern})\Z", last, re.IGNORECASE)
        if cut is None:
            return False
        clauses, last = [*clauses, last[: cut.start()]], last[cut.start() :]
    free = [one.strip() for one in clauses if not _ASIDE.fullmatch(" ".join(one.split()))]
    free = [one for one in free if one]
    if not free:
        return True
    reason = re.match(rf"{_CONCLUDES}\b", last, re.IGNORECASE) or _GIVES_REASON.match(free[0])
    return bool(reason) and not any(map(_UNSURE.search, free))


def _trimmed(text: str) -> str:
    """Without the end of a sentence and emphasis that began before."""
    return text.strip(" \n*").rstrip(".").strip(" \n*")


def _sentence(text: str) -> str:
    """The first sentence of a line."""
    end = re.search(r"[.!?](?=[\s*$]*(?:\s[A-Z]|\Z))", text)
    return text if end is None else text[: end.start()]


def _from_last(text: str, readable: Callable[[str], bool]) -> list[str] | None:
    text = text[-_TAIL:].strip()
    display = _DISPLAY.search(text)
    if display is not None:
        return [_trimmed(display[1])]
    line = _trimmed(_BOLD.sub(r"\1", text.rpartition("\n")[2]))
    if len(line) > 2 * LONGEST or line.endswith(("?", "!")):
        return []
    said = re.split(r"(?<=[.!?])\s+(?=[A-Z$\\])|(?<=\d[.!?])\s+(?=\d)", line)[-1]
    said = re.sub(r"\A(?:\w+\s*:)?=\s*", "", said).rstrip(",")
    if found := _one(said, readable) or _worked_out(said):
        return found
    for clause in reversed(list(_CLAUSE.finditer(said))):
        rest = said[clause.end() :]
        if not _UNSURE.search(said[: clause.start()]) and (found := _one(rest, readable, "it is ")):
            return found
    return []


def _worked_out(said: str) -> list[str]:
    """What a sum in a sentence comes to, at its end."""
    left, sign, right = said.rpartition("=")
    value = _COMES_TO.match(right)
    if not sign or value is None or _SUM.search(left[-_NEAR:]) is None or "\\" in said:
        return []
    before = _HARMLESS.sub("", left)
    if _UNSURE.search(before) or re.search(r"\b(?:because|since)\b", before, re.IGNORECASE):
        return []
    return [] if _DOUBTS.search(_HARMLESS.sub("", value[2])) else [value[1].lstrip("$")]


def _one(said: str, readable: Callable[[str], bool], verb: str = "") -> list[str]:
    """The one value that a sentence, or what stands behind a verb, gives."""
    for candidate in (said, _LEAD.sub("", said, count=1)):
        if readable(candidate):
            return [candidate]
    said = verb + re.sub(r"\bevery (?=(?:day|week|month|year|hour|night|morning)\b)", "per ", said)
    if re.fullmatch(r"(?:[^$]*\$\d)+[^$]*", said):  # prices, not mathematics
        said = said.replace("$", "")
    outside = _SPANS.sub(" ", said)
    if _DOUBTS.search(re.sub(r"\\[A-Za-z]+", " ", outside)):
        return []
    copula = _COPULA.match(said)
    if copula is not None and not re.search(r"[0-9]", copula[0]) and readable(said[copula.end() :]):
        return [said[copula.end() :]]
    spans = [match[1] or match[2] for match in _SPANS.finditer(said)]
    digits = re.findall(r"[0-9][0-9,./]*", outside)
    if len(spans) == 1 and not digits:
        return spans if _says_one(_SPANS.sub("#", said)) else []
    numbers = _PLAIN_NUMBER.findall(outside)
    if not spans and len(numbers) == len(digits) == 1 and _says_one(_PLAIN_NUMBER.sub("#", said)):
        return [numbers[0]]
    return []


def _says_one(marked: str) -> bool:
    """Whether a sentence gives its one value, "#", as what it comes to."""
    return any(_SAYS.match(text) for text in (marked, _LEAD.sub("", marked, count=1)))


_PLACES: dict[Place, Callable[[str, Callable[[str], bool]], list[str] | None]] = {
    "boxed": _from_boxes,
    "phrase": _from_phrase,
    "last": _from_last,
}
