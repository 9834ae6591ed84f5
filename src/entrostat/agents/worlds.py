"""The environments of many rollouts; each may fail without affecting the others.

Each call of a world runs in its own thread with a time limit. If the call raises or takes longer,
the world has failed: its rollout is over, its reward is 0, and it is counted. A call that hangs
forever leaves its thread behind until the process ends; calls that hang in a sandbox or child
process are killed earlier. `play` runs one rollout of a scripted policy, without a model.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from ..grading import as_reward
from ..tasks.base import Example
from ..workers import Outcome, tried

TIMEOUT = 60.0
AT_ONCE = 16
Policy = Callable[[str, Sequence[tuple[str, str]]], str]


@dataclass(frozen=True)
class Reply:
    """A world's reply to one turn of the policy.

    Attributes:
        observation: text for the policy's next turn; trainers append its tokens with mask 0. After
            the last turn it is only kept for reports.
        done: whether the rollout is over.
    """

    observation: str = ""
    done: bool = False


@runtime_checkable
class Environment(Protocol):
    """The world of one rollout. Any object with these methods will do.

    It may raise or hang: trainers hold worlds in `Worlds`, where only the rollout fails then. It
    must not modify state of other rollouts' worlds, because replies run in threads.
    """

    def reply(self, text: str) -> Reply:
        """Reply to a turn; `text` excludes the stop string and end tokens."""
        ...

    def reward(self, training: bool) -> float:
        """The outcome reward of the rollout; called once, after the last turn.

        In training the share of checks that pass, if there are several; in evaluation 1 if all
        pass, else 0.
        """
        ...

    def close(self) -> None:
        """Release resources. Called once, also after a failure."""
        ...


def is_multi_turn(task: Any) -> bool:
    """Whether a task's rollouts take turns with an environment.

    Such a task has `environment(example) -> Environment` and `turns(split) -> int`, the most turns
    of a rollout. Its `max_new_tokens(split)` limits a turn, and its `score` is not used.
    """
    return hasattr(task, "environment") and hasattr(task, "turns")


class Worlds:
    """One environment per rollout, created here; each call may take `timeout` seconds.

    `failures` maps a rollout's index to the reason why its world failed.
    """

    def __init__(
        self, task: Any, examples: Sequence[Example], timeout: float = TIMEOUT,
        at_once: int = AT_ONCE,
    ) -> None:  # fmt: skip
        self._timeout, self._at_once = timeout, at_once
        self.failures: dict[int, str] = {}
        self._size = len(examples)
        self._worlds: dict[int, Environment] = self._ask(
            {i: partial(task.environment, example) for i, example in enumerate(examples)}
        )

    def __enter__(self) -> Worlds:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def reply(self, texts: Mapping[int, str]) -> dict[int, Reply]:
        """Reply of each world to its rollout's turn; empty and done if the world has failed."""
        calls = {
            i: lambda w=self._worlds[i], t=text: _checked(w.reply(t))
            for i, text in texts.items()
            if i in self._alive()
        }
        replies = self._ask(calls)
        return {i: replies.get(i, Reply(done=True)) for i in texts}

    def rewards(self, training: bool) -> list[float]:
        """A reward per rollout; 0 if its world has failed."""
        calls = {i: lambda w=self._worlds[i]: as_reward(w.reward(training)) for i in self._alive()}
        rewards = self._ask(calls)
        return [rewards.get(i, 0.0) for i in range(self._size)]

    def close(self) -> None:
        """Close all worlds; errors are ignored."""
        in_time([world.close for world in self._worlds.values()], self._timeout, self._at_once)
        self._worlds = {}

    def _alive(self) -> list[int]:
        return [i for i in self._worlds if i not in self.failures]

    def _ask(self, calls: Mapping[int, Callable[[], Any]]) -> dict[int, Any]:
        """Results of calls by rollout; failed calls are recorded in `failures` and left out."""
        given = {}
        outcomes = in_time(list(calls.values()), self._timeout, self._at_once)
        for i, outcome in zip(calls, outcomes, strict=True):
            if outcome.failure is None:
                given[i] = outcome.value
            else:
                self.failures[i] = f"{outcome.failure} ({outcome.detail})"
        return given


def in_time(
    calls: Sequence[Callable[[], Any]], timeout: float, at_once: int = AT_ONCE
) -> list[Outcome]:
    """Make calls in threads, `at_once` at a time, each with `timeout` seconds at most.

    Returns the outcomes in order. The thread of a call that times out is left running.
    """
    outcomes: list[Outcome] = []
    for start in range(0, len(calls), at_once):
        given: dict[int, Outcome] = {}
        threads = []
        for place, call in enumerate(calls[start : start + at_once]):
            thread = threading.Thread(target=_make, args=(call, given, place), daemon=True)
            thread.start()
            threads.append(thread)
        deadline = time.monotonic() + timeout
        for place, thread in enumerate(threads):
            thread.join(max(0.0, deadline - time.monotonic()))
            late = Outcome(None, "timed out", f"it took longer than {timeout:g} s")
            outcomes.append(given.get(place, late))
    return outcomes


def _make(call: Callable[[], Any], given: dict[int, Outcome], place: int) -> None:
    given[place] = tried(call)


def _checked(reply: Any) -> Reply:
    if not isinstance(reply, Reply) or not isinstance(reply.observation, str):
        raise TypeError(f"reply must give an entrostat.agents.Reply with a text, not {reply!r:.80}")
    # tokenizers reject lone surrogates
    return Reply(reply.observation.encode(errors="replace").decode(), bool(reply.done))


@dataclass(frozen=True)
class Episode:
    # (the policy's text, the world's observation), in order
    turns: tuple[tuple[str, str], ...]
    done: bool  # False if turns ran out
    reward: float  # see `Environment.reward`
    failure: str = ""  # why the world failed; "" if it did not


def play(
    task: Any, example: Example, policy: Policy, split: str = "train", timeout: float = TIMEOUT
) -> Episode:
    """Play one rollout.

    `policy` maps (prompt, turns so far) to its next turn. `split` sets the number of turns; the
    first split counts as training (see `Environment.reward`).
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
    """A policy that outputs these texts, one per turn, and then empty ones."""
    return lambda prompt, turns: texts[len(turns)] if len(turns) < len(texts) else ""
