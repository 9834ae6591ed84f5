"""What a configuration names, made and checked: the same for every host."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any

import torch

from ..config import TrainConfig
from ..core.advantages import advantages
from ..core.objective import Objective, make_objective
from ..tasks import Task, make_task


def task_of(config: TrainConfig) -> Task:
    """The configuration's task; the run's seed is its own where it names none."""
    settings: dict[str, Any] = {"seed": config.seed} | config.task
    return make_task(**settings)


def check_task(task: Task, trained: bool = True) -> None:
    """Refuse a task whose splits or sizes are none, or which is not to be trained on."""
    if trained and not getattr(task, "trainable", True):
        raise ValueError(
            f"task {task.name!r} is a test set: evaluate on it with [[eval]] or `entrostat eval`, "
            "or train on it knowingly with --task.train_on_test true"
        )
    if not isinstance(task.splits, tuple | list) or not task.splits:
        raise ValueError(
            f"task {task.name!r}: splits must be names in a tuple, the one to train on first, got "
            f"{task.splits!r:.80}"
        )
    for split in task.splits:
        size = task.size(split)
        if size is not None and (isinstance(size, bool) or not isinstance(size, Integral)):
            raise ValueError(
                f"task {task.name!r}: size({split!r}) must be a whole number, or None where there "
                f"is no end, got {size!r:.80}"
            )
        if size is not None and size < 1:
            raise ValueError(f"task {task.name!r}: the data set is empty (split {split!r})")


def objective_of(
    config: TrainConfig, host: str, fields: Iterable[str], max_length: int
) -> Objective:
    objective = make_objective(
        config.method,
        advantage=config.advantage,
        aggregation=config.optim.aggregation,
        max_length=max_length,
        updates=config.updates,
    )
    objective.check_host(host, fields, config.updates)
    if config.sampling.redraws and host == "verl":
        raise ValueError(
            f"host 'verl': sampling.redraws is {config.sampling.redraws}, and veRL has its own; "
            "set verl.algorithm.filter_groups.enable, and drop it"
        )
    enough = config.sampling.enough
    if enough.on and host != "lab":
        raise ValueError(
            f"host {host!r}: sampling.enough: its sampler cannot be stopped while rollouts go on; "
            "leave it out, or use --host lab"
        )
    K = enough.least(config.sampling.rollouts)
    try:  # a group too small, found by asking the estimator itself
        advantages(objective.advantage, torch.zeros(K), torch.zeros(K), torch.ones(K))
    except ValueError as error:
        key = "sampling.enough.group" if enough.on else "sampling.rollouts"
        raise ValueError(f"{key} is {K}: {error}") from None
    return objective
