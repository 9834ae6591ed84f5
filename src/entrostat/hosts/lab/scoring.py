"""Rewards from a task, every one checked to be a number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import RunStopped, in_one_line
from ...tasks import Example, Task


def score(
    task: Task, completions: Sequence[str], examples: Sequence[Example], iteration: int
) -> Tensor:
    """Rewards [B] float32, every one checked to be a number.

    Raises:
        RunStopped: the task raised, or gave something else; the message names the rollout.
    """
    batched: Callable[..., Any] | None = getattr(task, "score_batch", None)
    if batched is not None:
        try:
            given = list(batched(list(completions), list(examples)))
        except Exception as error:
            raise RunStopped(
                f"iteration {iteration}: {task.name}.score_batch raised {in_one_line(error)}"
            ) from error
        if len(given) != len(completions):
            raise RunStopped(
                f"iteration {iteration}: {task.name}.score_batch gave {len(given)} rewards for "
                f"{len(completions)} rollouts; it must give one each"
            )
    else:
        given = []
        for i, (completion, example) in enumerate(zip(completions, examples, strict=True)):
            try:
                given.append(task.score(completion, example))
            except Exception as error:
                raise RunStopped(
                    f"{_rollout(iteration, i, completion, example)}: {task.name}.score raised "
                    f"{in_one_line(error)}"
                ) from error
    rewards = []
    for i, (value, completion, example) in enumerate(
        zip(given, completions, examples, strict=True)
    ):
        try:
            number = float(value.item() if isinstance(value, Tensor) else value)
            number = float(torch.tensor(number))  # what float32 cannot hold is none either
        except (TypeError, ValueError, RuntimeError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise RunStopped(
                f"{_rollout(iteration, i, completion, example)}: the reward is {value!r:.80}; "
                "it must be one finite number. No update was made"
            )
        rewards.append(number)
    return torch.tensor(rewards)


def _rollout(iteration: int, i: int, completion: str, example: Example) -> str:
    return (
        f"iteration {iteration}, rollout {i} (prompt {example.prompt[:60]!r}, completion "
        f"{completion[:60]!r})"
    )
