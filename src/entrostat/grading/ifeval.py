"""Grader "ifeval": instructions that rules can verify (Zhou et al., 2311.07911).

The 25 kinds of IFEval, reimplemented from the paper and its data. Differences from the authors'
program:

- a keyword that is no valid regular expression is literal; any character may count as a letter;
- the thinking part of a response is removed first;
- sentences are counted by Punkt's rules and abbreviations alone, words in capitals by rules that
  agree with NLTK's word tokenizer;
- langdetect has a fixed seed; without the package, rows that need it are left out.

All checks take time linear in the response, except for a data set's own regular expressions.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from .._names import unknown
from .texts import spoken

RELATIONS = ("less than", "at least")
_MOST_READ = 10_000  # characters used to detect the language
ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
# English data of the tokenizer that IFEval's authors use (Punkt, Kiss and Strunk 2006)
_ABBREVIATIONS = frozenset(
    """c d e f g h k l m n p r s t v w adm ala ariz aug ave bros calif chg cie co col colo conn corp
    cos ct dec dr feb fla fri ft ga gen ill inc jan jr kan ky lt ltd maj messrs mg mich minn mr mrs
    ms nev nov oct ok okla ore pa prof rep reps sen sep sept sr st sw tenn tues va vs vt wash wed
    wis yr ph.d a.a a.c a.d a.g a.h a.m a.m.e a.s a.t b.f b.v c.i.t c.o.m.b c.v d.c d.h d.w e.f e.h
    e.l e.m f.g f.j g.d g.f g.k h.c h.f h.m i.m.s j.b j.c j.j j.k j.p j.r l.a l.f l.p m.b.a m.d.c
    m.j n.c n.d n.h n.j n.m n.v n.y p.a.m p.m r.a r.h r.i r.j r.k r.t s.a s.a.y s.c s.g s.p.a s.s
    t.j u.k u.n u.s u.s.a u.s.s.r w.c w.r w.va w.w""".split()
)
_STARTERS = frozenset(
    """according although among both but despite even he however i if in indeed instead it many
    meanwhile moreover most nevertheless nonetheless nor sales separately similarly since so some
    the there these they this though thus under when while yet""".split()
)
_COMMON = _STARTERS - {"i"} | frozenset(
    """a all an and any are as at be by can do find first for from given has have how is let no not
    note of on one or our she then to what where which with yes you""".split()
)
_END = re.compile(r"[.?!](?=(?P<after>[)\";}\]*:@'({\[!?])|\s+(?P<next>\S+))")
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*\.")
_CLOSERS = re.compile(r"[\"')\]}]+(?=\s|--|\Z)")
_APART = re.compile(
    r"\s|[;@#$%&*?!\"()\[\]{}<>\u2014\u2026\u201c\u201d]|[,:](?!\d)|--|\.{2,}|``|''"
)
_CONTRACTED = re.compile(
    r"(?<=\w)(n't|'(?:s|m|d|re|ve|ll))(?=\.*\Z)|(?<=\Acan)(not)\Z", re.IGNORECASE
)

Check = Callable[..., bool]


def grade_ifeval(response: str, answer: str, *, loose: bool = False, share: bool = False) -> float:
    """1 if a response follows all instructions of `answer` (see `pack`): prompt-level, strict.

    Args:
        response: the policy's full response.
        answer: instructions with their arguments.
        loose: an instruction also counts if one of eight variants of the response follows it: all
            of it, or without the first line, the last or both; each with and without asterisks.
        share: return the share of instructions followed.
    """
    said = spoken(response)
    said = said if said == response else said.strip()
    texts = readings(said) if loose else [said]
    followed = [
        any(text.strip() and CHECKS[name](text, **arguments) for text in texts)
        for name, arguments in json.loads(answer)
    ]
    return sum(followed) / len(followed) if share else float(all(followed))


def check_ifeval(answer: str, *, loose: bool = False, share: bool = False) -> None:
    """Raise ValueError unless the answer is a list of known instructions with valid arguments."""
    try:
        instructions = [(str(name), dict(arguments)) for name, arguments in json.loads(answer)]
    except (ValueError, TypeError):
        instructions = []
    if not instructions:
        raise ValueError(
            'needs [["punctuation:no_comma", {}], ...], instructions with their arguments, got '
            f"{answer!r:.80}"
        )
    for name, arguments in instructions:
        if name not in CHECKS:
            raise ValueError(unknown("instruction", name, CHECKS))
        try:
            CHECKS[name]("A word.", **arguments)
        except Exception as error:  # a wrong argument may raise any type
            known = list(inspect.signature(CHECKS[name]).parameters)[1:]
            wants = ", ".join(known) or "no arguments"
            raise ValueError(f"{name} takes {wants}, got {arguments!r:.80}: {error}") from None


def pack(names: Sequence[str], arguments: Sequence[Mapping[str, Any] | None]) -> str:
    """Encode IFEval's instructions and arguments as an expected answer.

    Arguments that are None are dropped: the data set's rows have a column for every argument.
    """
    given = [{k: v for k, v in (one or {}).items() if v is not None} for one in arguments]
    return json.dumps(list(zip(names, given, strict=True)))


def needs(names: Iterable[str]) -> str:
    """Why instructions cannot be graded here; "" if they can."""
    for name in names:
        if name not in CHECKS:
            return f"instruction {name} is not known"
        if name in LANGUAGE and find_spec("langdetect") is None:
            return "a language is asked for: pip install langdetect"
    return ""


def readings(response: str) -> list[str]:
    lines = response.split("\n")
    cut = [lines[1:], lines[:-1], lines[1:-1]]
    texts = [response, *("\n".join(rest).strip() for rest in cut)]
    return [*texts, *(text.replace("*", "") for text in texts)]


def count_sentences(text: str) -> int:
    """Number of sentences, by Punkt's rules and English abbreviations.

    Punkt's model has data on 20,000 words; only the most common of them are included here.
    """
    count, begun, word, breaks, last = 0, 0, 0, False, 0
    ends = list(_END.finditer(text))
    for place, end in enumerate(ends):
        blanks = list(re.finditer(r"\s", text[last : end.start()]))
        word, breaks = (last + blanks[-1].end(), False) if blanks else (word, breaks)
        last = end.end()
        breaks = breaks or _ends_sentence(text[max(word, last - 99) : last], end)
        if place + 1 < len(ends) and not re.search(r"\s", text[last : ends[place + 1].start()]):
            continue  # more stops follow in the same word
        if breaks:
            closers = _CLOSERS.match(text, last)
            stop = last if closers is None else closers.end()
            count += bool(text[begun:stop].strip())
            begun = max(begun, stop)
    return count + bool(text[begun:].strip())


def _ends_sentence(word: str, end: re.Match[str]) -> bool:
    """Whether a stop ends a sentence; `word` is the text up to and including it."""
    if end[0] != ".":
        return True
    token = re.split(r"[)\";}\]*:@({\[!?\s]|(?=')", word)[-1].lstrip("`&#-,")
    following = (end["next"] or end["after"]).lstrip("([{`\"'*#&")
    upper, lower = following[:1].isupper(), following[:1].islower()
    word, after = token[:-1].lower(), re.split(r"[^\w'-]", following.lower())[0]
    if token.endswith(".."):
        return upper and after in _STARTERS | {"yes"}
    if len(word) == 1 and word.isalpha():
        return word not in _ABBREVIATIONS and not lower and not (upper and after not in _COMMON)
    if _NUMBER.fullmatch(token):
        return not lower and following[:1] not in (";", ":", ",", ".", "!", "?")
    if word in _ABBREVIATIONS or word.rpartition("-")[2] in _ABBREVIATIONS:
        return upper and after in _STARTERS
    return True


def capital_words(text: str) -> int:
    """Number of words in capitals. A hyphenated word is one; DON'T is two, DO and N'T."""
    words = (piece for piece in _APART.split(text) if piece)
    return sum(part.isupper() for word in words for part in _CONTRACTED.sub(r" \1\2", word).split())


def _compare(count: int, relation: str, threshold: float) -> bool:
    if relation not in RELATIONS:
        raise ValueError(unknown("relation", str(relation), RELATIONS))
    return count < threshold if relation == "less than" else count >= threshold


def _occurrences(text: str, words: Sequence[str], pattern: str = "%s") -> list[int]:
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise ValueError("a list of words is needed")
    return [len(re.findall(pattern % _expression(word), text, re.IGNORECASE)) for word in words]


def _expression(word: str) -> str:
    """A data set's word as a regular expression; escaped if it is not a valid one."""
    try:
        re.compile(word)
    except re.error:
        return re.escape(word)
    return word


