"""veRL's reward function: the task's own score, by the lab's rules (`data/scoring.py`).

`reward.custom_reward_function.path=pkg://entrostat.trainers.verl.reward`. If a scorer raises or
hangs, the rollout gets reward 0 and is counted (`failed`). Imports no veRL.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

from ...data.scoring import Scorer
from ...errors import RunStopped, in_one_line
from ...tasks import Example, Task, make_task
from .completions import read

logger = logging.getLogger(__name__)
_GATHER = 0.02  # seconds in which answers are collected, so that workers score them in parallel


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any],
    settings: str,
    **others: Any,
) -> dict[str, Any]:
    """Return the reward of one answer, in the form of `judged`.

    `extra_info` has the row's fields and the agent loop's; `settings` is the path of the run's
    settings. The task finds its example by split and index.
    """
    text = extra_info.get("completion", solution_str)
    desk = _desk(settings, extra_info["set"])
    score, failed = await desk.score(text, extra_info["split"], int(extra_info["index"]))
    return judged(score, failed, place(extra_info), text)


def place(info: Mapping[str, Any]) -> str:
    """A row's example: "SET/INDEX" in an evaluation set, "SPLIT/INDEX" in training."""
    return f"{info['set'] or info['split']}/{int(info['index'])}"


def judged(score: float, failed: bool, where: str, text: str) -> dict[str, Any]:
    """The result that veRL gets; `failed` is 1 if scorer or environment gave no reward."""
    return {
        "score": score, "acc": score, "failed": int(failed), "where": where, "completion": text,
    }  # fmt: skip


class Desk:
    """Batches answers that arrive together; one thread scores them."""

    def __init__(self, task: Task, scoring: Any) -> None:
        self.task, self.scorer = task, Scorer(task, scoring, logger.warning)
        self._waiting: list[tuple[str, Example, asyncio.Future[tuple[float, bool]]]] = []
        self._at_work: asyncio.Task[None] | None = None

    async def score(self, text: str, split: str, index: int) -> tuple[float, bool]:
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((text, self.task.example(index, split), done))
        if self._at_work is None:
            self._at_work = asyncio.create_task(self._work())
        return await done

    async def _work(self) -> None:
        await asyncio.sleep(_GATHER)
        try:
            while self._waiting:
                now, self._waiting = self._waiting, []
                given = await asyncio.to_thread(self._scores, [one[:2] for one in now])
                for (*_, done), found in zip(now, given, strict=True):
                    done.set_result(found)
        finally:
            self._at_work = None

    def _scores(self, pairs: list[tuple[str, Example]]) -> list[tuple[float, bool]]:
        texts, examples = zip(*pairs, strict=True)
        try:
            rewards = self.scorer(texts, examples, 0).tolist()
        except Exception as error:  # all failed; the driver checks whole iterations
            logger.warning("%s", error if isinstance(error, RunStopped) else in_one_line(error))
            return [(0.0, True)] * len(pairs)
        failed = set(self.scorer.failures)
        return [(reward, place in failed) for place, reward in enumerate(rewards)]


def _desk(settings: str, name: str) -> Desk:
    """The batcher of a set's answers, or of training's with ""."""
    return _desk_of(settings, json.dumps(read(settings, name).task, sort_keys=True))


@cache
def _desk_of(settings: str, task: str) -> Desk:
    """The batcher of a task: sets of the same task share worker processes."""
    return Desk(make_task(**json.loads(task)), SimpleNamespace(**read(settings).scoring))
