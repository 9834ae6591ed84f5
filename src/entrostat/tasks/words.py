"""`words`: a word that starts with a given letter.

Hundreds of answers are right, so entropy is what the policy still can say: a policy that has
collapsed names the same word for a letter every time and is right as often as one that has not.
"""

from __future__ import annotations

import random
from functools import cache
from string import ascii_uppercase

from ..errors import need
from .base import Example

# B as in what was measured; Q, X and Z because hardly a word in use begins with them: with
# them among the letters asked, part of the distinct right answers would say how rare a letter is
SHOWN = {"B": "bread", "Q": "queen", "X": "xylophone", "Z": "zebra"}
LETTERS = tuple(letter for letter in ascii_uppercase if letter not in SHOWN)
LINE = "A word that starts with {}:"


class Words:
    """Prompt: four such lines with their word, then `A word that starts with L:`.

    Right is one word and nothing else: letters only, at least three, the first of them L, and in
    the dictionary; upper and lower case are the same. Without a dictionary a policy drifts to
    words of its own. The dictionary is reasoning-gym's list `words3to10.txt`: 132,000 English words
    of 3 to 10 letters without proper names, rare ones too, in their base form (`house`, not
    `houses`). Of the 26 letters 22 are asked: not the four shown, see `SHOWN`.

    The prompt is plain text, also for a chat model.

    Args:
        seed: of the order of the training letters. They come in shuffled rounds of all 22, so that
            every letter comes equally often; `test` is the 22 letters from A on, once each.
    """

    name = "words"
    splits: tuple[str, ...] = ("train", "test")
    stop: tuple[str, ...] = ("\n",)
    chat = False

    def __init__(self, seed: int = 0) -> None:
        need("tasks", "task 'words'", "reasoning_gym")  # for the dictionary
        self.seed = seed

    def max_new_tokens(self, split: str) -> int:
        return 8

    def size(self, split: str) -> int | None:
        return None if split == "train" else len(LETTERS)

    def example(self, index: int, split: str) -> Example:
        letters = list(LETTERS)
        if split == "train":
            turn, index = divmod(index, len(letters))
            random.Random(f"words/{self.seed}/{turn}").shuffle(letters)
        letter = letters[index]
        shown = [f"{LINE.format(other)} {word}" for other, word in SHOWN.items()]
        prompt = "\n".join([*shown, LINE.format(letter)])
        return Example(prompt, answer=letter, data={"label": letter})

    def score(self, completion: str, example: Example) -> float:
        # letters that merely become ASCII in lower case, as the Kelvin sign does, are none
        word = self.canonical(completion) if completion.isascii() else ""
        return float(word.startswith(example.answer.lower()) and word in dictionary())

    def canonical(self, completion: str) -> str:
        return completion.strip().lower()


@cache
def dictionary() -> frozenset[str]:
    """The words that are right for their first letter: lower case, 3 to 10 letters of a to z."""
    from reasoning_gym.data import read_data_file  # a second, which other tasks need not wait

    words = read_data_file("words3to10.txt").split()
    return frozenset(w for w in words if w.isascii() and w.isalpha() and w.islower())
