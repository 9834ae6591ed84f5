"""One rollout in text, without a model: what a scripted policy does in a world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..tasks.base import Example
from .worlds import TIMEOUT, Worlds

Policy = Callable[[str, Sequence[tuple[str, str]]], str]


@dataclass(frozen=True)
class Episode:
    """A rollout.

    Attributes:
        turns: (what the policy said, what the world said to it), in order.
        done: the world said so; False where the turns ran out.
        reward: see `Environment.reward`.
        failure: in words why the world failed; "" where it did not.
    """

    turns: tuple[tuple[str, str], ...]
    done: bool
    reward: float
    failure: str = ""


def play(
    task: Any, example: Example, policy: Policy, split: str = "train", timeout: float = TIMEOUT
) -> Episode:
    """Play one rollout.

    Args:
        task: a task with environments.
        example: its prompt.
        policy: (prompt, turns so far) -> its next turn.
        split: decides how many turns there are; the first split is training (see
            `Environment.reward`).
        timeout: seconds that the world may take for one thing.
    """
    turns: list[tuple[str, str]] = []
    done = False
    with Worlds(task, [example], timeout) as worlds:
        while not done and len(turns) < task.turns(split):
            text = policy(example.prompt, tuple(turns))
            reply = worlds.reply({0: text})[0]
            turns.append((text, reply.observation))
            done = reply.done
        (reward,) = worlds.rewards(training=split == task.splits[0])
        return Episode(tuple(turns), done, reward, worlds.failures.get(0, ""))


def script(*texts: str) -> Policy:
    """A policy that says these texts, one a turn, and then nothing."""
    return lambda prompt, turns: texts[len(turns)] if len(turns) < len(texts) else ""
