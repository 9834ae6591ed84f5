"""Resolve a configuration's model and task for veRL's processes. Imports no veRL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ...config import TrainConfig
from ...model_files import find
from ...models.capabilities import is_small
from ...models.loading import learning_rate
from ...runs.resolve import check_task, task_of
from ...tasks import Task


def place_of(model: str) -> str:
    """A model's name, or its directory as an absolute path: veRL's processes start elsewhere."""
    found = find(model)
    return str(Path(found).absolute()) if Path(found).is_dir() else found


def make(config: TrainConfig, task: Task | None = None) -> Task:
    """Make the configuration's task; veRL's processes remake it, so `task` must be of its class."""
    made = task_of(config)
    if task is not None and type(task) is not type(made):
        raise ValueError(
            f"host verl: task is a {type(task).__name__}, but veRL's workers make theirs from the "
            f"configuration, {config.task['name']!r}; name its class there, MODULE:CLASS"
        )
    check_task(made)
    return made


def learning_rate_of(config: TrainConfig) -> float:
    """The learning rate; if it is unset, the lab's default."""
    if config.optim.lr is not None or config.lora.rank:
        return learning_rate(config, small=False)
    return learning_rate(config, is_small(empty_model(config.model)))


def empty_model(model: str) -> Any:
    """The model without weights: tensors on the meta device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        settings = AutoConfig.from_pretrained(find(model), trust_remote_code=False)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(settings)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(cannot_load(model, error)) from None


def cannot_load(model: str, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0][:300]
    return f"model {model!r}: cannot load it: {reason}"
