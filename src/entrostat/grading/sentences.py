"""Sentences that give an answer: "the answer is 5", or a last sentence with a single value.

The text before "answer" must match a list of allowed forms: a list of forbidden ones ("half of the
answer is 5", "my friend claims that ...") would never be complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..formulas.items import DOUBTS
from ..formulas.notation import LONGEST

NEAR = 300  # characters before an answer that may make it part of an expression
TAIL = 20_000  # last characters, in which phrases and sentences are searched

OR_MORE = re.compile(r"\W*\b(?:or\b|alternatively\b|and\b\W*(?:[0-9\\]|[a-z]\s*=))", re.IGNORECASE)
REGRET = re.compile(
    r"\b(?:wrong|incorrect|mistaken?|sorry|wait|correction|hold on|actually|however|oops|kidding|"
    r"second thought|double[- ]check|in error|made an error|should be|"
    r"re-?(?:compute|calculate|check|do))\b",
    re.IGNORECASE,
)
_PHRASE = re.compile(
    r"(?:\b(?:answer|option|choice)s?\b(?P<to>\s+(?:to|of|for)\b[^\n.:?=]{0,80}?)?\s*(?:\*\*)?\s*(?:\bis\b|\bare\b|:|=)|####)"
    r"(?:\s*(?:\*\*|:|\}|```\w*\n(?=[^\n]*\n```)))*|^[#>*_ ]*(?:the )?(?:final )?answer[*_ ]*$",
    re.IGNORECASE | re.MULTILINE,
)
_TO = re.compile(
    r"\s+(?:to|of|for)\s+(?:(?:the|this|that|your|our|my)\s+)?"
    r"(?:(?:original|given|whole|entire|above)\s+)?(?:question|problem|exercise|equation|puzzle|riddle|"
    r"integral|task)\b(?:(?!\b(?:with|when|if)\b).)*",
    re.IGNORECASE,
)
# allowed text before "answer", after the last comma of its sentence
_CONCLUDES = (
    r"(?:so|thus|hence|therefore|consequently|accordingly|which means|meaning|so that|then)"
)
_SUMS_UP = (
    r"all in all|altogether|in (?:conclusion|summary|short|total|other words)|"
    r"to (?:conclude|summari[sz]e|sum up)"
)
_LEADS = re.compile(
    rf"(?:(?:{_CONCLUDES}|and|finally|now|ultimately|overall|indeed|again|"
    rf"{_SUMS_UP}|(?:we|i) (?:get|have|find|conclude|see|know|think|believe)|"
    r"(?:this|it) (?:means|implies|follows|gives|shows|turns out)|that)\s+)*"
    r"(?:(?:the|my|our|your|its|this)\s+)?(?:(?:final|correct|right|required|requested|desired|exact|numerical|numeric|simplified|overall|"
    r"complete|full|only|actual|true|integer|corresponding|best|short|new|corrected|updated|revised)"
    r"\s+)*",
    re.IGNORECASE,
)
_ASIDE = re.compile(
    rf"(?:{_CONCLUDES}|and|finally|now|ultimately|overall|indeed|as a result|great|done|"
    rf"{_SUMS_UP}|(?:the )?(?:final )?answer|"
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
_OPTION = re.compile(r"\A(?:option|choice)\s+(?=\(?[A-J]\b)", re.IGNORECASE)
_REASON = re.compile(
    r",?\s+(?:because|since|as required|I hope)\b.*|,\s+(?:and\s+)?not\s.*", re.DOTALL
)
_COPULA = re.compile(r".*(?:\b(?:is|are|equals|equal to|get|gives|have|obtain)|[:\u21d2\u2234])\s+")
_TWO = re.compile(r"[0-9]|(?:\b(?:is|are|equals)\b|=).*(?:[,;]|\band\b)")  # a is p and b is
_LEAD = re.compile(
    r"\A(?:\s*,?\s*(?:so|therefore|thus|hence|then|finally|and|we|get|have|obtain|find|that|conclude|"
    r"either|gives|given by|it follows|simply|exactly|indeed|clearly),?\s+)+",
    re.IGNORECASE,
)
_SPANS = re.compile(r"\$([^$]+)\$|\\\((.+?)\\\)")
_DISPLAY = re.compile(r"(?:\\\[|\$\$)((?:(?!\\\[|\$\$).)*?)(?:\\\]|\$\$)\s*\Z", re.DOTALL)
# a sentence that gives its one value, here "#": after a verb or "total =", or at its beginning
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
# "2 boxes x 9 eggs = 18 eggs": the text before the last "=", and after it
_NUMBER = r"\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)%?"
_WORDS = r"(?:\s*/?\s*[a-z]+){0,3}\s*"
_SUM = re.compile(rf"[\d%)]{_WORDS}[-+*/x\u2013\u00d7\u00f7]\s*\(?\s*{_NUMBER}\)?{_WORDS}\Z")
_COMES_TO = re.compile(rf"\s*(-?{_NUMBER})(?![\w/^.])((?:\s+\(?[a-zA-Z'-]+\)?,?)*)\Z")
_HARMLESS = re.compile(r"\b(?:if|first|when|would|could|more|times\Z|all\Z|every)\b", re.IGNORECASE)
_PLAIN_NUMBER = re.compile(r"(?<![\w.,/^\\-])[-\u2212]?\$?[0-9](?:[0-9,./]*[0-9])?(?![\w/^%\\])")


def from_phrase(text: str, readable: Callable[[str], bool]) -> list[str] | None:
    """The answer after the last "answer is"; [] if it gives none, None without the phrase."""
    text = text[-TAIL:]
    match = None
    for match in _PHRASE.finditer(text):  # noqa: B007 - the last match counts
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
        return [] if OR_MORE.match(after) else [display[1].strip()]
    line = said.partition("\n")[0]
    said = sentence(line)
    if line[len(said) :].startswith(("?", "!")) or REGRET.search(text[match.end() :]):
        return []
    said = _trimmed(_LEAD.sub("", _REASON.sub("", _BOLD.sub(r"\1", said))))
    said = _OPTION.sub("", said)
    return [said] if readable(said) else _one(said, readable, "it is ") or [said]


def _leads(before: str) -> bool:
    """Whether the text before "answer" allows it to be the response's own answer."""
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
    """Strip the end of a sentence, and emphasis that began earlier."""
    return text.strip(' \n*"\u201c\u201d').rstrip(".").strip(' \n*"\u201c\u201d')


