"""The environments of many rollouts, each of which may fail alone.

A world's call runs in a thread of its own under a time limit. One that raises or takes longer has
failed: its rollout is over, its reward is 0, and it is counted. A call that hangs for good leaves
its thread behind, which ends with the process; what hangs in a sandbox or a child process has been
killed by then. `play` plays one rollout in text, without a model.
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


class Worlds:
    """One environment per rollout, made here; it may take `timeout` seconds for one thing.

    `failures` has the reason why a rollout's world failed, by the rollout's place.
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
        """What each world says to its rollout's turn; a failed one says nothing and is done."""
        calls = {
            i: lambda w=self._worlds[i], t=text: _checked(w.reply(t))
            for i, text in texts.items()
            if i in self._alive()
        }
        replies = self._ask(calls)
        return {i: replies.get(i, Reply(done=True)) for i in texts}

    def rewards(self, training: bool) -> list[float]:
        """A reward per rollout; 0 where its world has failed."""
        calls = {i: lambda w=self._worlds[i]: as_reward(w.reward(training)) for i in self._alive()}
        rewards = self._ask(calls)
        return [rewards.get(i, 0.0) for i in range(self._size)]

    def close(self) -> None:
        """Close all worlds. What that raises is nobody's any more."""
        in_time([world.close for world in self._worlds.values()], self._timeout, self._at_once)
        self._worlds = {}

    def _alive(self) -> list[int]:
        return [i for i in self._worlds if i not in self.failures]

    def _ask(self, calls: Mapping[int, Callable[[], Any]]) -> dict[int, Any]:
        """What the calls give, by rollout; those that fail are noted and left out."""
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
    """Make calls in threads, `at_once` at a time, each for `timeout` seconds at most.

    What became of each, in order. A call that times out is left to itself.
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
    # half a surrogate pair is no text for a tokenizer
    return Reply(reply.observation.encode(errors="replace").decode(), bool(reply.done))


@dataclass(frozen=True)
class Episode:
    # (what the policy said, what the world said to it), in order
    turns: tuple[tuple[str, str], ...]
    done: bool  # the world said so; False where the turns ran out
    reward: float  # see `Environment.reward`
    failure: str = ""  # why the world failed; "" where it did not


def play(
    task: Any, example: Example, policy: Policy, split: str = "train", timeout: float = TIMEOUT
) -> Episode:
    """Play one rollout.

    `policy` gives its next turn of (prompt, turns so far). `split` decides how many turns there
    are; the first split is training (see `Environment.reward`).
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
