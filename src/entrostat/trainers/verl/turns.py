"""Multi-turn rollouts in veRL by the lab's rules (`data/generation.py`), one rollout at a time.

The engine samples each turn from the token ids of the context. The environment runs in threads, and
each call to it has a time limit. Imports no veRL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ...agents import Worlds
from ...data.generation import ObservationTokenizer, Rollout, TurnLimits
from ...tasks import make_task
from .completions import read
from .data import outline


@dataclass(frozen=True)
class Said:
    tokens: list[int]  # token ids
    logps: list[float] | None  # the engine's log-probs, nats; None if it gave none
    finished: bool  # whether it ended by eos or a stop


@dataclass(frozen=True)
class Played:
    """A finished rollout and its result."""

    rollout: Rollout  # policy and observation tokens
    text: str  # all text after the prompt
    reward: float  # the environment's reward; 0 if it failed
    failure: str  # why the environment failed; "" if it did not
    measured: bool  # whether the engine gave log-probs


class Table:
    """The task and observation tokenizer of multi-turn rollouts; arguments as for `read`."""

    def __init__(self, settings: str, name: str = "") -> None:
        self.settings, self.training = read(settings, name), not name
        self.task = make_task(**self.settings.task)
        assert self.settings.game is not None
        self._game = game = self.settings.game
        self.hearing = ObservationTokenizer(outline(game["model"]), game["chat"], game["system"])

    def rules(self, split: str, new: int) -> TurnLimits:
        turns, context = self._game["turns"][split], self._game["context"]
        return TurnLimits(turns, context, new, self.hearing, self.settings.stop)


async def play(
    table: Table, split: str, index: int, prompt: list[int], new: int,
    say: Callable[[list[int]], Awaitable[Said]],
) -> Played:  # fmt: skip
    """Play one rollout of an example, whose token ids are `prompt`, to its end.

    `say` samples a turn of at most `new` tokens after a context.
    """
    rules, task = table.rules(split, new), table.task
    policy = table.hearing.policy
    one, measured = Rollout(prompt), True
    examples = [task.example(index, split)]
    timeout = table.settings.scoring["environment_timeout"]
    worlds = await asyncio.to_thread(Worlds, task, examples, timeout)
    try:
        while one.open:
            said = await say(one.context)
            logps = said.logps or [0.0] * len(said.tokens)
            measured &= said.logps is not None
            text = table.settings.text(said.tokens, policy.tokenizer.batch_decode)
            replies = await asyncio.to_thread(worlds.reply, {0: text})
            one.say(said.tokens, logps, [0.0] * len(logps))
            one.hear(replies[0], 0 in worlds.failures, rules)
        (reward,) = await asyncio.to_thread(worlds.rewards, table.training)
    finally:
        await asyncio.to_thread(worlds.close)
    (text,) = rules.texts([one])
    return Played(one, text, reward, worlds.failures.get(0, ""), measured)
