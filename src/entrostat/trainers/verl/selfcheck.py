"""The self-check: is veRL one that this host knows, and is the plugin in place?

veRL imports its plugins inside a `try` that logs failures at DEBUG, so a broken plugin would leave
veRL's own loss in force without a word. `check` therefore runs where nothing swallows it: when veRL
builds the actor's configuration (in the launching process, before anything is started), when the
trainer is made, and in every worker.
"""

from __future__ import annotations

import importlib
import inspect
from functools import cache
from typing import Any

VERSION = "0.9.1"
NAME = "entrostat"

# Every name of veRL that this host calls, overrides or reads: (module, name, its first parameters
# or None). tests/verl_env holds canaries on what these do.
NAMES: tuple[tuple[str, str, tuple[str, ...] | None], ...] = (
    ("verl.trainer.ppo.v1.trainer_base", "register_trainer", ("name",)),
    ("verl.trainer.ppo.v1.trainer_base", "get_trainer_cls", ("name",)),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer.__init__", ("self", "config")),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._init_resource_pool_mgr", ("self",)),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer.step", ("self", "metrics", "timing_raw")),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._compute_advantage",
     ("self", "batch", "metrics")),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._update_actor", ("self", "batch", "metrics")),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._save_checkpoint", ("self",)),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._load_checkpoint", ("self",)),
    ("verl.trainer.ppo.v1.trainer_base", "tq.kv_batch_get",
     ("keys", "partition_id", "select_fields")),
    ("verl.trainer.ppo.v1.trainer_base", "tq.kv_batch_put", ("keys", "partition_id", "fields")),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._log_rollout_data",
     ("self", "batch", "timing_raw", "rollout_data_dir")),
    ("verl.trainer.ppo.v1.trainer_sync", "PPOTrainerSync", None),
    ("verl.experimental.agent_loop.agent_loop", "register", ("agent_name",)),
    ("verl.experimental.agent_loop.agent_loop", "AgentLoopBase", None),
    ("verl.experimental.agent_loop.agent_loop", "AgentLoopOutput", None),
    ("verl.utils.profiler", "simple_timer", ("name", "timing_raw")),
    ("verl.trainer.ppo.utils", "Role.ActorRolloutRef", None),
    ("verl.trainer.ppo.utils", "need_critic", ("config",)),
    ("verl.trainer.ppo.core_algos", "register_policy_loss", ("name",)),
    ("verl.trainer.distillation", "is_distillation_enabled", None),
    ("verl.workers.config", "PolicyLossConfig", None),
    ("verl.workers.engine_workers", "ActorRolloutRefWorker.actor_worker_cls", None),
    ("verl.workers.engine_workers", "ActorRolloutRefWorker.init_model", ("self",)),
    ("verl.workers.engine_workers", "TrainingWorker.set_loss_fn", ("self", "loss_fn")),
    ("verl.workers.engine_workers", "TrainingWorker.train_mini_batch", ("self", "data")),
    ("verl.workers.engine_workers", "TrainingWorker.train_batch", ("self", "data")),
    ("verl.workers.engine.base", "BaseEngine.infer_batch", ("self", "data", "loss_function")),
    ("verl.workers.engine.base", "BaseEngine.eval_mode", ("self",)),
    ("verl.workers.engine.base", "BaseEngine.get_data_parallel_group", ("self",)),
    ("verl.workers.utils.padding", "no_padding_2_padding", ("tensor", "data")),
    ("verl.workers.utils.padding", "response_to_nested", ("tensor", "response_mask")),
    ("verl.single_controller.base.decorator", "register", ("dispatch_mode",)),
    ("verl.single_controller.base.decorator", "Dispatch.ONE_TO_ALL", None),
    ("verl.utils.tensordict_utils", "get", ("tensordict", "key", "default")),
    ("verl.utils.tensordict_utils", "assign_non_tensor", ("tensor_dict",)),
    ("verl.utils.metric", "Metric.__init__", ("self", "aggregation", "value")),
    ("verl.utils.metric", "AggregationType.SUM", None),
    ("verl.utils.config", "omega_conf_to_dataclass", ("config",)),
    ("verl.utils.device", "get_device_id", ()),
)  # fmt: skip


def check() -> None:
    """Find out whether entrostat is in force in this process's veRL.

    Raises:
        RuntimeError: veRL is missing or lacks a name that is used here, or the plugin cannot be
            imported; the message has the cause and the fix.
    """
    _check_names()
    _check_plugin()


@cache  # a failure is not remembered, so it is raised each time
def _check_names() -> None:
    try:
        version = importlib.import_module("verl").__version__
    except Exception as error:
        raise RuntimeError(
            f"entrostat.trainers.verl: veRL cannot be imported ({_words(error)}); install veRL "
            f"{VERSION}, see docs/hosts/verl.md"
        ) from error
    for module, name, parameters in NAMES:
        problem = missing(module, name, parameters)
        if problem is not None:
            raise RuntimeError(
                f"entrostat.trainers.verl: veRL {version}: {problem}. Tested with veRL {VERSION}: "
                f"pip install verl=={VERSION}"
            )


def missing(module: str, name: str, parameters: tuple[str, ...] | None) -> str | None:
    """What is wrong with one of the names above, or None.

    Args:
        module: to import.
        name: dotted, inside it.
        parameters: the first ones it must have; None where it is no function.
    """
    try:
        value: Any = importlib.import_module(module)
    except Exception as error:
        return f"{module} cannot be imported ({_words(error)})"
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
        importlib.import_module("entrostat.trainers.verl.plugin")
        from verl.trainer.ppo.core_algos import get_policy_loss_fn
        from verl.trainer.ppo.v1 import get_trainer_cls

        trainer, loss = get_trainer_cls(NAME), get_policy_loss_fn(NAME)
    except Exception as error:
        raise RuntimeError(
            f"entrostat.trainers.verl: the plugin is not in force: {_words(error)}. veRL itself "
            "says so at VERL_LOGGING_LEVEL=DEBUG only"
        ) from error
    for what in (trainer, loss):
        if not what.__module__.startswith("entrostat."):
            raise RuntimeError(
                f"entrostat.trainers.verl: {what.__module__}.{what.__qualname__} has taken the "
                f"name {NAME!r} in veRL's registry; remove that plugin"
            )


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
