"""Rewards from a task, validated to be numbers.

If a scorer raises or returns a non-number, the rollout gets reward 0, is counted in
`reward/failed`, and the run continues. A task's own `score` runs in this process; if it fails on
every answer of an iteration it has a bug, and the run stops. Third-party scorers (`Task.remote`)
run in worker processes, so that a hang or a crash on an answer costs only that answer.
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

if TYPE_CHECKING:  # this also runs in veRL's environment, which may lack tyro
    from ..config import Scoring

_NO_LIST = (Mapping, Set, str, bytes, bytearray)  # their elements are keys, characters, in no order


class Scorer:
    """Scores a task's completions; owns the worker processes, if any.

    `tell` is called with a message on the first answer that a scorer fails on.

    Attributes:
        failed: number of answers of the last call without a reward.
        failures: their indices.
        everywhere: if several processes score an iteration together: maps this process's (failed,
            answers) to those of all; every process calls it at every call.
    """

    def __init__(self, task: Task, settings: Scoring, tell: Callable[[str], None]) -> None:
        self._task, self._settings, self._tell = task, settings, tell
        self._remote = getattr(task, "remote", None)
        if settings.sandbox != "auto":
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
        """Rewards [B] float32 of completions, each with its example; 0 if the scorer failed.

        `judged` are B pairs from environments: reward, and the reason if there is none (else "");
        None calls the task's scorer.

        Raises:
            RunStopped: a task's own scorer failed on every completion (of several), a grader raised
                on every one, or `score_batch` failed on all together; the message names the first
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
        # a grader may hang because of the policy's text
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
        """`reward/failed`: the number of answers of the last call without a reward."""
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
    """An answer's reward, and the reason if it has none; else ""."""
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
