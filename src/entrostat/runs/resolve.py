"""Builds and checks the objects that a configuration names, for every trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any

import torch

from ..config import TrainConfig
from ..core.advantages import advantages
from ..core.objective import Objective, make_objective
from ..tasks import Task, make_task

# trainers, a setting, whether its value is unsupported there, and the reason
_OTHERS = ("trl", "verl")
_CANNOT: tuple[tuple[tuple[str, ...], str, Callable[[TrainConfig], Any], str], ...] = (
    (_OTHERS, "numerics.round_logp", lambda c: c.numerics.round_logp,
     "rounding is put into the lab's ratio only; drop it, or use --host lab"),
    (_OTHERS, "numerics.round_old_logp", lambda c: c.numerics.round_old_logp,
     "rounding is put into the lab's ratio only; drop it, or use --host lab"),
    (_OTHERS, "optim.keep_size", lambda c: c.optim.keep_size,
     "it makes the same number of updates of every batch; leave it out, or use --host lab"),
    (_OTHERS, "sampling.measure", lambda c: not c.sampling.measure,
     "its sampler gives no entropies, so the old policy is measured; leave it true"),
    (_OTHERS, "sampling.enough", lambda c: c.sampling.enough.on,
     "its sampler cannot be stopped while rollouts go on; leave it out, or use --host lab"),
    (_OTHERS, "forecast.every", lambda c: c.forecast.every > 0,
     "forecasts are made in the lab only; set it to 0, or use --host lab"),
    (_OTHERS, "device", lambda c: ":" in c.device,
     "it takes all GPUs that it sees; set CUDA_VISIBLE_DEVICES and device 'cuda'"),
    (("verl",), "sampling.redraws", lambda c: c.sampling.redraws,
     "veRL has its own; set verl.algorithm.filter_groups.enable, and drop it"),
    (("verl",), "analyze.every", lambda c: c.analyze.every > 0,
     "veRL's workers make no analysis; set it to 0, or use --host lab or trl"),
)  # fmt: skip


def check_host(config: TrainConfig, host: str) -> None:
    for hosts, key, asked, reason in _CANNOT:
        if host in hosts and asked(config):
            raise ValueError(f"host {host!r}: {key} is {config._get(key)!r}: {reason}")


def task_settings(config: TrainConfig) -> dict[str, Any]:
    """The configuration's task as arguments of `make_task`; the run's seed by default."""
    return {"seed": config.seed} | config.task


def task_of(config: TrainConfig) -> Task:
    return make_task(**task_settings(config))


def check_task(task: Task, trained: bool = True) -> None:
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
    check_host(config, host)
    objective = make_objective(
        config.method,
        advantage=config.advantage,
        aggregation=config.optim.aggregation,
        max_length=max_length,
        updates=config.updates,
    )
    objective.check_host(host, fields, config.updates)
    enough = config.sampling.enough
    K = enough.least(config.sampling.rollouts)
    try:  # test with the estimator itself whether the group is too small
        advantages(objective.advantage, torch.zeros(K), torch.zeros(K), torch.ones(K))
    except ValueError as error:
        key = "sampling.enough.group" if enough.on else "sampling.rollouts"
        raise ValueError(f"{key} is {K}: {error}") from None
    return objective
