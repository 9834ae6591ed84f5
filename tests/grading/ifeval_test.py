"""Grader "ifeval": every kind of instruction by hand, strict and loose, and against NLTK."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import json_lines
from entrostat.grading import GRADERS, check_answer, grade_here
from entrostat.grading.ifeval import (
    CHECKS,
    LANGUAGE,
    capital_words,
    count_sentences,
    needs,
    pack,
    readings,
)
from examples import examples
from paths import TESTS

GERMAN = "Das ist ein Satz in deutscher Sprache, und er ist lang genug, um erkannt zu werden."
ENGLISH = "This is a sentence in the English language that is long enough to be recognised."
# (kind, arguments, followed by, not followed by)
KINDS = [
    (
        "keywords:existence", {"keywords": ["cat", "dog"]},
        ["A Cat and a dog.", "dogs chase concatenation"], ["A cat.", ""],
    ),
    (
        # expressions, as in the authors' program; one that is none is a text
        "keywords:existence", {"keywords": ["a.c", "(x"]}, ["abc (x)"], ["ac (x)", "abc x)"],
    ),
    (
        "keywords:forbidden_words", {"forbidden_words": ["cats?"]}, ["scatter"], ["a cat", "CATS!"],
    ),
    (
        "keywords:frequency", {"keyword": "ha", "frequency": 3, "relation": "at least"},
        ["Ha ha, HA", "hahaha"], ["ha ha"],
    ),
    (
        "keywords:frequency", {"keyword": "ha", "frequency": 3, "relation": "less than"},
        ["ha ha", "x"], ["ha ha ha"],
    ),
    (
        "keywords:forbidden_words", {"forbidden_words": ["cat", "can't"]},
        ["category, concat", "cats"], ["the CAT.", "I can't", "cat-like"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "E", "let_frequency": 3, "let_relation": "at least"},
        ["eEe", "three knee"], ["bee"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "!", "let_frequency": 2, "let_relation": "less than"},
        ["one!"], ["two!!"],
    ),
    ("language:response_language", {"language": "de"}, [GERMAN], [ENGLISH]),
    (
        "length_constraints:number_sentences", {"num_sentences": 3, "relation": "at least"},
        ["One. Two! Three?", "Dr. No went. He left. I stayed."], ["One. Two.", "Mr. A. B. Cole."],
    ),
    (
        "length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"},
        ["One", "Only Mr. Cole here."], ["One. Two."],
    ),
    (
        "length_constraints:number_paragraphs", {"num_paragraphs": 2},
        ["a\n***\nb", "***\na\n\n***\n\nb\n***"], ["a", "a\n***\n\n***\nb", "a***b***c"],
    ),
    (
        "length_constraints:number_words", {"num_words": 4, "relation": "at least"},
        ["one two-three four"], ["one two three", "..."],
    ),
    (
        "length_constraints:number_words", {"num_words": 4, "relation": "less than"},
        ["one two three"], ["it's one two"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
        ["First.\n\nthen, more.", "First.\n\n\"Then\" more", "A\n\nTHEN"],
        ["First.\n\nThenceforth", "Then\n\nNow", "a\n\nb\n\nthen", "Then", "A\n\n\n\nthen"],
    ),
    (
        "detectable_content:number_placeholders", {"num_placeholders": 2},
        ["[name] [address] [x]", "[a\n[b] and [c]"], ["[name]", "[a\nb] [c]", "[ [ ["],
    ),
    (
        "detectable_content:postscript", {"postscript_marker": "P.S."},
        ["Bye.\nP.S. more", "p. s. more"], ["PS more", "P.S more"],
    ),
    (
        "detectable_content:postscript", {"postscript_marker": "P.P.S"},
        ["P.P.S. more", "p. p. s more", "p.p.s"], ["P.S. more"],
    ),
    (
        "detectable_format:number_bullet_lists", {"num_bullets": 2},
        ["* a\n* b", "- a\n  - b\ntext", "*a\n-b"], ["* a", "* a\n* b\n- c", "** a\n** b"],
    ),
    (
        "detectable_format:constrained_response", {},
        ["My answer is yes.", "Well. My answer is maybe. So."], ["my answer is yes.", "Yes."],
    ),
    (
        "detectable_format:number_highlighted_sections", {"num_highlights": 2},
        ["*a* and *b*", "**a** and *b*", "**a** **b**"], ["*a*", "** ** *a*", "*a\nb* *c*"],
    ),
    (
        "detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2},
        ["Section 1\na\nSection 2\nb", "Section1 Section 22"], ["Section 1", "SECTION 1 SECTION 2"],
    ),
    (
        "detectable_format:json_format", {},
        ['{"a": [1, 2]}', '```json\n{"a": 1}\n```', "```\n[]\n```", "3"],
        ["{a: 1}", "Here: {}", "[" * 100_000],
    ),
    (
        "detectable_format:title", {},
        ["<<A title>>\ntext", "x <<a>> y"],
        ["<< >>", "<a title>", "<<a title", "a title>>", "<<a\nb>>", ">><<", "<<>>"],
    ),
    (
        "combination:two_responses", {},
        ["a\n******\nb", "******a******b******"],
        ["a", "a******a", "a******b******c", "a************b"],
    ),
    (
        "combination:repeat_prompt", {"prompt_to_repeat": "Say this. "},
        ["say this. And then more", "\n Say this."], ["I say this.", "Say  this."],
    ),
    (
        "startend:end_checker", {"end_phrase": "Any questions?"},
        ["So.\nany questions?  ", '"Yes. Any questions?"'], ["Any questions? No."],
    ),
    ("startend:quotation", {}, ['"a"', ' "a "b" c"\n'], ['"a', '"', "'a'", 'a "b"']),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["NASA and the USA", "I am A-OK"], ["NASA", "Nasa Usa", "123 456"],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "less than"},
        ["NASA only"], ["NASA FBI"],
    ),
    (
        "change_case:english_lowercase", {}, [ENGLISH.lower()], [ENGLISH, GERMAN.lower()],
    ),
    (
        "change_case:english_capital", {}, ["THE WEATHER IS FINE TODAY AND I AM GOING HOME."],
        [ENGLISH],
    ),
    ("punctuation:no_comma", {}, ["a; b"], ["a, b"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "arguments", "followed", "broken"), KINDS)
def test_every_instruction(kind: str, arguments: dict, followed: list, broken: list) -> None:
    answer = pack([kind], [arguments])
    check_answer("ifeval", answer)
    for text in followed:
        assert grade_here("ifeval", text, answer) == 1, text
    for text in broken:
        assert grade_here("ifeval", text, answer) == 0, text


def test_the_twenty_five_kinds_are_there() -> None:
    assert {kind for kind, *_ in KINDS} == set(CHECKS)
    assert len(CHECKS) == 25
    assert set(CHECKS) > LANGUAGE


def test_strict_loose_and_share() -> None:
    """A preamble with a comma, and one line that says all."""
    both = pack(["punctuation:no_comma", "startend:end_checker"], [{}, {"end_phrase": "The end."}])
    text = "Sure, here it is:\n**The end.**"
    assert grade_here("ifeval", text, both) == 0
    assert grade_here("ifeval", text, both, {"share": True}) == 0
    assert grade_here("ifeval", text, both, {"loose": True}) == 1
    half = "Sure, here it is.\nThe end."
    assert grade_here("ifeval", half, both, {"share": True}) == 0.5
    # instructions may be followed in different readings, as in the authors' loose accuracy
    assert grade_here("ifeval", "a\nThe end.\nSure, yes", both, {"loose": True}) == 1
    assert grade_here("ifeval", "", pack(["punctuation:no_comma"], [{}])) == 0
    assert readings("*a*\nb\nc") == [
        "*a*\nb\nc", "b\nc", "*a*\nb", "b", "a\nb\nc", "b\nc", "a\nb", "b"
    ]  # fmt: skip


def test_arguments_of_the_data_sets_rows() -> None:
    """A row has a column for every argument there is; those of others are None."""
    row = {"num_words": 3, "relation": "at least", "keyword": None, "num_bullets": None}
    answer = pack(["length_constraints:number_words", "punctuation:no_comma"], [row, None])
    assert json.loads(answer) == [
        ["length_constraints:number_words", {"num_words": 3, "relation": "at least"}],
        ["punctuation:no_comma", {}],
    ]


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        ("no", r"grader 'ifeval' needs \[\[.*got 'no'"),
        ("[]", "needs"),
        ('[["punctuation:no_coma", {}]]', "Did you mean 'punctuation:no_comma'"),
        ('[["punctuation:no_comma", {"x": 1}]]', "takes no arguments, got {'x': 1}"),
        (
            '[["keywords:frequency", {"keyword": "a"}]]',
            "keywords:frequency takes keyword, frequency, relation, got",
        ),
        (
            '[["length_constraints:number_words", {"num_words": 1, "relation": "at most"}]]',
            "unknown relation 'at most'",
        ),
        ('[["keywords:existence", {"keywords": "cat"}]]', "a list of words"),
        ('[["length_constraints:number_words", {"num_words": "x", "relation": "less than"}]]', "x"),
    ],
)
def test_answers_that_are_none(answer: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        check_answer("ifeval", answer)


def test_what_cannot_be_graded_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert needs(["punctuation:no_comma", "language:response_language"]) == ""
    assert "not known" in needs(["keywords:rhyme"])
    monkeypatch.setattr("entrostat.grading.ifeval.find_spec", lambda name: None)
    assert "pip install langdetect" in needs(["change_case:english_capital"])
    assert needs(["punctuation:no_comma"]) == ""


@pytest.mark.parametrize(
    "piece", ["<<", "[", "*", "**", "a ", ". ", "Section ", "p. ", "\n", "-\n", '"', "A'LL ", "!?"]
)
def test_grading_is_linear(piece: str) -> None:
    text = piece * (40_000 // len(piece))
    began = time.process_time()
    for kind, arguments, *_ in KINDS:
        if kind not in LANGUAGE:
            grade_here("ifeval", text, pack([kind], [arguments]))
    assert time.process_time() - began < 2
    assert GRADERS["ifeval"].total


CAPITALS = st.lists(
    st.sampled_from(
        "HELLO NASA's U.S.A. (FBI) a-B 3D e-MAIL \"QUOTE\" I'LL DON'T CANNOT x: 10:30 1,000 Y; [Z] "
        "A&B C++ a**BOLD** #TAG @USER HEY! oh... NO--YES wait\u2014STOP it's ISN'T".split()
    ),
    max_size=8,
)


@settings(max_examples=examples(100), derandomize=True, deadline=None)
@given(CAPITALS)
def test_words_in_capitals_agree_with_nltk(words: list[str]) -> None:
    tokenize = pytest.importorskip("nltk.tokenize.destructive").NLTKWordTokenizer().tokenize
    text = " ".join(words)
    assert capital_words(text) == sum(token.isupper() for token in tokenize(text))


@pytest.mark.parametrize(
    "text",
    [
        "One sentence only",
        "It rains. It pours! Does it? Yes.",
        'He said "Stop." Then he left (at once.) Good.',
        "1. First item.\n2. Second item.\n",
        "A heading\n\nThen a text. And *more.* The end",
        "Wait... what? No... he left.",
        "It costs 3.50 dollars. See example.com for more.",
    ],
)
def test_sentences_agree_with_an_untrained_punkt(text: str) -> None:
    punkt = pytest.importorskip("nltk.tokenize.punkt")
    assert count_sentences(text) == len(punkt.PunktSentenceTokenizer().tokenize(text))


UPSTREAM = TESTS / "data" / "ifeval_upstream.jsonl"


def test_verdicts_are_those_of_the_authors_program() -> None:
    """Texts of ours; verdicts of lm-eval 0.4.13's checkers, with NLTK and its English Punkt."""
    rows = json_lines(UPSTREAM)
    assert len({name for name, *_ in rows}) == len(CHECKS)
    for name, arguments, text, verdict in rows:
        answer = json.dumps([[name, arguments]])
        assert grade_here("ifeval", text, answer) == verdict, (name, arguments, text)


@pytest.mark.parametrize("thought", ["<think>alpha, beta</think>\n\n", "alpha, beta</think>"])
def test_a_thought_is_taken_off(thought: str) -> None:
    no_comma, alpha = (
        pack(["punctuation:no_comma"], [{}]),
        pack(["keywords:existence"], [{"keywords": ["alpha"]}]),
    )
    assert grade_here("ifeval", thought + "I refuse.", no_comma) == 1
    assert grade_here("ifeval", thought + "I refuse.", alpha) == 0
    assert grade_here("ifeval", "<think>alpha I refuse.", alpha) == 0
    assert grade_here("ifeval", thought + "alpha<|im_end|>", alpha) == 1


def test_abbreviations_end_no_sentence() -> None:
    assert count_sentences("Mr. Smith and Dr. J. R. Cole met in the U.S. for tea. Fine.") == 2
    assert count_sentences("  ") == 0
