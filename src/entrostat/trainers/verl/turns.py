"""Rollouts of several turns in veRL: the lab's rules (`data/generation.py`), one rollout at a time.

The engine samples each turn from token ids, the context as it was said and heard. The environment
is asked in threads, each of whose calls has its time limit. No veRL here.
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
    """A turn of the policy's.

    Attributes:
        tokens: ids.
        logps: of the tokens as the engine drew them, nats; None where it gave none.
        finished: whether it ended by itself.
    """

    tokens: list[int]
    logps: list[float] | None
    finished: bool


@dataclass(frozen=True)
class Played:
    """A rollout, and what came of it.

    Attributes:
        rollout: who said what.
        text: all that was said after the prompt.
        reward: the environment's; 0 where it has failed.
        failure: why the environment failed; "" where it did not.
        measured: whether the engine gave log-probs.
    """

    rollout: Rollout
    text: str
    reward: float
    failure: str
    measured: bool


class Table:
    """What rollouts are played at: their task, and how words become tokens.

    Args:
        settings: path of the run's settings.
        name: of an evaluation set; "" for those of training.
    """

    def __init__(self, settings: str, name: str = "") -> None:
        self.settings, self.training = read(settings, name), not name
        self.task = make_task(**self.settings.task)
        assert self.settings.game is not None
        self._game = game = self.settings.game
        self.hearing = ObservationTokenizer(outline(game["model"]), game["chat"], game["system"])

    def rules(self, split: str, new: int) -> TurnLimits:
        """Of a split whose turns may take `new` tokens."""
        game = self._game
        return TurnLimits(
            game["turns"][split], game["context"], new, self.hearing, self.settings.stop
        )


async def play(
    table: Table, split: str, index: int, prompt: list[int], new: int,
    say: Callable[[list[int]], Awaitable[Said]],
) -> Played:  # fmt: skip
    """Play one rollout of an example to its end.

    Args:
        table: of training, which asks the environment for the reward of training, or of a set.
        split: of the task.
        index: of the example.
        prompt: its token ids.
        new: tokens that a turn may take.
        say: samples a turn after a context.
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
