"""`words`: a word that starts with a given letter.

Hundreds of answers are right, so entropy measures diversity, not mistakes. A collapsed policy gives
the same word for a letter every time and is right as often as one that has not collapsed.
"""

from __future__ import annotations

import random
from functools import cache
from string import ascii_uppercase

from ..errors import need
from .base import Example

# B as in earlier measurements; Q, X and Z because few words begin with them: if they were asked,
# the count of distinct right answers would partly measure how rare a letter is
SHOWN = {"B": "bread", "Q": "queen", "X": "xylophone", "Z": "zebra"}
LETTERS = tuple(letter for letter in ascii_uppercase if letter not in SHOWN)
LINE = "A word that starts with {}:"


class Words:
    """Prompt: four lines with a word each, then `A word that starts with L:`.

    Right is one word and nothing else: it starts with L and is in the dictionary; case does not
    matter. Without a dictionary a policy drifts to invented words. The dictionary is
    reasoning-gym's list `words3to10.txt`: 132,000 English words of 3 to 10 letters, without proper
    names, rare ones included, in base form (`house`, not `houses`). 22 of the 26 letters are asked:
    all but the four in `SHOWN`.

    The prompt is plain text, also for a chat model.

    Args:
        seed: seed of the order of the training letters, which come in shuffled rounds of all 22;
            `test` has the 22 letters in alphabetical order, once each.
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
        # reject letters that become ASCII only in lower case, such as the Kelvin sign
        word = self.canonical(completion) if completion.isascii() else ""
        return float(word.startswith(example.answer.lower()) and word in dictionary())

    def canonical(self, completion: str) -> str:
        return completion.strip().lower()


@cache
def dictionary() -> frozenset[str]:
    """All right words: lower case, 3 to 10 letters a to z."""
    from reasoning_gym.data import read_data_file  # takes a second to import

    words = read_data_file("words3to10.txt").split()
    return frozenset(w for w in words if w.isascii() and w.isalpha() and w.islower())