def sentence(text: str) -> str:
    """The first sentence of a line."""
    end = re.search(r"[.!?](?=[\s*$]*(?:\s[A-Z]|\Z))", text)
    return text if end is None else text[: end.start()]


def from_last(text: str, readable: Callable[[str], bool]) -> list[str] | None:
    """The value that the last sentence gives, if it is a single one; else []."""
    text = text[-TAIL:].strip()
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
        unsure = DOUBTS if clause[0].startswith(":") else _UNSURE  # "Hint: 7"
        if not unsure.search(said[: clause.start()]) and (found := _one(rest, readable, "it is ")):
            return found
    return []


def _worked_out(said: str) -> list[str]:
    """The result of a calculation at the end of a sentence."""
    left, sign, right = said.rpartition("=")
    value = _COMES_TO.match(right)
    if not sign or value is None or _SUM.search(left[-NEAR:]) is None or "\\" in said:
        return []
    before = _HARMLESS.sub("", left)
    if _UNSURE.search(before) or re.search(r"\b(?:because|since)\b", before, re.IGNORECASE):
        return []
    return [] if DOUBTS.search(_HARMLESS.sub("", value[2])) else [value[1].lstrip("$")]


def _one(said: str, readable: Callable[[str], bool], verb: str = "") -> list[str]:
    """The single value of a sentence, or of the text after a verb."""
    for candidate in (said, _LEAD.sub("", said, count=1)):
        if readable(candidate):
            return [candidate]
    said = verb + re.sub(r"\bevery (?=(?:day|week|month|year|hour|night|morning)\b)", "per ", said)
    if re.fullmatch(r"(?:(?:[^$]*[^$\d.])?\$\d)+[^$]*", said):  # prices, not mathematics
        said = said.replace("$", "")
    outside = _SPANS.sub(" ", said)
    if DOUBTS.search(re.sub(r"\\[A-Za-z]+", " ", outside)):
        return []
    copula = _COPULA.match(said)
    if copula and not _TWO.search(copula[0]) and readable(said[copula.end() :]):
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
    """Whether a sentence states its one value, "#", as its result."""
    return any(_SAYS.match(text) for text in (marked, _LEAD.sub("", marked, count=1)))
