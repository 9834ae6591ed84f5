"""The settings of evaluation in training: `[eval]`, and the sets of `[[eval]]`."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import tyro

# above, a run would hang or crash where it begins: it is a slip
MOST_PROMPTS, MOST_TOKENS = 10**5, 10**7


@dataclass
class EvalSet:
    """Prompts that a policy is measured on, with settings of their own: a table of `[[eval]]`."""

    name: str | None = None
    """What rows and figures call it; None takes the split's name, or another task's."""
    task: dict[str, Any] | None = None
    """Another task than the run's, by name or as a table with its parameters."""
    split: str | None = None
    """None takes the task's second split, or its only one where the task is another."""
    prompts: int | None = None
    """None takes `eval.prompts`; 0 leaves the set out."""
    samples: int | None = None
    """None takes `eval.samples`; 1 where the temperature is 0."""
    every: int | None = None
    """None takes `eval.every`."""
    temperature: float | None = None
    """None takes `sampling.temperature`; 0 takes the likeliest token (greedy)."""
    top_p: float | None = None
    """None takes `sampling.top_p`."""
    max_new_tokens: int | None = None
    """None takes `sampling.max_new_tokens`, of another task what that task says."""


@dataclass
class Evaluation:
    """Measuring the policy before, during and after training."""

    prompts: int = 64
    """Prompts per split; 0 turns evaluation off."""
    samples: int = 16
    """Samples per prompt, the k of avg@k and pass@k."""
    every: int = 0
    """Iterations between evaluations; 0 evaluates before the first and after the last."""
    sets: tyro.conf.Suppress[list[EvalSet]] = field(default_factory=list)
    """Sets in place of the task's own held-out splits: `[[eval]]` in a file."""

    @property
    def resolved(self) -> list[Evaluation]:
        """Prompts, samples and iterations of each set, the table's own where it has none."""
        found: list[Evaluation] = []
        for one in self.sets or [EvalSet()]:
            own = {key: getattr(one, key) for key in ("prompts", "samples", "every")}
            own |= {"samples": 1} if one.temperature == 0 else {}
            given = {key: value for key, value in own.items() if value is not None}
            found.append(dataclasses.replace(self, **given))
        return found


def check_set(place: int, one: EvalSet) -> None:
    """Refuse a value of a table of [[eval]] that cannot be meant."""
    where = f"[[eval]] {place}"
    for key, low, most in (
        ("prompts", 0, MOST_PROMPTS), ("samples", 1, MOST_PROMPTS),
        ("every", 0, 2**31 - 1), ("max_new_tokens", 1, MOST_TOKENS),
    ):  # fmt: skip
        value = getattr(one, key)
        if value is not None and not low <= value <= most:
            raise ValueError(
                f"{where}: {key} must be at least {low} and at most {most}, got {value}"
            )
    if one.temperature is not None and not (
        math.isfinite(one.temperature) and one.temperature >= 0
    ):
        raise ValueError(f"{where}: temperature must be 0 (greedy) or above, got {one.temperature}")
    if one.temperature == 0 and one.samples not in (None, 1):
        raise ValueError(
            f"{where}: temperature 0 gives the same answer {one.samples} times; leave samples out"
        )
    if one.top_p is not None and not 0 < one.top_p <= 1:
        raise ValueError(f"{where}: top_p must be in (0, 1], got {one.top_p}")
    if one.name == "":
        raise ValueError(f"{where}: name is empty; leave it out, or give one")
    if one.task is not None and not isinstance(one.task.get("name"), str):
        raise ValueError(f"{where}: task needs a name, got {one.task!r:.80}")
