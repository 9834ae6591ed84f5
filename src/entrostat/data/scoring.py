"""Rewards from a task, every one checked to be a number.

A scorer meets answers that nobody wrote it for: one that it raises at, or gives no number for,
scores 0 and is counted, and the run goes on. A task's own `score` runs here; if it fails at every
answer of an iteration it has a bug, and the run stops. Scorers of others (`Task.remote`) run in
worker processes, where an answer that they hang at or die of costs no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import RunStopped, in_one_line
from ..grading import as_reward
from ..sandbox import use
from ..tasks import Example, Task
from ..workers import Call, Outcome, Pool, tried

if TYPE_CHECKING:  # veRL's environment, where this runs as well, need not have tyro
    from ..config import Scoring

_NO_LIST = (Mapping, Set, str, bytes, bytearray)  # their elements are keys, characters, in no order


class Scorer:
    """Scores a task's completions; the worker processes, where there are some, are its own.

    `tell` is told of the first answer that a scorer fails at.

    Attributes:
        failed: answers of the last call that had no reward.
        failures: their places.
        everywhere: of several processes that score an iteration together, called by each at every
            call: (failed, answers) here to those of all of them.
    """

    def __init__(self, task: Task, settings: Scoring, tell: Callable[[str], None]) -> None:
        self._task, self._settings, self._tell = task, settings, tell
        self._remote = getattr(task, "remote", None)
        if getattr(settings, "sandbox", "auto") != "auto":
            use(settings.sandbox)
        self._pool: Pool | None = None
        self._told = False
        self.everywhere: Callable[..., tuple[int, int]] = lambda failed, answers: (failed, answers)
        self.failed = 0
        self.failures: list[int] = []

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.close()

    def __call__(
        self, completions: Sequence[str], examples: Sequence[Example], iteration: int,
        judged: Sequence[tuple[float, str]] | None = None,
    ) -> Tensor:  # fmt: skip
        """Rewards [B] float32 of completions, each with its example; 0 where its scorer failed.

        `judged` are B rewards, and in words why there is none ("" where there is), as environments
        gave them; None asks the task's scorer.

        Raises:
            RunStopped: a task's own scorer failed at every completion of several, a grader raised
                at every one, or `score_batch` at all of them together; the message names the first
                rollout.
        """
        pairs = list(zip(completions, examples, strict=True))
        remote, who = False, "scorer" if judged is None else "environment"
        if judged is None:
            calls = [self._remote(*pair) for pair in pairs] if self._remote else [None]
            remote = None not in calls
            run = self._in_workers(calls, iteration) if remote else self._here(pairs, iteration)
            judged = [_judged(outcome) for outcome in run]
        failures = [place for place, (_, failure) in enumerate(judged) if failure]
        self.failed, self.failures = len(failures), failures
        # a grader that hangs may do so for what the policy wrote
        bugs = [p for p in failures if not remote or judged[p][1].startswith("raised")]
        failed, answers = self.everywhere(len(bugs), len(pairs))
        if failures:
            first = failures[0]
            said, asked = pairs[first]
            words = (
                f"iteration {iteration}, rollout {first} (prompt {asked.prompt[:60]!r}, completion "
                f"{said[:60]!r}): the {who} of {self._task.name} {judged[first][1]}"
            )
            if 1 < answers == failed:
                raise RunStopped(
                    f"{words}, and failed at all {answers} answers: a bug of the task? Have "
                    "`score` give 0 for an answer that it cannot read. No update was made"
                )
            if not self._told:
                self._told = True
                self._tell(f"{words}. Such answers score 0; reward/failed counts them")
        return torch.tensor([reward for reward, _ in judged])

    def figures(self) -> dict[str, float]:
        """`reward/failed`: answers of the last call that had no reward."""
        return {"reward/failed": self.failed}

    def _here(self, pairs: list[tuple[str, Example]], iteration: int) -> list[Outcome]:
        batched = getattr(self._task, "score_batch", None)
        if batched is not None:
            return [Outcome(value) for value in _together(self._task, batched, pairs, iteration)]
        return [tried(self._task.score, *pair) for pair in pairs]

    def _in_workers(self, calls: list[Call], iteration: int) -> list[Outcome]:
        settings = self._settings
        if self._pool is None:
            setup = getattr(self._task, "remote_setup", None)
            prepare = () if setup is None else (setup(),)
            self._pool = Pool(prepare, settings.workers or None, settings.memory << 20)
        try:
            return self._pool.map(calls, settings.timeout)
        except (ValueError, RuntimeError) as error:
            raise RunStopped(f"iteration {iteration}: {self._task.name}: {error}") from error


def _judged(outcome: Outcome) -> tuple[float, str]:
    """An answer's reward, and in words why it has none; "" where it has one."""
    if outcome.failure is not None:
        return 0.0, f"{outcome.failure} ({outcome.detail})"
    try:
        return as_reward(outcome.value), ""
    except ValueError as error:
        return 0.0, f"gave no reward ({error})"


def _together(
    task: Task, batched: Callable[..., Any], pairs: list[tuple[str, Example]], iteration: int
) -> list[Any]:
    who = f"iteration {iteration}: {task.name}.score_batch"
    try:
        given = batched([completion for completion, _ in pairs], [example for _, example in pairs])
        listed = None if isinstance(given, _NO_LIST) else list(given)
    except (Exception, SystemExit) as error:
        raise RunStopped(f"{who} raised {in_one_line(error)}") from error
    if listed is None:
        raise RunStopped(
            f"{who} gave a {type(given).__name__}; it must give a list of numbers, one per rollout"
        )
    if len(listed) != len(pairs):
        raise RunStopped(
            f"{who} gave {len(listed)} rewards for {len(pairs)} rollouts; it must give one each"
        )
    return listed
