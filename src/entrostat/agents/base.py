"""What an environment is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class Reply:
    """What a world says to one turn of the policy.

    Attributes:
        observation: text that the policy reads before its next turn; hosts add it as tokens that
            are not trained on. It may say something to the last turn as well: then it is kept for
            reports and the policy does not see it.
        done: whether the rollout is over.
    """

    observation: str = ""
    done: bool = False


@runtime_checkable
class Environment(Protocol):
    """The world of one rollout. Any object with these methods will do.

    It may raise and it may hang: hosts hold worlds in `Worlds`, where that costs the rollout and no
    more. It must not touch what other rollouts' worlds hold: replies are asked for in threads.
    """

    def reply(self, text: str) -> Reply:
        """The world's answer to a turn: the text before a stop string and end tokens."""
        ...

    def reward(self, training: bool) -> float:
        """The outcome of the rollout so far: asked for once, after the last turn.

        In training the share of passing checks where there are several; in evaluation 1 or 0,
        whether all of them pass.
        """
        ...

    def close(self) -> None:
        """Give back what it holds. Called once, also after a failure."""
        ...


def is_multi_turn(task: Any) -> bool:
    """Whether a task's rollouts are played in an environment.

    Such a task has `environment(example) -> Environment` and `turns(split) -> int`, the most turns
    that a rollout may take; `max_new_tokens(split)` is then of a turn. Its `score` is not used.
    """
    return hasattr(task, "environment") and hasattr(task, "turns")
