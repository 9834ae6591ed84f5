"""`tool_sum`: call a tool with a right sum, then solve its reply. For the shipped tiny policy.

There are two turns in the alphabet of `target_sum`. The prompt `17/3:` asks for three digits whose
sum is 17; they are the call. To a right call the tool replies with another target, `4/1:`, which is
given nowhere else, and the second turn must meet it. The reply looks like a prompt in the policy's
alphabet, so a trainer that trained on observation tokens by mistake would teach it to the policy.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..tasks.base import Example
from ..tasks.target_sum import TargetSum
from .worlds import Reply


class ToolSum:
    """Turns: prompt `TARGET/K:`, a call, the tool's `TARGET/K:`, an answer.

    A wrong call ends the rollout. In training a right call and a right answer give 1/2 each; in
    evaluation the reward is 1 if both are right.

    Args:
        seed: seed of the training prompts; `test` is the same in all runs.
        k_min: fewest digits of a call.
        k_max: most digits of a call.
        digits: digits of an answer.
    """

    name = "tool_sum"
    splits: tuple[str, ...] = ("train", "test")

    def __init__(self, seed: int = 0, k_min: int = 3, k_max: int = 3, digits: int = 1) -> None:
        if not 1 <= digits <= 6:
            raise ValueError(f"tool_sum: need 1 <= digits <= 6, got {digits}")
        self._sums, self._digits = TargetSum(seed, k_min, k_max), digits

    def max_new_tokens(self, split: str) -> int:
        """Most tokens of a turn: the longest sum with eos, and one more."""
        return self._sums.max_new_tokens(split)

    def turns(self, split: str) -> int:
        return 2

    def size(self, split: str) -> int | None:
        return None

    def example(self, index: int, split: str) -> Example:
        call = self._sums.example(index, split)
        seed, k = self._sums.seed if split == "train" else 0, self._digits
        target = random.Random(f"tool_sum/{seed}/{split}/{index}").randint(2 * k, 8 * k)
        data = {"label": call.data["label"], "wanted": [[*call.answer], [target, k]]}
        return Example(call.prompt, answer=f"{target}/{k}", data=data)

    def environment(self, example: Example) -> Tool:
        return Tool(self._sums, example.data["wanted"])


class Tool:
    """The environment; `wanted` has (target, k) of the call and of the answer."""

    def __init__(self, sums: TargetSum, wanted: Sequence[tuple[int, int]]) -> None:
        self._sums, self._wanted = sums, wanted
        self._right: list[float] = []

    def reply(self, text: str) -> Reply:
        wanted = self._wanted[len(self._right)]
        self._right.append(self._sums.score(text, Example("", wanted)))
        if len(self._right) == len(self._wanted) or not self._right[-1]:
            return Reply(done=True)
        target, k = self._wanted[1]
        return Reply(f"{target}/{k}:")

    def reward(self, training: bool) -> float:
        share = sum(self._right) / len(self._wanted)
        return share if training else float(share == 1)

    def close(self) -> None:
        """Nothing to release."""
