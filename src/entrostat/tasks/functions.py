"""`functions`: one-line Python functions, few-shot, tested in the sandbox.

The easiest code task, for policies of a hundred million parameters: one line describes the
function, and three examples show how such lines become code.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from .base import Example
from .convert import asserts
from .jsonl import Graded

TEST = 128  # prompts of the split `test`
SHOWN = """\
# add 12 to x
def add_12(x):
    return x + 12

# the last element of the list xs
def last_element(xs):
    return xs[-1]

# True if a is less than b plus 11, else False
def is_less_than_plus_11(a, b):
    return a < b + 11

"""
_NUMBERS = (-7, 0, 2, 5, 10, 31)
_LISTS = ([4, 1, 3, 2, 9, 7], [0, 5, -2, 8, 8, 1], [6, 6, 6, 6, 6, 6, 2])
_TEXTS = ("banana", "Hello world", "entropy")
_PAIRS = ((1, 2), (9, 4), (-3, 5), (6, 6))


class Kind(NamedTuple):
    """A family of functions, one per number k."""

    words: str  # description
    name: str
    parameters: str
    right: Callable[..., Any]  # (k, arguments) -> expected result
    inputs: tuple[Any, ...]  # test inputs: one argument each, or a tuple of arguments
    numbers: range  # values of k


_FEW, _MANY = range(2, 6), range(1, 100)
KINDS = (
    Kind("add {k} to x", "add_{k}", "x", lambda k, x: x + k, _NUMBERS, _MANY),
    Kind("subtract {k} from x", "subtract_{k}", "x", lambda k, x: x - k, _NUMBERS, _MANY),
    Kind("multiply x by {k}", "times_{k}", "x", lambda k, x: x * k, _NUMBERS, _MANY),
    Kind("subtract x from {k}", "from_{k}", "x", lambda k, x: k - x, _NUMBERS, _MANY),
    Kind("the square of x, plus {k}", "square_plus_{k}", "x", lambda k, x: x * x + k, _NUMBERS,
         _MANY),
    Kind("the remainder of x divided by {k}", "remainder_{k}", "x", lambda k, x: x % k, _NUMBERS,
         range(2, 30)),
    Kind("True if x is greater than {k}, else False", "is_greater_than_{k}", "x",
         lambda k, x: x > k, (-7, 0, 1, 50, 99, 100), _MANY),
    Kind("True if x is divisible by {k}, else False", "is_divisible_by_{k}", "x",
         lambda k, x: x % k == 0, (0, 6, 7, 10, 12, 35, 60), range(2, 30)),
    Kind("the larger of x and {k}", "at_least_{k}", "x", lambda k, x: max(x, k),
         (-7, 0, 1, 50, 99, 100), _MANY),
    Kind("the sum of a and b, plus {k}", "sum_plus_{k}", "a, b", lambda k, a, b: a + b + k, _PAIRS,
         _MANY),
    Kind("the product of a and b, plus {k}", "product_plus_{k}", "a, b",
         lambda k, a, b: a * b + k, _PAIRS, _MANY),
    Kind("the first {k} elements of the list xs", "first_{k}", "xs", lambda k, xs: xs[:k], _LISTS,
         _FEW),
    Kind("the list xs without its first {k} elements", "without_first_{k}", "xs",
         lambda k, xs: xs[k:], _LISTS, _FEW),
    Kind("the sum of the list xs, plus {k}", "sum_of_list_plus_{k}", "xs",
         lambda k, xs: sum(xs) + k, _LISTS, _MANY),
    Kind("the number of elements of xs that are equal to {k}", "count_{k}", "xs",
         lambda k, xs: xs.count(k), _LISTS, range(1, 10)),
    Kind("the string s repeated {k} times", "repeat_{k}", "s", lambda k, s: s * k, _TEXTS, _FEW),
    Kind("the first {k} letters of the string s", "first_{k}_letters", "s", lambda k, s: s[:k],
         _TEXTS, _FEW),
    Kind("the length of the string s, plus {k}", "length_plus_{k}", "s", lambda k, s: len(s) + k,
         _TEXTS, _MANY),
)  # fmt: skip


class Functions(Graded):
    """Prompt: three worked functions, then a comment that describes a fourth, and its first line.

    The completion is the rest of the function, up to an empty line or the next comment or `def`. It
    is tested in the sandbox with three to seven inputs. By a hash, one in four of the 1,170
    functions belongs to the split `test` and is never trained on; 128 of them are asked. The
    prompt is plain text, also for a chat model.

    Args:
        seed: seed of the training prompts.
        reward: "all" for 1 if every test passes, else 0; "share" for the share that pass.
    """

    name = "functions"
    splits: tuple[str, ...] = ("train", "test")
    stop: tuple[str, ...] = ("\n\n", "\n#", "\ndef")
    chat = False

    def __init__(self, seed: int = 0, reward: str = "all") -> None:
        if reward not in ("all", "share"):
            raise ValueError(f'functions: reward must be "all" or "share", got {reward!r}')
        self.seed = seed
        self._grader, self._options = "code", {"reward": reward}

    def max_new_tokens(self, split: str) -> int:
        return 32

    def size(self, split: str) -> int | None:
        return None if split == "train" else TEST

    def example(self, index: int, split: str) -> Example:
        if split == "train":
            rng = random.Random(f"functions/{self.seed}/train/{index}")
            kind, k = drawn(rng, split)
        else:
            kind, k = held_out()[index]
        words = kind.words.format(k=k)
        prompt = f"{SHOWN}# {words}\n{_begun(kind, k)}"
        return Example(prompt, tests(kind, k), {"label": words})

    def canonical(self, completion: str) -> str:
        return completion.strip()


def tests(kind: Kind, k: int) -> str:
    name, listed = kind.name.format(k=k), []
    for given in kind.inputs:
        arguments = given if isinstance(given, tuple) else (given,)
        shown = ", ".join(map(repr, arguments))
        # compare type and value: True is not 1
        right = repr(kind.right(k, *arguments))
        listed.append(f"assert repr({name}({shown})) == {right!r}")
    return asserts(listed, _begun(kind, k))


def _begun(kind: Kind, k: int) -> str:
    return f"def {kind.name.format(k=k)}({kind.parameters}):\n"


def drawn(rng: random.Random, split: str) -> tuple[Kind, int]:
    """Draw a kind, uniformly, and a function of that kind in a split."""
    while True:
        kind = rng.choice(KINDS)
        k = rng.choice(kind.numbers)
        if split_of(kind, k) == split:
            return kind, k


@cache
def held_out() -> tuple[tuple[Kind, int], ...]:
    rng = random.Random("functions/test")
    found: dict[str, tuple[Kind, int]] = {}
    while len(found) < TEST:
        kind, k = drawn(rng, "test")
        found[kind.name.format(k=k)] = kind, k
    return tuple(found.values())


def split_of(kind: Kind, k: int) -> str:
    digest = hashlib.sha256(f"{kind.name} {k}".encode()).digest()
    return "test" if digest[0] % 4 == 0 else "train"
