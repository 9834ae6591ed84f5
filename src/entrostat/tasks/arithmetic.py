"""`arithmetic`: sums and products with one right answer, few-shot.

The counterpart of `words`: here entropy only causes mistakes.
"""

from __future__ import annotations

import hashlib
import random
from functools import cache

from .._names import unknown
from .base import Example

# examples in the prompt, by number of digits; they are never asked
SHOWN: dict[int, tuple[tuple[int, int], ...]] = {
    1: ((3, 4), (6, 2), (5, 9), (8, 3)),
    2: ((23, 45), (61, 17), (38, 52), (74, 29)),
    3: ((231, 458), (614, 172), (385, 529), (746, 293)),
    4: ((2314, 4581), (6142, 1723), (3857, 5294), (7461, 2938)),
}
SIGNS = {"sum": ("+",), "product": ("x",), "both": ("+", "x")}
TEST = 256  # most prompts of the split `test`


class Arithmetic:
    """Prompt: four worked lines such as `3 + 4 = 7`, then `8 + 7 =`; right is the number alone.

    Both operands have `digits` digits, without a leading 0. A pair of operands belongs to `train`
    (three in four) or to `test` by a hash of the two, in whichever order and with whichever sign,
    so that neither depends on the seed and no test prompt is trained on. `test` has up to 256
    different prompts, but no more than 50 for one digit.

    Difficulty: SmolLM2-135M is right on .43 of the sums and .48 of the products of one digit, and
    on .14 of the sums of two. The prompt is plain text, also for a chat model.

    Args:
        seed: seed of the training prompts.
        digits: digits of each operand, 1 to 4.
        operation: "sum", "product" (written 7 x 8) or "both".
    """

    name = "arithmetic"
    splits: tuple[str, ...] = ("train", "test")
    stop: tuple[str, ...] = ("\n",)
    chat = False

    def __init__(self, seed: int = 0, digits: int = 1, operation: str = "both") -> None:
        if type(digits) is not int or digits not in SHOWN:
            raise ValueError(
                f"arithmetic: digits must be a whole number from 1 to 4, got {digits!r}; each more "
                "makes the task harder"
            )
        if operation not in SIGNS:
            raise ValueError(f"arithmetic: {unknown('operation', str(operation), SIGNS)}")
        self.seed, self.digits, self.operation = seed, digits, operation
        signs = SIGNS[operation]
        pairs = enumerate(SHOWN[digits])
        self._shown = [_line(a, signs[i % len(signs)], b) for i, (a, b) in pairs]
        self._test = held_out(digits, operation)

    def max_new_tokens(self, split: str) -> int:
        """Digits of the longest answer, a space, a newline, and two spare tokens."""
        longest = self.digits + 1 if self.operation == "sum" else 2 * self.digits
        return longest + 4

    def size(self, split: str) -> int | None:
        return None if split == "train" else len(self._test)

    def example(self, index: int, split: str) -> Example:
        if split == "train":
            rng = random.Random(f"arithmetic/{self.seed}/train/{index}")
            asked = draw(rng, split, self.digits, self.operation)
        else:
            asked = self._test[index]
        question, _, answer = _line(*asked).partition(" = ")
        prompt = "\n".join([*self._shown, f"{question} ="])
        return Example(prompt, answer=answer, data={"label": question})

    def score(self, completion: str, example: Example) -> float:
        return float(self.canonical(completion) == example.answer)

    def canonical(self, completion: str) -> str:
        return completion.strip()


def draw(rng: random.Random, split: str, digits: int, operation: str) -> tuple[int, str, int]:
    """Operands and an operator of a split, uniform over those that may be asked."""
    low, high = 10 ** (digits - 1), 10**digits - 1
    while True:
        a, b = rng.randint(low, high), rng.randint(low, high)
        if split_of(a, b) == split and not {(a, b), (b, a)} & set(SHOWN[digits]):
            return a, rng.choice(SIGNS[operation]), b


@cache
def held_out(digits: int, operation: str) -> tuple[tuple[int, str, int], ...]:
    rng = random.Random(f"arithmetic/test/{digits}/{operation}")
    # if there are fewer than TEST prompts, this many draws find them all
    found = dict.fromkeys(draw(rng, "test", digits, operation) for _ in range(10 * TEST))
    return tuple(found)[:TEST]


def split_of(a: int, b: int) -> str:
    pair = f"{min(a, b)} {max(a, b)}".encode()
    return "test" if hashlib.sha256(pair).digest()[0] % 4 == 0 else "train"


def _line(a: int, sign: str, b: int) -> str:
    return f"{a} {sign} {b} = {a + b if sign == '+' else a * b}"
