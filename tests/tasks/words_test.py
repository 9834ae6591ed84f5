"""The tasks `words` and `arithmetic`: what is right, how often what is asked, what is held out."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import entrostat as es
from entrostat.tasks import arithmetic, words
from entrostat.tasks.arithmetic import Arithmetic, split_of
from entrostat.tasks.words import LETTERS, Words, dictionary

H = es.Example("", answer="H")
NASTY = [
    "", " ", "\0", "\ud800", "house\nhat", "house.", "<b>house</b>", "$\\frac{", "\uff48ouse",
    "\u0664", "\u00b2", "1" * 10_000, "house " * 1000, "'; DROP TABLE", "\u202ehouse",
    "__import__('os')",
]  # fmt: skip


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        (" house", 1),
        ("House", 1),
        ("  HYDROGEN ", 1),
        ("house", 1),
        ("bread", 0),  # another letter
        ("houses", 0),  # not its base form
        ("he", 0),  # two letters
        ("Hannibal", 0),  # a name
        ("hypochondriac", 0),  # 13 letters
        ("house hat", 0),
        ("house.", 0),
        ("house, a building", 0),
        ("hoberbilanara", 0),
        ("h\u00f4tel", 0),
        ("hou\u017fe", 0),  # a long s
        ("", 0),
    ],
)
def test_words_verifies(completion: str, reward: float) -> None:
    assert Words().score(completion, H) == reward


def test_a_kelvin_sign_is_no_letter() -> None:
    kangaroo = es.Example("", answer="K")
    assert Words().score("kangaroo", kangaroo) == 1
    assert Words().score("\u212aangaroo", kangaroo) == 0


def test_words_prompts() -> None:
    task = es.make_task("words", seed=3)
    assert isinstance(task, es.Task)
    example = task.example(7, "test")
    assert example.prompt == (
        "A word that starts with B: bread\nA word that starts with Q: queen\n"
        "A word that starts with X: xylophone\nA word that starts with Z: zebra\n"
        "A word that starts with I:"
    )
    assert (example.answer, example.data["label"]) == ("I", "I")
    assert (task.size("train"), task.size("test")) == (None, 22)
    assert [task.example(i, "test").answer for i in range(22)] == list(LETTERS)
    assert set(LETTERS).isdisjoint(words.SHOWN)
    assert task.stop == ("\n",)
    assert all(
        task.score(word, es.Example("", answer=letter)) == 1 for letter, word in words.SHOWN.items()
    )


def test_every_letter_has_many_words() -> None:
    times = Counter(word[0] for word in dictionary())
    assert min(times[letter.lower()] for letter in LETTERS) > 400
    assert all(3 <= len(word) <= 10 for word in dictionary())
    assert len(dictionary()) > 130_000


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 10**6))
def test_every_letter_comes_once_a_round(seed: int, turn: int) -> None:
    task = Words(seed)
    letters = [task.example(22 * turn + i, "train").answer for i in range(22)]
    assert sorted(letters) == list(LETTERS)


def test_rounds_differ_by_seed_and_turn() -> None:
    orders = {
        tuple(Words(seed).example(22 * turn + i, "train").answer for i in range(22))
        for seed, turn in itertools.product(range(3), range(3))
    }
    assert len(orders) == 9
    assert Words(1).example(100, "train") == Words(1).example(100, "train")


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.sampled_from(sorted(dictionary())), st.booleans(), st.sampled_from(["", " ", "  ", "\t"]))
def test_a_word_is_right_for_its_letter_alone(word: str, upper: bool, blank: str) -> None:
    task = Words()
    said = blank + (word.upper() if upper else word) + blank
    assert [c for c in words.ascii_uppercase if task.score(said, es.Example("", c))] == [
        word[0].upper()
    ]
    assert task.canonical(said) == word
    for mutated in (word + "!", word + "q" * 8, f"{word} {word}", word[:1], f"{word}\n{word}"):
        assert task.score(mutated, es.Example("", word[0].upper())) == 0


@pytest.mark.parametrize("task", [Words(), Arithmetic(), Arithmetic(digits=4)])
def test_nasty_text_scores_0(task: Words | Arithmetic) -> None:
    for text in NASTY:
        assert task.score(text, task.example(0, "test")) == 0
        assert isinstance(task.canonical(text), str)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.text(max_size=30))
def test_no_text_raises(text: str) -> None:
    for task in (Words(), Arithmetic()):
        assert task.score(text, task.example(0, "test")) in (0, 1)


def test_arithmetic_prompts() -> None:
    task = es.make_task("arithmetic", digits=2)
    assert isinstance(task, es.Task)
    example = task.example(0, "test")
    assert example.prompt == (
        f"23 + 45 = 68\n61 x 17 = 1037\n38 + 52 = 90\n74 x 29 = 2146\n{example.data['label']} ="
    )
    a, sign, b = example.data["label"].split()
    assert example.answer == str(int(a) + int(b) if sign == "+" else int(a) * int(b))
    assert "+" not in Arithmetic(operation="product").example(0, "train").prompt
    assert "x" not in Arithmetic(operation="sum").example(0, "train").prompt
    assert (task.size("train"), task.size("test")) == (None, 256)
    assert Arithmetic().size("test") == 50
    assert [Arithmetic(digits=d).max_new_tokens("test") for d in (1, 2, 3, 4)] == [6, 8, 10, 12]
    assert Arithmetic(digits=2, operation="sum").max_new_tokens("train") == 7


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        (" 1083", 1), ("1083", 1), ("1083 ", 1), ("1,083", 0), ("+1083", 0), ("-1083", 0),
        ("1083.0", 0), ("01083", 0), ("1083 1", 0), ("1_083", 0), ("\u0661083", 0),
        ("10\u00b383", 0), ("", 0),
    ],
)  # fmt: skip
def test_arithmetic_verifies(completion: str, reward: float) -> None:
    assert Arithmetic().score(completion, es.Example("", answer="1083")) == reward


@pytest.mark.parametrize("digits", [1, 2, 3, 4])
@pytest.mark.parametrize("operation", ["sum", "product", "both"])
def test_what_is_tested_is_never_trained_on(digits: int, operation: str) -> None:
    def pairs(task: Arithmetic, split: str, n: int) -> set[frozenset[str]]:
        labels = [task.example(i, split).data["label"].split() for i in range(n)]
        return {frozenset((a, b)) for a, _, b in labels}

    task = Arithmetic(0, digits, operation)
    size = task.size("test")
    assert size is not None
    test = pairs(task, "test", size)
    worked = {frozenset(map(str, pair)) for pair in arithmetic.SHOWN[digits]}
    assert len(worked) == 4
    for seed in (0, 1):
        train = pairs(Arithmetic(seed, digits, operation), "train", 300)
        assert test.isdisjoint(train)
        assert worked.isdisjoint(train | test)
    assert len({task.example(i, "test").prompt for i in range(size)}) == size
    other = Arithmetic(5, digits, operation)
    assert [other.example(i, "test") for i in range(size)] == [
        task.example(i, "test") for i in range(size)
    ]


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.integers(1, 4), st.sampled_from(["sum", "product", "both"]), st.integers(0, 10**9))
def test_the_answer_is_right_and_another_is_not(digits: int, operation: str, index: int) -> None:
    task = Arithmetic(0, digits, operation)
    example = task.example(index, "train")
    a, sign, b = example.data["label"].split()
    assert len(a) == len(b) == digits
    assert split_of(int(a), int(b)) == split_of(int(b), int(a)) == "train"
    value = int(a) + int(b) if sign == "+" else int(a) * int(b)
    assert task.score(f" {value}", example) == 1
    place = random.Random(index).randrange(len(str(value)))
    wrong = list(str(value))
    wrong[place] = str((int(wrong[place]) + 1) % 10)
    for text in ("".join(wrong), f"{value}0", f"0{value}", f"{value:,}."):
        assert task.score(text, example) == 0


def test_a_quarter_of_the_pairs_is_held_out() -> None:
    pairs = itertools.combinations_with_replacement(range(10, 100), 2)
    splits = Counter(itertools.starmap(split_of, pairs))
    assert splits["test"] / splits.total() == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"digits": 0}, "digits must be a whole number from 1 to 4, got 0"),
        ({"digits": 5}, "digits must be a whole number from 1 to 4, got 5"),
        ({"digits": 1.0}, r"digits must be a whole number from 1 to 4, got 1\.0"),
        ({"digits": True}, "digits must be a whole number from 1 to 4, got True"),
        ({"digits": "1"}, "digits must be a whole number from 1 to 4, got '1'"),
        ({"operation": "sums"}, "unknown operation 'sums'. Did you mean 'sum'"),
        ({"operation": None}, "unknown operation 'None'"),
        ({"digit": 1}, "Did you mean 'digits'"),
    ],
)
def test_bad_parameters_are_errors_of_one_line(params: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match) as error:
        es.make_task("arithmetic", **params)
    assert "\n" not in str(error.value)
