"""Recipes in veRL's own configuration system, and what is refused before a run starts."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from configuration import compose
from omegaconf import OmegaConf
from training_verl import overrides
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

from entrostat.config import from_dict, load
from entrostat.trainers.verl import shell_command, verl_config
from entrostat.trainers.verl.config import hydra_value
from entrostat.trainers.verl.preflight import look
from entrostat.trainers.verl.recipe import overrides as overrides_of
from entrostat.trainers.verl.recipe import settings, unseen
from entrostat.trainers.verl.settings import PolicyLoss, check_run

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes" / "papers").glob("*.toml"))
ACTOR = "actor_rollout_ref.actor"


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.name)
def test_every_recipe_is_a_configuration_of_verl(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # its check of LoRA asks vLLM's module, which needs vLLM
    stub = ModuleType("utils")
    stub.get_vllm_max_lora_rank = lambda rank: rank  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "verl.workers.rollout.vllm_rollout.utils", stub)
    monkeypatch.setitem(
        sys.modules, "verl.workers.rollout.vllm_rollout", ModuleType("vllm_rollout")
    )
    recipe = from_dict({**load(path), "host": "verl"})
    wanted = settings(recipe, unseen(recipe))
    config = compose(verl_config(path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        validate_config(config, need_reference_policy(config), need_critic(config))
    found_settings, objective = check_run(config)
    assert found_settings.method == recipe.method
    assert objective.advantage == wanted[f"+{ACTOR}.policy_loss.advantage"]
    for key, value in wanted.items():
        if not key.startswith("hydra."):
            found = OmegaConf.select(config, key.lstrip("+"))
            found = OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
            assert found == value, key
    # what the engine reads, not only what the recipe says
    engine = omega_conf_to_dataclass(config.actor_rollout_ref.actor).engine
    param = {"bf16": None, "fp16": "fp16"}[recipe.precision]
    assert (engine.mixed_precision or {}).get("param_dtype") == param


def test_fp16_recipes_are_among_them() -> None:
    assert {"bf16", "fp16"} == {load(path)["precision"] for path in RECIPES}


def test_float32_reaches_the_engine() -> None:
    recipe = from_dict({"host": "verl", "method": "kl_ref", "output": "run"})
    config = compose(overrides_of(recipe, unseen(recipe)))
    for part in (config.actor_rollout_ref.actor, config.actor_rollout_ref.ref):
        kinds = part.fsdp_config.mixed_precision
        assert (kinds.param_dtype, kinds.reduce_dtype) == ("fp32", "fp32")
    engine = omega_conf_to_dataclass(config.actor_rollout_ref.actor).engine
    assert engine.mixed_precision["param_dtype"] == "fp32"
    check_run(config)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("trainer.n_gpu_per_node=1", r"'trainer.n_gpu_per_node'. .*'trainer.n_gpus_per_node'"),
        ("trainer.v1.sampler=[", "OverrideParseException"),
        (f"{ACTOR}.strategy=megatron", "Megatron"),
        ("trainer.logger=[console,trackio]", "has no trackio; pip install it there"),
    ],
)  # fmt: skip
def test_the_preflight_says_what_verl_does_not_know(change: str, says: str) -> None:
    recipe = from_dict({"host": "verl", "method": "grpo", "output": "run"})
    lines = overrides_of(recipe, unseen(recipe))
    asked = {"tasks": [{"name": "target_sum"}], "processors": 12, "said": 12, "ray_address": None}
    assert look({**asked, "overrides": lines}) is None
    lines = [line for line in lines if not line.startswith(change.partition("=")[0] + "=")]
    said = look({**asked, "overrides": [*lines, change]})
    assert said is not None
    assert re.search(says, said)
    assert "\n" not in said


def test_the_preflight_finds_what_is_missing_here() -> None:
    recipe = from_dict({"host": "verl", "method": "grpo", "output": "run"})
    asked = {"overrides": overrides_of(recipe, unseen(recipe)), "processors": 12}
    tasks = [{"name": "target_sum"}, {"name": "words"}]
    words = look({**asked, "tasks": tasks, "ray_address": None})
    assert words is not None
    assert words.startswith("in veRL's environment: task 'words' needs reasoning_gym")
    ray = look({**asked, "tasks": tasks[:1], "ray_address": "127.0.0.1:9"})
    assert ray is not None
    assert ray.startswith("--ray-address '127.0.0.1:9': Ray cannot be reached")


def test_the_shell_reads_what_was_written() -> None:
    lines = verl_config(RECIPES[0], ["trainer.nnodes=2", "+ray_kwargs.ray_init.num_gpus=3"])
    text = shell_command(lines, python="printf '%s\\0' python")
    said = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout
    words = said.split("\0")[:-1]
    assert words[:3] == ["python", "-m", "verl.trainer.main_ppo"]
    assert words[3:] == lines
    assert lines.count("trainer.nnodes=2") == 1
    assert not any(line.startswith("trainer.nnodes=") and line[-1] != "2" for line in lines)


@pytest.mark.parametrize(
    "value",
    ["plain", "Qwen/Qwen2.5-7B", "with space", "it's", 'say "hi"', "a,b", "a:b", "x=y", "null",
     "True", "12", "1e-3", "", "back\\slash", "end\\", "it\\'s", "{oc}", "inf", "5b", "/data/x",
     [1, "a b", None], {"name": "clip_cov", "ratio": 2e-4, "on": True}, [["x"], {"y": [0.5]}],
     1e-6, -3,
     True, None],
    ids=repr,
)  # fmt: skip
def test_values_survivehydra_value(value: Any) -> None:
    config = compose([f"+probe={hydra_value(value)}"])
    found = config.probe
    assert (OmegaConf.to_container(found) if OmegaConf.is_config(found) else found) == value


def test_settings_build_the_objective(tmp_path: Path) -> None:
    config = compose(overrides("[dapo,{name:repo_r,zeta:0.002}]", tmp_path))
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert isinstance(actor.policy_loss, PolicyLoss)
    objective = actor.policy_loss.objective()
    assert objective.names == ("ppo", "repo_r")
    assert objective.methods[1].zeta == 0.002
    assert actor.policy_loss.clip_cov_ratio == 2e-4  # veRL's own fields are still there


REFUSED = [
    ("opefo", [], "strictly on-policy"),
    ("grpo", [f"{ACTOR}.strategy=megatron"], "Megatron"),
    ("grpo", ["trainer.use_v1=false"], "trainer.use_v1=True"),
    ("steer", [f"{ACTOR}.calculate_entropy=false"], "calculate_entropy=True"),
    ("kl_ref", [], "use_kl_loss=True"),
    ("grpo", [f"{ACTOR}.use_kl_loss=true"], "add the method {name:kl_ref,coef:0.001}"),
    ("grpo", [f"{ACTOR}.clip_ratio_c=10.0"], "clip_ratio_c=10.0 would not be used"),
    ("grpo", ["algorithm.norm_adv_by_std_in_grpo=false"], "dr_grpo for False"),
    ("kl_cov", [f"{ACTOR}.policy_loss.ppo_kl_coef=0.5"], "{name:kl_cov,coef:0.5}"),
    ("grpo", [f"{ACTOR}.entropy_coeff=0.01"], "entropy_bonus"),
    ("grpo", ["algorithm.use_kl_in_reward=true"], "kl_ref"),
    ("grpo", ["algorithm.adv_estimator=gae"], "critic"),
    ("grpo", ["algorithm.adv_estimator=gdpo"], "adv_estimator=gdpo would not be used"),
    ("grpo", [f"{ACTOR}.clip_ratio_high=0.28"], "clip_ratio_high=0.28 would not be used"),
    ("dapo", [f"{ACTOR}.clip_ratio_high=0.3"], "clip_ratio_high=0.3 would not be used"),
    ("grpo", [f"{ACTOR}.loss_agg_mode=seq-mean-token-sum"], "loss_agg_mode=seq-mean-token-sum"),
    ("grpo", ["algorithm.rollout_correction.bypass_mode=true"], "bypass_mode"),
    ("grpo", ["algorithm.rollout_correction.rollout_is=token"], "rollout_is"),
    (
        "grpo",
        [
            "algorithm.rollout_correction.bypass_mode=true",
            "actor_rollout_ref.rollout.calculate_log_probs=true",
            "algorithm.rollout_correction.loss_type=reinforce",
        ],
        "cispo or icepop",
    ),
    ("grpo", ["actor_rollout_ref.rollout.n=1"], "rollout.n is 1"),
    ("grpo", [f"+{ACTOR}.policy_loss.aggregation=seq_mean_token_sum_norm"], "max_length"),
    ("grpo", [f"{ACTOR}.policy_loss._target_=verl.workers.config.PolicyLossConfig"], "_target_"),
]


@pytest.mark.parametrize(("method", "more", "says"), REFUSED, ids=lambda x: str(x)[:60])
def test_refused_at_the_start(method: str, more: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        check_run(compose(overrides(method, tmp_path, *more)))


@pytest.mark.parametrize(
    ("method", "says"),
    [("[nonsense]", "unknown method"), ("{name:steer,lambda_min:7}", "lambda_min"),
     ("[ppo,gspo]", "two surrogates"), ("null", "policy_loss.method is not set")],
)  # fmt: skip
def test_a_bad_objective_ends_verls_own_validation(method: str, says: str, tmp_path: Path) -> None:
    config = compose(overrides(method, tmp_path))
    with pytest.raises(Exception, match=says):
        validate_config(config, use_reference_policy=False, use_critic=False)
