"""What veRL calls for a reward: the task's own score, by the lab's rules (`lab/scoring.py`).

`reward.custom_reward_function.path=pkg://entrostat.hosts.verl.reward`. A scorer that raises or
hangs costs one rollout: it scores 0 and is counted (`failed`). No veRL here.
"""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from types import SimpleNamespace
from typing import Any

from ...errors import RunStopped, in_one_line
from ...tasks import Example, make_task
from ..lab.scoring import Scorer
from .completions import read

logger = logging.getLogger(__name__)
_GATHER = 0.02  # seconds in which answers are collected, so that workers score them side by side


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any],
    settings: str,
    **others: Any,
) -> dict[str, Any]:
    """The reward of one answer.

    Args:
        data_source: not used; veRL passes it, as the two that follow.
        solution_str: the answer as veRL decodes it, without any special tokens.
        ground_truth: not used: the task knows its example by split and index.
        extra_info: of the row, and what the agent loop added.
        settings: path of the run's settings.
        **others: not used.

    Returns:
        As `judged` says.
    """
    split, index = extra_info["split"], int(extra_info["index"])
    text = extra_info.get("completion", solution_str)
    score, failed = await _desk(settings).score(text, split, index)
    return judged(score, failed, split, index, text)


def judged(score: float, failed: bool, split: str, index: int, text: str) -> dict[str, Any]:
    """What veRL is told of a rollout.

    Returns:
        score and acc, the reward; failed, 1 where the scorer or environment had none; where, the
        example, and completion, the text that was judged, for dumps.
    """
    return {
        "score": score, "acc": score, "failed": int(failed), "where": f"{split}/{index}",
        "completion": text,
    }  # fmt: skip


class Desk:
    """Collects the answers that arrive together; one thread scores them.

    Args:
        settings: path of the run's settings.
    """

    def __init__(self, settings: str) -> None:
        known = read(settings)
        self.task = make_task(**known.task)
        scoring: Any = SimpleNamespace(**known.scoring)
        self.scorer = Scorer(self.task, scoring, logger.warning)
        self._waiting: list[tuple[str, Example, asyncio.Future[tuple[float, bool]]]] = []
        self._at_work: asyncio.Task[None] | None = None

    async def score(self, text: str, split: str, index: int) -> tuple[float, bool]:
        """An answer's reward, and whether its scorer failed."""
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
        except Exception as error:  # all of them; the driver knows whether all of an iteration
            logger.warning("%s", error if isinstance(error, RunStopped) else in_one_line(error))
            return [(0.0, True)] * len(pairs)
        failed = set(self.scorer.failures)
        return [(reward, place in failed) for place, reward in enumerate(rewards)]


_desk = cache(Desk)
