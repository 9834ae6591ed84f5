"""The self-check: is this veRL supported, and is the plugin active?

veRL imports its plugins inside a `try` that logs failures at DEBUG, so a broken plugin would
silently leave veRL's own loss in force. `check` therefore runs where its error is not caught: when
veRL builds the actor's configuration (in the launching process, before anything is started), when
the trainer is made, and in every worker.
"""

from __future__ import annotations

import importlib
import inspect
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from ...errors import in_one_line

VERSION = "0.9.1"
NAME = "entrostat"

_BASE, _WORKERS = "verl.trainer.ppo.v1.trainer_base", "verl.workers.engine_workers"
# Names that this trainer overrides, or calls long after the start: (module, name, its first
# parameters or None). If veRL no longer calls an override, its own code stays in force; if an
# imported name is gone, the plugin's import fails. Canary tests are in tests/verl_env.
NAMES: tuple[tuple[str, str, tuple[str, ...] | None], ...] = (
    (_BASE, "PPOTrainer.__init__", ("self", "config")),
    (_BASE, "PPOTrainer._init_resource_pool_mgr", ("self",)),
    (_BASE, "PPOTrainer.step", ("self", "metrics", "timing_raw")),
    (_BASE, "PPOTrainer._compute_old_log_prob", ("self", "batch", "metrics")),
    (_BASE, "PPOTrainer._compute_advantage", ("self", "batch", "metrics")),
    (_BASE, "PPOTrainer._update_actor", ("self", "batch", "metrics")),
    (_BASE, "PPOTrainer._save_checkpoint", ("self",)),
    (_BASE, "PPOTrainer._load_checkpoint", ("self",)),
    (_BASE, "PPOTrainer._log_rollout_data", ("self", "batch", "timing_raw", "rollout_data_dir")),
    (_BASE, "tq.kv_batch_get", ("keys", "partition_id", "select_fields")),
    (_BASE, "tq.kv_batch_put", ("keys", "partition_id", "fields")),
    (_WORKERS, "ActorRolloutRefWorker.actor_worker_cls", None),
    (_WORKERS, "ActorRolloutRefWorker.init_model", ("self",)),
    (_WORKERS, "TrainingWorker.set_loss_fn", ("self", "loss_fn")),
    (_WORKERS, "TrainingWorker.train_mini_batch", ("self", "data")),
    (_WORKERS, "TrainingWorker.train_batch", ("self", "data")),
    ("verl.workers.engine.base", "BaseEngine.infer_batch", ("self", "data", "loss_function")),
    ("verl.workers.engine.base", "BaseEngine.eval_mode", ("self",)),
    ("verl.workers.engine.base", "BaseEngine.get_data_parallel_group", ("self",)),
    ("verl.utils.tensordict_utils", "assign_non_tensor", ("tensor_dict",)),
)
_TESTED = f"Tested with veRL {VERSION}: pip install verl=={VERSION}"


def check() -> None:
    """Raise unless entrostat is active in this process's veRL.

    Raises:
        RuntimeError: veRL is missing or lacks a name that is used here, or the plugin cannot be
            imported; the message has the cause and the fix.
    """
    _check_names()
    _check_plugin()


@cache  # exceptions are not cached, so a failure raises each time
def _check_names() -> None:
    try:
        version = importlib.import_module("verl").__version__
    except Exception as error:
        raise RuntimeError(
            f"entrostat.trainers.verl: veRL cannot be imported ({in_one_line(error)}); install "
            f"veRL {VERSION}, see docs/train_verl.md"
        ) from error
    for module, name, parameters in NAMES:
        problem = missing(module, name, parameters)
        if problem is not None:
            raise RuntimeError(f"entrostat.trainers.verl: veRL {version}: {problem}. {_TESTED}")


def missing(module: str, name: str, parameters: tuple[str, ...] | None) -> str | None:
    """Describe a problem with one of the names above; None if there is none."""
    try:
        value: Any = importlib.import_module(module)
    except Exception as error:
        return f"{module} cannot be imported ({in_one_line(error)})"
    for part in name.split("."):
        if not hasattr(value, part):
            return f"{module}.{name} is gone"
        value = getattr(value, part)
    if parameters is None:
        return None
    there = tuple(inspect.signature(value).parameters)
    if there[: len(parameters)] != parameters:
        return f"{module}.{name} takes ({', '.join(there)}), not ({', '.join(parameters)}, ...)"
    return None


def _check_plugin() -> None:
    try:
        for plugin in entry_points(group="verl.plugins", name=NAME):
            plugin.load()  # as veRL does, but without catching errors
        from verl.trainer.ppo.core_algos import get_policy_loss_fn
        from verl.trainer.ppo.v1 import get_trainer_cls

        trainer, loss = get_trainer_cls(NAME), get_policy_loss_fn(NAME)
    except Exception as error:
        raise RuntimeError(
            f"entrostat.trainers.verl: the plugin is not in force: {in_one_line(error)}. "
            f"{_TESTED}; veRL itself says so at VERL_LOGGING_LEVEL=DEBUG only"
        ) from error
    for what in (trainer, loss):
        if not what.__module__.startswith("entrostat."):
            raise RuntimeError(
                f"entrostat.trainers.verl: {what.__module__}.{what.__qualname__} has taken the "
                f"name {NAME!r} in veRL's registry; remove that plugin"
            )