def _parts(text: str, mark: str) -> list[str]:
    """The parts between marks; empty if an inner part is empty."""
    first, *inner = map(str.strip, re.split(mark, text))
    last = inner.pop() if inner else ""
    return [part for part in (first, *inner, last) if part] if all(inner) else []


def _first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Check the number of paragraphs between empty lines, and the first word of one of them."""
    parts = text.split("\n\n")
    if sum(map(bool, map(str.strip, parts))) != num_paragraphs or nth_paragraph > num_paragraphs:
        return False
    words = parts[int(nth_paragraph) - 1].split()
    word = words[0].lstrip("'").lstrip('"') if words else ""
    return re.split(r"[.,?!'\"]", word)[0].lower() == first_word.strip().lower() != ""


def _postscript(text: str, postscript_marker: str) -> bool:
    marker = postscript_marker.strip()
    patterns = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return re.search(patterns.get(marker, _expression(marker.lower())), text.lower()) is not None


def _bullets(text: str, num_bullets: int) -> bool:
    """Count bullets; a lone "*" includes the next line, as in the authors' program."""
    found = (re.findall(rf"^[^\S\n]*{sign}", text, re.MULTILINE) for sign in (r"\*[^*].*$", "-"))
    return sum(map(len, found)) == num_bullets


def _highlights(text: str, num_highlights: int) -> bool:
    found = re.findall(r"\*[^\n*]*\*", text) + re.findall(r"\*\*[^\n*]*\*\*", text)
    return sum(bool(one.strip("*").strip()) for one in found) >= num_highlights


