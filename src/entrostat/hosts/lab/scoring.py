"""Rewards from a task, every one checked to be a number.

A task's own `score` runs here and must be right: what it raises, or gives that is no number, stops
the run. Scorers of others (`Task.remote`) meet answers that nobody wrote them for: they run in
worker processes under a time limit, and an answer that they fail at scores 0 and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from ...config import Scoring
from ...errors import RunStopped, in_one_line
from ...tasks import Example, Task
from ...tasks.graders import as_reward
from ...workers import Call, Outcome, Pool

_NO_LIST = (Mapping, Set, str, bytes, bytearray)  # their elements are keys, characters, in no order


class Scorer:
    """Scores a task's completions; the worker processes, where there are some, are its own.

    Args:
        task: whose verifier it is.
        settings: of worker processes.
        tell: told of the first answer that a scorer fails at.
    """

    def __init__(self, task: Task, settings: Scoring, tell: Callable[[str], None]) -> None:
        self._task, self._settings, self._tell = task, settings, tell
        self._remote = getattr(task, "remote", None)
        self._pool: Pool | None = None
        self._told = False
        self.failed: int | None = None

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.close()

    def __call__(
        self, completions: Sequence[str], examples: Sequence[Example], iteration: int
    ) -> Tensor:
        """Rewards [B] float32 of completions, each with its example.

        Raises:
            RunStopped: the task raised, or gave something else; the message names the rollout.
        """
        pairs = list(zip(completions, examples, strict=True))
        calls = [self._remote(*pair) for pair in pairs] if self._remote is not None else [None]
        if None not in calls:
            return torch.tensor(self._in_workers(calls, pairs, iteration))
        batched = getattr(self._task, "score_batch", None)
        given = _together(self._task, batched, pairs, iteration) if batched is not None else None
        rewards = []
        for place, (completion, example) in enumerate(pairs):
            try:
                value = self._task.score(completion, example) if given is None else given[place]
            except (Exception, SystemExit) as error:
                raise RunStopped(
                    f"{_rollout(iteration, place, completion, example)}: {self._task.name}.score "
                    f"raised {in_one_line(error)}"
                ) from error
            try:
                rewards.append(as_reward(value))
            except ValueError as error:
                raise RunStopped(
                    f"{_rollout(iteration, place, completion, example)}: {error}. No update was "
                    "made"
                ) from None
        return torch.tensor(rewards)

    def figures(self) -> dict[str, float]:
        """`reward/failed`: answers of the last call that the scorer failed at, if it can."""
        return {} if self.failed is None else {"reward/failed": self.failed}

    def _in_workers(
        self, calls: list[Call], pairs: list[tuple[str, Example]], iteration: int
    ) -> list[float]:
        settings = self._settings
        if self._pool is None:
            setup = getattr(self._task, "remote_setup", None)
            prepare = () if setup is None else (setup(),)
            self._pool = Pool(prepare, settings.workers or None, settings.memory << 20)
        try:
            outcomes = self._pool.map(calls, settings.timeout)
        except (ValueError, RuntimeError) as error:
            raise RunStopped(f"iteration {iteration}: {self._task.name}: {error}") from error
        found = [_checked(outcome) for outcome in outcomes]
        failures = [place for place, outcome in enumerate(found) if outcome.failure is not None]
        self.failed = len(failures)
        if failures and not self._told:
            self._told = True
            place = failures[0]
            self._tell(
                f"{_rollout(iteration, place, *pairs[place])}: the scorer of {self._task.name} "
                f"{found[place].failure} ({found[place].detail}). Such answers score 0; "
                "reward/failed counts them"
            )
        return [0.0 if outcome.failure is not None else outcome.value for outcome in found]


def _checked(outcome: Outcome) -> Outcome:
    """An outcome whose value, if it has one, is a reward."""
    if outcome.failure is not None:
        return outcome
    try:
        return Outcome(as_reward(outcome.value))
    except ValueError as error:
        return Outcome(None, "raised", str(error))


def _together(
    task: Task, batched: Callable[..., Any], pairs: list[tuple[str, Example]], iteration: int
) -> list[Any]:
    """What `score_batch` gives, one each."""
    who = f"iteration {iteration}: {task.name}.score_batch"
    try:
        given = batched([completion for completion, _ in pairs], [example for _, example in pairs])
        listed = None if isinstance(given, _NO_LIST) else list(given)
    except (Exception, SystemExit) as error:
        raise RunStopped(f"{who} raised {in_one_line(error)}") from error
    if listed is None:
        raise RunStopped(
            f"{who} gave a {type(given).__name__}; it must give a list of numbers, one a rollout"
        )
    if len(listed) != len(pairs):
        raise RunStopped(
            f"{who} gave {len(listed)} rewards for {len(pairs)} rollouts; it must give one each"
        )
    return listed


def _rollout(iteration: int, place: int, completion: str, example: Example) -> str:
    return (
        f"iteration {iteration}, rollout {place} (prompt {example.prompt[:60]!r}, completion "
        f"{completion[:60]!r})"
    )
