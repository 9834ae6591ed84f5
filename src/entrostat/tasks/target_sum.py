"""`target_sum`: write k digits whose sum is the target. The task of the shipped tiny policy.

Prompt `23/4:`, a right answer `7+3+9+4`. Many answers are right, so the number of distinct right
answers among samples shows whether a policy still explores.
"""

from __future__ import annotations

import random
import re

from .base import Example

_ANSWER = re.compile(r"[1-9](?:\+[1-9])*")
_STREAM = {"train": 0, "test": 1, "ood": 2}


class TargetSum:
    """Prompt `TARGET/K:`; right is K digits 1-9 joined by `+` that add up to TARGET.

    K is uniform in k_min..k_max and TARGET uniform in 2K..8K. The split `ood` asks for 7 or 8
    digits, more than training ever does.

    Args:
        seed: seed of the training prompts; `test` and `ood` are the same in all runs.
        k_min: fewest digits.
        k_max: most digits.
        only: number of different training prompts, chosen at random by `seed`; None for all (112
            with the default numbers of digits).
    """

    name = "target_sum"
    splits: tuple[str, ...] = ("train", "test", "ood")

    def __init__(
        self, seed: int = 0, k_min: int = 3, k_max: int = 6, only: int | None = None
    ) -> None:
        if not 1 <= k_min <= k_max <= 6:
            raise ValueError(f"target_sum: need 1 <= k_min <= k_max <= 6, got {k_min}, {k_max}")
        every = [(t, k) for k in range(k_min, k_max + 1) for t in range(2 * k, 8 * k + 1)]
        if only is not None and not 1 <= only <= len(every):
            raise ValueError(
                f"target_sum: only must be 1 to {len(every)}, the prompts of {k_min} to {k_max} "
                f"digits, got {only}"
            )
        self.seed, self.k_min, self.k_max, self.only = seed, k_min, k_max, only
        chance = random.Random(f"target_sum/{seed}/only")
        self._some = None if only is None else chance.sample(every, only)

    def max_new_tokens(self, split: str) -> int:
        """One more than the tokens of the longest answer with eos."""
        return 17 if split == "ood" else 13

    def size(self, split: str) -> int | None:
        return None

    def example(self, index: int, split: str) -> Example:
        seed = self.seed if split == "train" else 0
        rng = random.Random(f"target_sum/{seed}/{_STREAM[split]}/{index}")
        if split == "train" and self._some is not None:
            target, k = rng.choice(self._some)
        else:
            k = rng.randint(7, 8) if split == "ood" else rng.randint(self.k_min, self.k_max)
            target = rng.randint(2 * k, 8 * k)
        return Example(f"{target}/{k}:", answer=(target, k), data={"label": f"{target}/{k}"})

    def score(self, completion: str, example: Example) -> float:
        if not _ANSWER.fullmatch(completion):
            return 0.0
        target, k = example.answer
        digits = [int(digit) for digit in completion.split("+")]
        return float(len(digits) == k and sum(digits) == target)


def demonstration(example: Example, rng: random.Random, wrong: bool) -> str:
    """A random answer to the prompt: right, or with one digit replaced at random.

    Each digit is drawn from those that still allow the target.
    """
    target, k = example.answer
    digits = []
    for left in range(k - 1, -1, -1):
        low, high = max(1, target - 9 * left), min(9, target - left)
        digits.append(rng.randint(low, high))
        target -= digits[-1]
    rng.shuffle(digits)
    if wrong:
        place = rng.randrange(k)
        digits[place] = rng.choice([d for d in range(1, 10) if d != digits[place]])
    return "+".join(map(str, digits))