def _json(text: str) -> bool:
    text = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _title(text: str) -> bool:
    for line in text.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if 0 <= start < end - 2 and line[start : end + 2].lstrip("<").rstrip(">").strip():
            return True
    return False


def _detect(text: str) -> str | None:
    """The language's ISO 639-1 code; None if it cannot be detected."""
    from langdetect import DetectorFactory, LangDetectException, detect

    DetectorFactory.seed = 0  # detection is random otherwise
    try:
        return detect(text[:_MOST_READ])
    except LangDetectException:
        return None


CHECKS: dict[str, Check] = {
    "keywords:existence": lambda text, keywords: all(_occurrences(text, keywords)),
    "keywords:frequency": lambda text, keyword, frequency, relation: _compare(
        _occurrences(text, [keyword.strip()])[0], relation, frequency
    ),
    "keywords:forbidden_words": lambda text, forbidden_words: (
        not any(_occurrences(text, forbidden_words, r"\b%s\b"))
    ),
    "keywords:letter_frequency": lambda text, letter, let_frequency, let_relation: _compare(
        text.lower().count(letter.strip().lower()), let_relation, let_frequency
    ),
    "language:response_language": lambda text, language: _detect(text) in (None, language),
    "length_constraints:number_sentences": lambda text, num_sentences, relation: _compare(
        count_sentences(text), relation, num_sentences
    ),
    "length_constraints:number_paragraphs": lambda text, num_paragraphs: (
        len(_parts(text, r"\s?\*\*\*\s?")) == num_paragraphs
    ),
    "length_constraints:number_words": lambda text, num_words, relation: _compare(
        len(re.findall(r"\w+", text)), relation, num_words
    ),
    "length_constraints:nth_paragraph_first_word": _first_word,
    "detectable_content:number_placeholders": lambda text, num_placeholders: (
        sum("[" in one for line in text.split("\n") for one in line.split("]")[:-1])
        >= num_placeholders
    ),
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:constrained_response": lambda text: any(one in text for one in ANSWERS),
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:multiple_sections": lambda text, section_spliter, num_sections: (
        len(re.findall(rf"{_expression(section_spliter.strip())}\s?\d+", text)) >= num_sections
    ),
    "detectable_format:json_format": _json,
    "detectable_format:title": _title,
    "combination:two_responses": lambda text: (
        len(parts := _parts(text, r"\*{6}")) == 2 and parts[0] != parts[1]
    ),
    "combination:repeat_prompt": lambda text, prompt_to_repeat: (
        text.strip().lower().startswith(prompt_to_repeat.strip().lower())
    ),
    "startend:end_checker": lambda text, end_phrase: (
        text.strip().strip('"').lower().endswith(end_phrase.strip().lower())
    ),
    "startend:quotation": lambda text: re.fullmatch('\\s*".*"\\s*', text, re.DOTALL) is not None,
    "change_case:capital_word_frequency": lambda text, capital_frequency, capital_relation: (
        _compare(capital_words(text), capital_relation, capital_frequency)
    ),
    "change_case:english_capital": lambda text: text.isupper() and _detect(text) in (None, "en"),
    "change_case:english_lowercase": lambda text: text.islower() and _detect(text) in (None, "en"),
    "punctuation:no_comma": lambda text: "," not in text,
}
LANGUAGE = frozenset(
    {"language:response_language", "change_case:english_capital", "change_case:english_lowercase"}
)
