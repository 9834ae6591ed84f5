"""`tools`: generated tasks on files, a database and a calendar, solved in a Python notebook.

Each has a text, the state of a small world, and checks: that every required change was made, that
nothing else changed, and that the submitted answer is right. No check passes without any action.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

from ..._names import unknown
from ...sandbox import Session
from ...tasks.base import Example
from ..python_tool import SUBMIT, PythonTool, shown
from .calendar import CALENDAR
from .database import DATABASE
from .files import FILES
from .world import Instance, checks

WORLDS = {"files": FILES, "database": DATABASE, "calendar": CALENDAR}
SIZES = {"train": 1, "test": 4, "unseen": 4}  # how many times as large the split `train` is
_TRIES = 200
_ABOUT = """\
You work in a Python notebook. Each turn, write one block of code between ```python and ```. What it
prints comes back to you, and variables stay. When the task is done call submit(), or submit(answer)
where an answer is asked; that ends it. You have {turns} turns.
{about}

Example
Task: {shown}
{transcript}

Now yours
Task: {ask}
"""


class Tools:
    """Prompt: the available tools, a worked example, a task; then turns of Python until `submit`.

    The policy's code runs in the sandbox. In training the reward is the share of checks that pass,
    in evaluation 1 if all pass; without `submit` it is 0. A hash of a task's text assigns it to
    `train` or `test`, so they share none. `unseen` has other kinds of tasks, none of difficulty 1.

    Args:
        seed: seed of the training tasks; `test` and `unseen` are the same in all runs.
        kinds: kinds to use, of "files", "database", "calendar": a list, or comma-separated names.
        difficulty: the highest: 1 is one step, 2 several, 3 several that depend on each other.
        size: number of training tasks; each other split has a quarter.
        turns: most turns of a rollout.
    """

    name = "tools"
    stop: tuple[str, ...] = ("\n```\n",)

    def __init__(
        self, seed: int = 0, kinds: str | Sequence[str] = ("files", "database", "calendar"),
        difficulty: int = 3, size: int = 240, turns: int = 8,
    ) -> None:  # fmt: skip
        kinds = kinds.split(",") if isinstance(kinds, str) else list(kinds)
        for kind in kinds:
            if kind not in WORLDS:
                raise ValueError(f"task 'tools': {unknown('kind', kind, WORLDS)}")
        for key, value, most in (
            ("kinds", len(kinds), 3), ("difficulty", difficulty, 3), ("size", size, 6000),
            ("turns", turns, 1000),
        ):  # fmt: skip
            if not 1 <= value <= most:
                raise ValueError(f"task 'tools': {key} must be from 1 to {most}, got {value}")
        self._kinds, self._difficulty = kinds, difficulty
        self.splits: tuple[str, ...] = ("train", "test", "unseen")[: 2 if difficulty == 1 else 3]
        self._seed, self._size, self._turns = seed, size, turns
        self._instances: dict[str, list[tuple[str, str, Instance]]] = {}

    def max_new_tokens(self, split: str) -> int:
        return 256

    def turns(self, split: str) -> int:
        return self._turns

    def size(self, split: str) -> int:
        return max(1, self._size // SIZES[split])

    def example(self, index: int, split: str) -> Example:
        kind, template, instance = self.instances(split)[index]
        world, ask = WORLDS[kind], instance.ask
        worked, turns = world.shown
        prompt = _ABOUT.format(
            turns=self._turns, about=world.about, shown=worked, transcript=_transcript(turns),
            ask=ask,
        )  # fmt: skip
        data = {"label": ask, "kind": kind, "template": template, "index": index, "split": split}
        return Example(prompt, answer=instance.answer, data=data)

    def environment(self, example: Example) -> PythonTool:
        split, index = example.data["split"], example.data["index"]
        kind, _, instance = self.instances(split)[index]
        world = WORLDS[kind]

        def judge(notebook: Session, submitted: Any) -> list[bool]:
            try:
                return checks(instance, world.read(notebook), submitted)
            except (ValueError, LookupError, TypeError, RecursionError):
                return [False]  # the policy left an unreadable state

        return PythonTool(lambda: Session(setup=SUBMIT + world.setup(instance.before)), judge)

    def instances(self, split: str) -> list[tuple[str, str, Instance]]:
        """(kind, template, instance) of a split; all texts differ."""
        if split not in self._instances:
            self._instances[split] = self._drawn(split)
        return self._instances[split]

    def _drawn(self, split: str) -> list[tuple[str, str, Instance]]:
        worlds = [(kind, WORLDS[kind]) for kind in self._kinds]
        templates = [
            (kind, draw)
            for kind, world in worlds
            for difficulty, draw in (world.unseen if split == "unseen" else world.templates)
            if difficulty <= self._difficulty
        ]
        seed = self._seed if split == "train" else 0
        drawn: list[tuple[str, str, Instance]] = []
        asked: set[str] = set()
        wanted = self.size(split)
        while templates and len(drawn) < wanted:
            for template in list(templates):
                kind, draw = template
                rng = random.Random(f"tools/{seed}/{split}/{len(drawn)}")
                tries = (draw(rng) for _ in range(_TRIES))
                instance = next(
                    (i for i in tries if i.ask not in asked and may_be_in(split, i.ask)), None
                )
                if instance is None:
                    templates.remove(template)  # no further task found
                elif len(drawn) < wanted:
                    asked.add(instance.ask)
                    drawn.append((kind, draw.__name__.strip("_"), instance))
        if len(drawn) < wanted:
            raise ValueError(
                f"task 'tools': there are {len(drawn)} different tasks for the split {split!r}, of "
                f"{wanted}; lower --task.size, now {self._size}"
            )
        return drawn


def may_be_in(split: str, ask: str) -> bool:
    """Whether a task's text may be in a split; a hash of it decides between `train` and `test`."""
    test = hashlib.sha256(ask.encode()).digest()[0] < 64
    return split == "unseen" or test == (split == "test")


def _transcript(turns: Sequence[tuple[str, str]]) -> str:
    return "\n".join(
        f"```python\n{code}\n```" + (f"\n{shown(output, 2000)}".rstrip() if output else "")
        for code, output in turns
    )
