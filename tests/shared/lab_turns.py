"""Environments of several turns."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from entrostat.agents import Reply
from entrostat.tasks import Example
from entrostat.tasks.target_sum import TargetSum


class World:
    """Says `5/2:` to every turn, and that it is over to the last of `length`."""

    def __init__(self, length: int) -> None:
        self.length, self.said, self.closed = length, [], False

    def reply(self, text: str) -> Reply:
        self.said.append(text)
        return Reply("5/2:", done=len(self.said) == self.length)

    def reward(self, training: bool) -> float:
        return len(self.said) / 10 + (0.5 if training else 0)

    def close(self) -> None:
        self.closed = True


class Talks(TargetSum):
    """Rollouts of prompt i are over after `lengths[i]` turns; three at most."""

    name = "talks"
    lengths = (1, 2, 3, 9)

    def __init__(self) -> None:
        super().__init__()
        self.worlds: list[World] = []

    def turns(self, split: str) -> int:
        return 3

    def example(self, index: int, split: str) -> Example:
        data = {"index": index}
        return replace(super().example(index, split), data=data)

    def environment(self, example: Example) -> Any:
        world = World(self.lengths[example.data["index"] % len(self.lengths)])
        self.worlds.append(world)  # in no order: worlds are made in threads
        return world

    def world(self, text: str) -> World:
        """The one that a rollout of this text was played in."""
        return next(world for world in self.worlds if "5/2:".join(world.said) == text)


class Fails(Talks):
    """The worlds of prompt 0 cannot be made, those of prompts 1 and 2 raise and hang."""

    def environment(self, example: Example) -> Any:
        if example.data["index"] == 0:
            raise ValueError("no room")
        world = super().environment(example)
        if example.data["index"] == 1:
            world.reply = lambda text: 1 / 0
        if example.data["index"] == 2:
            world.reply = lambda text: time.sleep(3)
        return world
