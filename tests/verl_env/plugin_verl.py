"""The plugin in fresh processes, the self-check, and canaries on what is used of veRL."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import subprocess
import sys
from typing import Any

import pytest
import torch

from entrostat.trainers.verl import check as check_it
from entrostat.trainers.verl.selfcheck import NAME, NAMES, VERSION, missing


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
        env=os.environ | environment, check=False,
    )  # fmt: skip


def test_it_is_an_entry_point() -> None:
    found = [e for e in importlib.metadata.entry_points(group="verl.plugins") if e.name == NAME]
    assert [e.value for e in found] == ["entrostat.trainers.verl.plugin"]


def test_a_fresh_process_has_the_trainer() -> None:
    # nothing of entrostat is imported by hand
    done = python(
        "import verl\n"
        "from verl.trainer.ppo.v1.trainer_base import get_trainer_cls\n"
        "cls = get_trainer_cls('entrostat')\n"
        "print(cls.__module__, cls.__name__)\n"
    )
    assert done.stdout.split()[-2:] == ["entrostat.trainers.verl.trainer", "EntropyTrainer"], done


@pytest.mark.parametrize("first", ["trainer", "settings", "selfcheck"])
def test_any_module_may_come_first(first: str) -> None:
    # each of these imports veRL, which imports the plugin, which imports the trainer
    code = (
        f"import entrostat.trainers.verl.{first} as m; from entrostat.trainers.verl import check; "
    )
    done = python(code + "check(); print('fine')")
    assert done.stdout.split()[-1:] == ["fine"], done.stderr[-2000:]


def test_a_broken_plugin_is_loud() -> None:
    # veRL builds the actor's configuration in the launching process, before anything is started
    code = (
        "import sys\n"
        # the worker's module cannot import this
        "sys.modules['entrostat.core.process_ranks'] = None\n"
        "import verl\n"
        "print('veRL said nothing')\n"
        "from configuration import compose\n"
        "from verl.utils.config import validate_config\n"
        "loss = 'actor_rollout_ref.actor.policy_loss'\n"
        "config = compose(['actor_rollout_ref.rollout.name=vllm',\n"
        "    'actor_rollout_ref.actor.use_dynamic_bsz=true',\n"
        "    'trainer.v1.trainer_mode=entrostat', f'+{loss}.method=grpo',\n"
        "    f'{loss}._target_=entrostat.trainers.verl.settings.PolicyLoss',\n"
        "    f'{loss}.loss_mode=entrostat'])\n"
        "validate_config(config, False, False)\n"
        "print('not reached')\n"
    )
    done = python(code)
    assert "veRL said nothing" in done.stdout, done.stderr[-2000:]
    assert "not reached" not in done.stdout
    assert done.returncode != 0
    assert "the plugin is not in force" in done.stderr
    assert "entrostat.core.process_ranks" in done.stderr  # the cause


def test_with_plugins_switched_off_the_check_loads_it() -> None:
    done = python(
        "from entrostat.trainers.verl import check; check(); print('fine')",
        VERL_USE_EXTERNAL_PLUGINS="none",
    )
    assert done.stdout.split()[-1:] == ["fine"], done.stderr[-2000:]


def test_verls_own_worker_refuses_our_loss() -> None:
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    with pytest.raises(RuntimeError, match=r"set trainer\.v1\.trainer_mode=entrostat"):
        get_policy_loss_fn(NAME)(old_log_prob=None)


def test_a_name_taken_by_another_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.trainer.ppo.v1 import trainer_base

    class Other(trainer_base.PPOTrainer):
        pass

    monkeypatch.setitem(trainer_base.TRAINER_REGISTRY, NAME, Other)
    with pytest.raises(RuntimeError, match="has taken the name 'entrostat'"):
        check_it()


def test_an_unknown_verl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("entrostat.trainers.verl.selfcheck")
    monkeypatch.setattr(
        module, "NAMES", (*NAMES, ("verl.workers.engine_workers", "TrainingWorker.gone", None))
    )
    module._check_names.cache_clear()
    try:
        with pytest.raises(RuntimeError, match=r"TrainingWorker.gone is gone.*pip install verl=="):
            check_it()
    finally:
        module._check_names.cache_clear()


def test_the_version_is_the_one_that_was_tested() -> None:
    import verl

    assert verl.__version__ == VERSION == importlib.metadata.version("verl")


# ------------------------------------------------------------------------------- canaries


@pytest.mark.parametrize(("module", "name", "parameters"), NAMES, ids=lambda x: str(x)[-40:])
def test_names(module: str, name: str, parameters: Any) -> None:
    assert missing(module, name, parameters) is None


def test_missing_says_what() -> None:
    assert "cannot be imported" in str(missing("verl.nowhere", "x", None))
    assert "is gone" in str(missing("verl.workers.engine_workers", "TrainingWorker.x", None))
    found = missing("verl.workers.engine_workers", "TrainingWorker.train_batch", ("self", "x"))
    assert "takes (self, data), not (self, x, ...)" in str(found)


def source(module: str, name: str) -> str:
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return inspect.getsource(value)


def in_order(text: str, *pieces: str) -> None:
    place = 0
    for piece in pieces:
        found = text.find(piece, place)
        assert found >= 0, f"{piece!r} is gone, or no longer after the pieces before it"
        place = found + len(piece)


WORKERS, BASE = "verl.workers.engine_workers", "verl.trainer.ppo.v1.trainer_base"
FSDP = "verl.workers.engine.fsdp.transformer_impl"


def test_the_driver_knows_old_log_probs_before_advantages() -> None:
    in_order(
        source(BASE, "PPOTrainer._step_once"),
        "self._balance_batch(", "self._compute_old_log_prob(", "self._compute_ref_log_prob(",
        "self._compute_advantage(", "self._update_actor(",
    )  # fmt: skip
    text = source(BASE, "PPOTrainer._compute_old_log_prob")
    in_order(text, '"calculate_entropy": True', 'data["old_log_probs"]', 'data["entropy"]',
             'fields=data.select("old_log_probs", "entropy")')  # fmt: skip


def test_the_driver_hands_extra_info_on() -> None:
    text = source(BASE, "PPOTrainer._update_actor")
    in_order(text, "batch.extra_info.update(extra_info)", "actor_rollout_wg.update_actor(batch)",
             'rename_dict(output["metrics"], "actor/")', "reduce_metrics(output)")  # fmt: skip
    text = source("verl.utils.transferqueue_utils", "_async_meta_to_realdata")
    in_order(text, "meta.extra_info", "assign_non_tensor")


def test_the_queue_gives_back_what_was_put() -> None:
    # a number a rollout comes back dense, a row of numbers nested
    from transfer_queue.storage.managers.simple_storage_manager import AsyncSimpleStorageManager

    pack = AsyncSimpleStorageManager._pack_field_values
    assert pack([torch.tensor(1.0), torch.tensor(0.5)]).tolist() == [1.0, 0.5]
    rows = pack([torch.ones(3), torch.ones(1)])
    assert rows.is_nested
    assert rows.offsets().tolist() == [0, 3, 4]


def test_roles_and_their_worker() -> None:
    text = source(BASE, "PPOTrainer._init_resource_pool_mgr")
    assert "self.role_worker_mapping[role] = ray.remote(ActorRolloutRefWorker)" in text
    text = source(WORKERS, "ActorRolloutRefWorker.init_model")
    in_order(text, "self.actor = self.actor_worker_cls(", "self.actor.set_loss_fn(")
    assert "self.actor.train_mini_batch(data=data)" in source(
        WORKERS, "ActorRolloutRefWorker.update_actor"
    )


def test_a_worker_trains_minibatch_by_minibatch_with_its_loss() -> None:
    text = source(WORKERS, "TrainingWorker.train_mini_batch")
    in_order(text, "make_iterator(", "self.engine.train_mode(", "self.train_batch(mini_batch_td)")
    text = source(WORKERS, "TrainingWorker.train_batch")
    in_order(text, "self.engine.train_batch(data, loss_function=self.loss_fn)")


def test_the_engine_calls_the_loss_a_micro_batch_and_restores_their_order() -> None:
    text = source(FSDP, "FSDPEngine.forward_backward_batch")
    in_order(text, "assign_non_tensor(data, dp_size=", "prepare_micro_batches(", "forward_step(",
             "loss.backward()", "postprocess_batch_func(")  # fmt: skip
    text = source(FSDP, "FSDPEngineWithLMHead.forward_step")
    assert "model_output=model_output, data=micro_batch, dp_group=" in text
    text = source(FSDP, "FSDPEngineWithLMHead.prepare_model_outputs")
    in_order(text, 'model_output["log_probs"] = log_probs', 'model_output["entropy"] = entropy')
    assert "restore_dynamic_batch" in source("verl.workers.engine.utils", "postprocess_batch_func")


def test_precision_comes_from_mixed_precision_alone() -> None:
    # recipe.py writes both; should the engine read `dtype` itself one day, this one can go
    text = source(FSDP, "FSDPEngine._build_fsdp_module")
    in_order(text, "self.engine_config.mixed_precision", "param_dtype = torch.bfloat16")
    assert "engine_config.dtype" not in inspect.getsource(importlib.import_module(FSDP))


def test_validation_builds_the_actors_configuration() -> None:
    # where the self-check runs first
    text = source("verl.utils.config", "validate_config")
    assert "omega_conf_to_dataclass(config.actor_rollout_ref.actor)" in text
    text = inspect.getsource(importlib.import_module("verl.trainer.main_ppo"))
    in_order(text, "validate_config(", "run_ppo(")


def test_a_row_of_the_validation_file_says_how_often_it_is_sampled() -> None:
    text = inspect.getsource(importlib.import_module("verl.trainer.ppo.v1.agent_loop_tq"))
    in_order(text, 'prompt.pop("__rollout_n__"', "for i in range(n):", "self._run_agent_loop(")
    text = source(BASE, "PPOTrainer._validate")
    in_order(text, '"__rollout_n__", [', "rollout_n = int(rollout_n)")


def test_the_literal_sync() -> None:
    text = inspect.getsource(importlib.import_module(BASE))
    assert 'self.trainer_mode == "sync"' in text
    assert "self.trainer_mode = self.config.trainer.v1.trainer_mode" in text


def test_plugins_are_swallowed() -> None:
    # should veRL raise one day, the check is still right, and this is how we learn it
    text = inspect.getsource(importlib.import_module("verl"))
    in_order(text, '_entry_points(group="verl.plugins")', "_ep.load()", "except Exception", "debug")
