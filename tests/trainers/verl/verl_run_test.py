"""`entrostat train --host verl` without veRL: a script plays its interpreter.

What veRL itself makes of the overrides is tested in its own environment (`tests/verl_env`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

import entrostat as es
import entrostat.trainers.verl.run as verl_run
from builders import json_lines, refused
from entrostat.cli import main
from entrostat.config import from_dict, load
from entrostat.data.prompts import draw, encode
from entrostat.errors import RunStopped
from entrostat.logs.rollouts import load_rollouts, save_rollouts
from entrostat.logs.run import best_of
from entrostat.model_files import tiny_directory
from entrostat.models.loading import load_policy
from entrostat.runs.progress import Progress
from entrostat.tasks import Example, make_task
from entrostat.tasks.target_sum import TargetSum
from entrostat.trainers.resume_command import resume_command
from entrostat.trainers.verl import data, job, model_ref, preflight, recipe
from entrostat.trainers.verl.completions import Settings, read
from entrostat.trainers.verl.config import code_in_verl, flat
from entrostat.trainers.verl.driver import noted, rollouts_of
from entrostat.trainers.verl.follow import evaluated, row_of
from entrostat.trainers.verl.recipe import unseen
from entrostat.trainers.verl.refusals import DEFAULTS as DEFAULTS_OF_VERL
from entrostat.trainers.verl.refusals import refusals
from long_cases import keep
from paths import ROOT
from verl_runs import config_of, sets_of

PAPERS = ROOT / "recipes" / "papers"
GOLDEN = json.loads((ROOT / "tests" / "golden" / "papers_verl.json").read_text(encoding="utf-8"))
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def settings_of(**tables: Any) -> dict[str, Any]:
    config = config_of(**tables)
    return recipe.settings(recipe.in_whole_groups(config), unseen(config))


# ------------------------------------------------------------------------------------- the settings


# What is not as before, by key without `+`, and why
OTHERWISE = {
    # said, where veRL's default said the same: see DEFAULTS
    **dict.fromkeys(
        ("data.train_files", "data.val_files", "data.entrostat", "data.filter_overlong_prompts",
         "data.max_prompt_length", "data.shuffle", "data.validation_shuffle",
         "data.dataloader_num_workers", f"{ROLLOUT}.agent.default_agent_loop",
         "trainer.total_epochs"),
        "prompts are the task's, written in the lab's order for all iterations and as token ids; "
        "the longest is measured",
    ),
    **dict.fromkeys(
        ("reward.custom_reward_function.path", "reward.custom_reward_function.name",
         "reward.custom_reward_function.reward_kwargs.settings", "reward.num_workers"),
        "the reward is the task's own",
    ),
    **dict.fromkeys(
        (f"{ROLLOUT}.val_kwargs.n", f"{ROLLOUT}.val_kwargs.temperature",
         f"{ROLLOUT}.val_kwargs.top_p", "trainer.val_before_train"),
        "evaluation is [eval]'s, as in the other hosts",
    ),
    **dict.fromkeys(
        ("trainer.default_local_dir", "trainer.rollout_data_dir", "trainer.validation_data_dir",
         "trainer.logger", "trainer.experiment_name", "trainer.resume_mode", "hydra.run.dir",
         "hydra.output_subdir",
         "ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH"),
        "everything goes to the run directory",
    ),
    "trainer.max_actor_ckpt_to_keep": "save.checkpoints is 1, and one more while the run goes on",
    **dict.fromkeys((f"{ACTOR}.data_loader_seed", f"{ROLLOUT}.seed"), "the recipe's seed"),
    f"{ACTOR}.entropy_checkpointing": "without it autograd keeps 8 bytes per logit (docs/scale.md)",
    "algorithm.adv_estimator": "not read; it only says that there is no critic",
    **dict.fromkeys(
        ("data.max_response_length", f"{ACTOR}.policy_loss.max_length"),
        "PAR: the model's 4096 positions less the prompt, as in the other hosts",
    ),
}  # fmt: skip
# veRL 0.9.1's own values, read off trainer/config/_generated_ppo_trainer.yaml; the warm-up of -1
# there is a share of 0 of the steps
DEFAULTS = {
    f"{ACTOR}.fsdp_config.dtype": "bfloat16", f"{ROLLOUT}.dtype": "bfloat16",
    f"{ACTOR}.optim.lr_warmup_steps": 0, f"{ACTOR}.optim.min_lr_ratio": 0.0,
    "actor_rollout_ref.model.lora_rank": 0,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 8,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(GOLDEN["files"]))
def test_papers_resolve_to_what_they_did(name: str) -> None:
    before = GOLDEN["common"] | GOLDEN["files"][name]
    config = from_dict({**load(PAPERS / f"{name}.toml"), "host": "verl"})
    now = recipe.settings(config, unseen(config))
    now = {key.lstrip("+"): value for key, value in now.items()}
    methods = f"{ACTOR}.policy_loss.method"
    before[methods] = before[methods] if isinstance(before[methods], list) else [before[methods]]
    differ = {
        key
        for key in before | now
        if before.get(key, DEFAULTS.get(key, ...)) != now.get(key, DEFAULTS.get(key, ...))
    }
    assert differ <= set(OTHERWISE)
    if not name.startswith("par"):
        assert not differ & {"data.max_response_length", f"{ACTOR}.policy_loss.max_length"}


def test_the_common_settings_reach_verl() -> None:
    o = settings_of(
        model="tiny", seed=3, precision="fp16", gradient_checkpointing=True,
        sampling={"prompts": 6, "rollouts": 5, "temperature": 0.9, "top_p": 0.8,
                  "max_new_tokens": 7, "stop": ["\n"]},
        optim={"lr": 2e-4, "betas": [0.8, 0.9], "weight_decay": 0.1, "schedule": "cosine",
               "lr_min": 0.2, "warmup": 12, "clip": 0.5, "epochs": 2, "minibatches": 3},
        lora={"rank": 4, "alpha": 8, "targets": "q_proj, v_proj"},
        save={"checkpoint_every": 2, "checkpoints": 3, "rollouts_every": 0},
        eval={"every": 1},
    )  # fmt: skip
    wanted = {
        "data.train_batch_size": 6, "data.max_response_length": 7, "data.shuffle": False,
        "actor_rollout_ref.model.path": str(tiny_directory()),
        "actor_rollout_ref.model.enable_gradient_checkpointing": True,
        "actor_rollout_ref.model.lora_rank": 4, "actor_rollout_ref.model.lora_alpha": 8,
        "actor_rollout_ref.model.target_modules": ["q_proj", "v_proj"],
        f"{ACTOR}.ppo_mini_batch_size": 2, f"{ACTOR}.ppo_epochs": 2, f"{ACTOR}.optim.lr": 2e-4,
        f"{ACTOR}.optim.betas": [0.8, 0.9], f"{ACTOR}.optim.weight_decay": 0.1,
        f"{ACTOR}.optim.lr_scheduler_type": "cosine", f"{ACTOR}.optim.min_lr_ratio": 0.2,
        f"{ACTOR}.optim.lr_warmup_steps": 2,  # 12 updates of 6 per iteration
        f"{ACTOR}.optim.clip_grad": 0.5, f"{ACTOR}.fsdp_config.dtype": "float16",
        f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype": "fp16",
        f"{ROLLOUT}.dtype": "float16", f"{ROLLOUT}.n": 5, f"{ROLLOUT}.temperature": 0.9,
        f"{ROLLOUT}.top_p": 0.8, f"{ROLLOUT}.val_kwargs.n": 2, f"{ROLLOUT}.seed": 3,
        f"+{ACTOR}.policy_loss.seed": 3, f"+{ACTOR}.policy_loss.max_length": 7,
        "trainer.total_training_steps": 3, "trainer.save_freq": 2, "trainer.test_freq": 1,
        "trainer.max_actor_ckpt_to_keep": 4, "trainer.rollout_data_dir": None,
        "trainer.n_gpus_per_node": 1, "trainer.logger": ["console", "file"],
    }  # fmt: skip
    assert {key: o[key] for key in wanted} == wanted


REFUSED = [
    ({"numerics": {"round_logp": "bf16"}}, "numerics.round_logp is 'bf16': .* --host lab"),
    ({"sampling": {"measure": False}}, "sampling.measure is False: .* leave it true"),
    ({"analyze": {"every": 2}}, "analyze.every is 2"),
    ({"optim": {"schedule": "linear"}}, "constant and cosine"),
    ({"optim": {"warmup": 3}}, "multiple of 4"),
    ({"device": "cuda:1"}, "device is 'cuda:1': .* CUDA_VISIBLE_DEVICES"),
    ({"method": "prime"}, "prime"),
    ({"method": "opefo"}, "strictly on-policy"),
    ({"sampling": {"rollouts": 1}}, "sampling.rollouts is 1"),
    ({"sampling": {"prompts": 5}}, "set verl.data.train_batch_size to one, 4 say"),
    ({"verl": {"data.train_batch_size": 3}}, "data.train_batch_size 3 is no multiple"),
    ({"sampling": {"engine": "vllm"}, "verl": {f"{ROLLOUT}.name": "sglang"}}, "leave one out"),
    ({"verl": {f"{ACTOR}.optim.lr": 1.0}}, "is what optim.lr says"),
    ({"verl": {"actor_rollout_ref": {"rollout": {"n": 4}}}}, "is what sampling.rollouts says"),
    ({"verl": {"data.train_files": "x"}}, "is what task says"),
    ({"verl": {f"+{ACTOR}.policy_loss.clip": 1}}, "is what method says"),
    ({"verl": {"+ray_kwargs.ray_init.address": "auto"}}, "is what --ray-address says"),
    ({"verl": {f"{ACTOR}.clip_ratio_low": 3e-4, f"{ACTOR}.clip_ratio_c": 10.0}},
     r"clip_ratio_low=0.0003, \S*clip_ratio_c=10.0 would not be used: .* has its own clip; say it "
     "in the method, {name:ppo,low:0.0003,high:0.2,dual:10.0}"),
    ({"verl": {"algorithm.norm_adv_by_std_in_grpo": False, f"{ACTOR}.tau_pos": 2.0}},  # at once
     r"tau_pos=2.0 would not be used; say it in the method, {name:sapo,tau_pos:2.0}\. algorithm."
     "norm_adv_by_std_in_grpo=False would not be used: .* dr_grpo for False"),
    ({"verl": {f"{ACTOR}.kl_loss_coef": 0.001},
      "method": ["grpo", {"name": "kl_ref", "coef": 0.04}]},
     "kl_loss_coef=0.001 would not be used; say it in the method, {name:kl_ref,coef:0.001}"),
    ({"verl": {f"{ACTOR}.kl_loss_type": "mse"}, "method": ["grpo", "kl_ref"]}, "is low_var_kl"),
    ({"save": {"best": "test/avg@k", "checkpoint_every": 2}, "eval": {"every": 3}},
     "set save.checkpoint_every to a divisor of eval.every, 3 say"),
    ({"eval": [{"every": 2}, {"split": "ood"}]},
     r"\[\[eval\]\]: sets are evaluated every 2 and 3 iterations, but veRL evaluates all of them "
     "at once; give all one `every`, 2 say"),
    ({"save": {"best": "ood/prompt_entropy"}}, "'ood/prompt_entropy', but veRL computes no entr"),
    ({"verl": {"trainer.logger": 3}}, "verl.trainer.logger must be a name or a list of names"),
    ({"verl": {"+trainer.logger": ["wandb", 1]}}, "must be a name or a list of names"),
]  # fmt: skip


@pytest.mark.parametrize(("tables", "says"), REFUSED, ids=lambda x: str(x)[:50])
def test_what_verl_cannot_do_is_refused(tables: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        settings_of(**tables)
    assert "\n" not in str(caught.value)


# what scripts say of the actor's loss, veRL's own examples among them, and the same as methods
SCRIPTS: list[tuple[dict[str, Any], Any]] = [
    # gspo_trainer/test_gspo_qwen30b_a3b_ep.sh
    ({"kl_loss_coef": 0.0, "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4, "clip_ratio_c": 10.0},
     {"name": "gspo", "dual": 10.0}),
    # sglang_multiturn/run_qwen3_4b_dapo_multiturn.sh
    ({"kl_loss_coef": 0.0, "clip_ratio_high": 0.28, "clip_ratio_c": 10.0},
     {"name": "ppo", "high": 0.28, "dual": 10.0}),
    # grpo_trainer/run_qwen3-8b.sh with a larger coefficient
    ({"use_kl_loss": True, "kl_loss_coef": 0.01, "kl_loss_type": "low_var_kl"},
     ["ppo", {"name": "kl_ref", "coef": 0.01}]),
    # a user's script of Clip-Cov
    ({"clip_ratio_low": 1.0, "clip_ratio_high": 1.0, "policy_loss.clip_cov_ratio": 0.02,
      "policy_loss.clip_cov_lb": 2, "policy_loss.clip_cov_ub": 60.0},
     {"name": "clip_cov", "ratio": 0.02, "low": 2.0, "high": 60.0}),
]  # fmt: skip


@pytest.mark.parametrize(("said", "method"), SCRIPTS, ids=lambda x: str(x)[-40:])
def test_a_scripts_loss_goes_into_the_method(said: dict[str, Any], method: Any) -> None:
    own = {f"{ACTOR}.{key}": value for key, value in said.items()}
    known = DEFAULTS_OF_VERL | {"algorithm.adv_estimator": "grpo"} | own
    given = {"advantage": "grpo", "aggregation": "token_mean"}
    same, other = es.make_objective(method, **given), es.make_objective("icepop", **given)
    assert [reason for no, reason in refusals(known.get, same) if no] == []
    assert [reason for no, reason in refusals(known.get, other) if no]


def test_keys_may_be_nested_and_added() -> None:
    table = {"a": {"b.c": 1, "+d": {"e": "null"}}, "+x.y": [1], "z": {}}
    assert dict(flat(table)) == {"a.b.c": 1, "+a.d.e": None, "+x.y": [1], "z": {}}
    o = settings_of(verl={"trainer": {"nnodes": 2}, "trainer.logger": "wandb"})
    assert o["trainer.nnodes"] == 2
    assert o["trainer.logger"] == ["wandb", "file"]
    for none in ({"trainer.logger": "null"}, {"trainer": {"logger": []}}):
        assert settings_of(verl=none)["trainer.logger"] == ["file"]
    o = settings_of(verl={"+trainer.logger": "wandb"})
    assert {key: o[key] for key in o if "logger" in key} == {"trainer.logger": ["wandb", "file"]}


def test_prompts_that_are_no_whole_groups() -> None:
    o = settings_of(sampling={"prompts": 5}, verl={"data.train_batch_size": 4})
    assert (o["data.train_batch_size"], o[f"{ACTOR}.ppo_mini_batch_size"]) == (4, 2)


def test_processors_are_counted() -> None:
    # 3 a rank, 1 for TransferQueue's controller, 1 a storage unit (8, veRL's default)
    units = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
    assert recipe.processors(config_of()) == (3 + 1 + 8, 16)
    assert recipe.processors(config_of(verl={"trainer.nnodes": 2, units: 1}))[0] == 6 + 1 + 1
    assert recipe.processors(config_of(verl={"ray_kwargs.ray_init.num_cpus": None}))[1] is None


@pytest.mark.parametrize("key", ["trainer.n_gpus_per_node", "ray_kwargs.ray_init.num_cpus"])
@pytest.mark.parametrize("value", ["two", 0, 1.5, True])
def test_numbers_that_are_none(key: str, value: object) -> None:
    says = re.escape(f"verl.{key} must be a whole number of 1 or more, got {value!r}")
    with pytest.raises(ValueError, match=says):
        verl_run.train(config_of(verl={key: value}), python="/bin/false")


class Ray:
    """What the preflight asks of Ray."""

    def __init__(self, there: int, free: int) -> None:
        self._there, self._free = there, free

    def init(self, **_: object) -> None: ...

    def shutdown(self) -> None: ...

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self._there)}

    def available_resources(self) -> dict[str, float]:
        return {"CPU": float(self._free)} if self._free else {}  # Ray leaves out what is gone

    def nodes(self) -> list[object]:
        return []

    def get_num_cpus(self) -> int:
        return self._there


def test_processors_are_what_ray_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container those that it may use, which `os.cpu_count` does not know."""
    monkeypatch.setattr(preflight.importlib, "import_module", lambda name: Ray(4, 4))
    preflight.check_machine(None, 4)
    preflight.check_machine(12, 12)  # what it is told of wins
    refused(lambda: preflight.check_machine(None, 12), "needs 12 logical")
    refused(lambda: preflight.check_machine(11, 12), "needs 12", "has 11")


@pytest.mark.parametrize(
    ("there", "free", "says"),
    [(8, 8, "the cluster at auto has 8"), (16, 4, "all but 4: it would wait"), (16, 0, "but 0")],
)
def test_processors_of_a_cluster_are_those_that_are_free(
    there: int, free: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight.importlib, "import_module", lambda name: Ray(there, free))
    with pytest.raises(ValueError, match=says) as caught:
        preflight.check_cluster("auto", 12)
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(preflight.importlib, "import_module", lambda name: Ray(16, 12))
    preflight.check_cluster("auto", 12)


# ------------------------------------------------------------------------------------------ prompts


def test_the_rows_are_the_labs_prompts(tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": f"{10 + i}/3:", "answer": str(i)}) for i in range(10)]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines))
    config = config_of(
        task={"name": str(tmp_path / "sums.jsonl"), "test": 0.2, "max_new_tokens": 5}, seed=1
    )
    task, policy = model_ref.make(config), data.outline(config.model)
    found = data.write(tmp_path / "data", config, task, policy, sets_of(config))
    rows = pq.read_table(tmp_path / "data" / "train.parquet").to_pylist()
    assert len(rows) == 3 * 4
    lab = load_policy(dataclasses.replace(config, host="lab"))
    assert (policy.eos, policy.pad, policy.context) == (lab.eos, lab.pad, lab.context)
    for iteration in (1, 2, 3):
        examples = draw(task, config, iteration)
        part = rows[4 * iteration - 4 : 4 * iteration]
        assert [row["extra_info"]["prompt_ids"] for row in part] == encode(lab, config, examples, 5)
        for row, example in zip(part, examples, strict=True):
            info = row["extra_info"]
            assert task.example(info["index"], info["split"]) == example
            assert row["reward_model"]["ground_truth"] == example.answer
            assert row["prompt"] == [{"role": "user", "content": example.prompt}]
            assert (info["max_tokens"], info["set"]) == (5, "")
            assert row["data_source"] == task.name
    held_out = pq.read_table(tmp_path / "data" / "test.parquet").to_pylist()
    assert [row["extra_info"]["index"] for row in held_out] == [0, 1]
    assert found == tuple(
        max(len(row["extra_info"]["prompt_ids"]) for row in each) for each in (rows, held_out)
    )


class First(TargetSum):
    """`target_sum` again, of whose answers only the first digit is read: any but 1 is right."""

    name = "first"
    stop = ("+",)

    def score(self, completion: str, example: Example) -> float:
        return float(completion in list("23456789"))


def test_characters_that_the_tokenizer_leaves_out_are_told(tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    file.write_text('{"prompt": "Sum: 9/3:", "answer": "3"}\n' * 4)
    config = config_of(task={"name": str(file), "test": 0.5, "max_new_tokens": 5})
    task, policy = model_ref.make(config), data.outline(config.model)
    words = "tokenizer of tiny leaves out S, m, u: of 'Sum: 9/3:' the policy reads ':9/3:'"
    with pytest.warns(UserWarning, match=words):
        data.write(tmp_path / "data", config, task, policy, sets_of(config))


OTHER = {"name": "verl_run_test:First", "seed": 5}
SETS: list[dict[str, Any]] = [
    {"prompts": 2, "samples": 4, "temperature": 0.6},
    {"split": "train", "prompts": 3, "temperature": 0},
    {"name": "their/own", "task": OTHER, "prompts": 2, "samples": 3, "max_new_tokens": 20},
]
SAMPLING = {"temperature": 0.9, "top_p": 0.8, "stop": ["/"]}


def test_the_rows_of_sets(tmp_path: Path) -> None:
    """As many tokens as 6 digits take, eos and one more, or as the set says."""
    config = config_of(sampling=SAMPLING, eval=SETS)
    task, policy = model_ref.make(config), data.outline(config.model)
    found = data.write(tmp_path, config, task, policy, sets_of(config))
    rows = pq.read_table(tmp_path / "test.parquet").to_pylist()
    asked = [("test", "test", 4, 13), ("train", "train", 1, 13), ("their/own", "test", 3, 20)]
    wanted = [
        (name, split, index, k, new)
        for (name, split, k, new), prompts in zip(asked, (2, 3, 2), strict=True)
        for index in range(prompts)
    ]
    assert wanted == [
        (row["data_source"], info["split"], info["index"], row["__rollout_n__"], info["max_tokens"])
        for row in rows
        for info in (row["extra_info"],)
    ]
    lab = load_policy(dataclasses.replace(config, host="lab"))
    for row in rows:
        info = row["extra_info"]
        assert info["set"] == row["data_source"]
        example = task.example(info["index"], info["split"])  # of `test` no seed is asked
        assert info["prompt_ids"] == encode(lab, config, [example], 13)[0]
    table = pq.read_table(tmp_path / "train.parquet")
    assert "__rollout_n__" not in table.column_names
    trained = [row["extra_info"] for row in table.to_pylist()]
    assert {(info["set"], info["max_tokens"]) for info in trained} == {("", 13)}
    assert found[0] == max(len(info["prompt_ids"]) for info in trained)


def test_sets_are_sampled_and_judged_by_their_own_settings(tmp_path: Path) -> None:
    from entrostat.trainers.verl import reward

    config, path = config_of(sampling=SAMPLING, eval=SETS), tmp_path / "run.json"
    task, policy = model_ref.make(config), data.outline(config.model)
    data.write_settings(path, config, task, policy, sets_of(config))
    names = ("", "test", "train", "their/own")
    told = {name: read(str(path), name).sampling("sglang") for name in names}
    assert told == {
        "": {},
        "test": {"temperature": 0.6, "top_p": 0.8},
        "train": {"temperature": 0.0, "top_p": 1.0, "top_k": -1},
        "their/own": {"temperature": 0.9, "top_p": 0.8},
    }
    assert [read(str(path), name).stop for name in names] == [("/",)] * 3 + [("+",)]
    assert read(str(path), "their/own").task == OTHER
    assert read(str(path)) == read(str(path), "")
    example = task.example(1, "test")
    target, k = example.answer
    right = "+".join(str(target // k + (place < target % k)) for place in range(k))

    async def of(name: str, split: str, text: str) -> dict[str, Any]:
        info = {"set": name, "split": split, "index": 1, "completion": text}
        return await reward.compute_score("", "", "", info, settings=str(path))

    async def all_of() -> list[dict[str, Any]]:
        asked = [("test", right), ("test", "3"), ("their/own", right), ("their/own", "3")]
        return await asyncio.gather(*(of(name, "test", text) for name, text in asked))

    found = asyncio.run(all_of())
    assert [one["score"] for one in found] == [1.0, 0.0, 0.0, 1.0]
    assert [one["where"] for one in found] == ["test/1"] * 2 + ["their/own/1"] * 2
    one_desk = [reward._desk(str(path), name) for name in ("", "test", "train")]
    assert len({id(desk) for desk in one_desk}) == 1  # of one task: they share its processes
    assert reward._desk(str(path), "their/own") is not one_desk[0]


def test_what_was_said_in_a_set_is_judged_as_the_lab_does() -> None:
    """Two samples right, one and none of 4; a greedy one of 3; of another task 3 of 3 and 1."""
    config = config_of(eval=SETS)
    said = {
        ("test", 0): ["a", "b", None, None], ("test", 1): ["a", None, None, None],
        ("train", 0): ["a"], ("train", 1): [None], ("train", 2): [None],
        ("their/own", 1): ["5", None, None], ("their/own", 0): ["2", "2", "3"],
    }  # fmt: skip
    answers = [
        {"where": f"{name}/{index}", "score": float(text is not None), "failed": 0,
         "completion": text or "?"}
        for (name, index), texts in said.items() for text in texts
    ]  # fmt: skip
    rows, lines = evaluated(answers, 2, sets_of(config))
    head = {"iteration": 2, "split": "test"}
    assert rows == [
        head | {"set": "test", "prompts": 2, "k": 4, "avg@k": 3 / 8, "pass@k": 1.0,
                "distinct": 1.5},
        head | {"set": "train", "split": "train", "prompts": 3, "k": 1,
                "avg@k": pytest.approx(1 / 3), "pass@k": pytest.approx(1 / 3),
                "distinct": pytest.approx(1 / 3)},
        head | {"set": "their/own", "prompts": 2, "k": 3, "avg@k": pytest.approx(2 / 3),
                "pass@k": 1.0, "distinct": 1.5},
    ]  # fmt: skip
    assert [(line["set"], line["split"], line["prompt"], line["right"], line["wrong"])
            for line in lines] == [
        ("test", "test", 0, {"a": 1, "b": 1}, 2), ("test", "test", 1, {"a": 1}, 3),
        ("train", "train", 0, {"a": 1}, 0), ("train", "train", 1, {}, 1),
        ("train", "train", 2, {}, 1),
        ("their/own", "test", 0, {"2": 2, "3": 1}, 0), ("their/own", "test", 1, {"5": 1}, 2),
    ]  # fmt: skip


def test_a_task_object_that_workers_could_not_make_is_refused() -> None:
    refused(lambda: model_ref.make(config_of(), make_task("words")), "task", "MODULE:", "CLASS")


def test_an_open_learning_rate_is_the_labs() -> None:
    assert model_ref.learning_rate_of(config_of()) == 3e-4  # below ten million parameters
    assert model_ref.learning_rate_of(config_of(lora={"rank": 2})) == 1e-5
    assert model_ref.learning_rate_of(config_of(optim={"lr": 0.5})) == 0.5


# ------------------------------------------------------------------------------- stops and rewards


def letters(rows: list[list[int]]) -> list[str]:
    return ["".join(chr(token) for token in row) for row in rows]


def settings(stop: tuple[str, ...] = ()) -> Settings:
    return Settings({"name": "target_sum"}, {}, stop, (1,), 0, 1)


@pytest.mark.parametrize(
    ("text", "stop", "ends"),
    [
        ("ab\ncd", ("\n",), (3, True)),
        ("abcd", ("cd",), (4, True)),
        ("abcab", ("ca", "ab"), (2, True)),
        ("abc", ("\n",), (3, False)),
        ("abc\1", (), (4, True)),
        ("abc", (), (3, False)),
        ("", ("x",), (0, False)),
        ("a\1b", ("ab",), (3, True)),  # an eos is no text
    ],
)
def test_a_completion_ends_where_the_lab_ends_it(
    text: str, stop: tuple[str, ...], ends: tuple[int, bool]
) -> None:
    from entrostat.models.stops import Stops

    known, tokens = settings(stop), [ord(c) for c in text]
    assert known.end(tokens, letters) == ends
    if stop and ends[1]:  # as the lab finds it, token by token
        stops = Stops(stop, lambda rows: known.texts(rows, letters))
        at = [bool(stops.completed(torch.tensor([tokens[:n]]))) for n in range(1, len(tokens) + 1)]
        assert at.index(True) + 1 == ends[0]


def test_what_an_engine_is_told_of_stops() -> None:
    told = {"stop": ["\n"], "include_stop_str_in_output": True}
    assert settings(("\n",)).sampling("vllm") == told
    assert settings(("\n",)).sampling("sglang") == {}  # without a tokenizer: cut afterwards
    assert settings().sampling("vllm") == {}
    assert settings(("b",)).text([97, 98, 99, 1, 0], letters) == "a"


GRADER = """
import time

def grade(response, answer):
    if response == "hang":
        time.sleep(60)
    if response == "raise":
        raise RuntimeError("no")
    return float(response == answer)
"""


def test_a_scorer_that_raises_or_hangs_costs_one_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from entrostat.trainers.verl import reward

    (tmp_path / "verl_grader.py").write_text(GRADER)
    (tmp_path / "t.jsonl").write_text('{"prompt": "p", "answer": "yes"}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = config_of(
        task={"name": "t.jsonl", "grader": "verl_grader:grade", "test": 0.0},
        scoring={"timeout": 1.0, "workers": 2},
    )
    path = tmp_path / "run.json"
    data.write_settings(path, config, model_ref.make(config), data.outline(config.model), ())
    assert read(str(path)).task["name"] == str(tmp_path / "t.jsonl")  # workers start elsewhere

    async def of(text: str) -> dict[str, Any]:
        info = {"set": "", "split": "train", "index": 0, "completion": text}
        return await reward.compute_score("t", "other", "yes", info, settings=str(path))

    async def all_of() -> list[dict[str, Any]]:
        return await asyncio.gather(*map(of, ("yes", "hang", "no", "raise", "yes")))

    found = asyncio.run(all_of())
    reward._desk(str(path), "").scorer.__exit__()
    assert [one["score"] for one in found] == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert [one["failed"] for one in found] == [0, 1, 0, 1, 0]
    assert [one["completion"] for one in found] == ["yes", "hang", "no", "raise", "yes"]
    assert {one["where"] for one in found} == {"train/0"}


def test_the_driver_counts_what_was_noted() -> None:
    notes = [
        {"finished": True, "reward_extra_info": {"failed": 0}},
        {"finished": False, "reward_extra_info": {"failed": 1}},
        {"finished": False, "reward_extra_info": {"failed": 1}},  # a row that veRL added
    ]
    real = torch.tensor([True, True, False])
    assert noted(notes, real) == {"rollout/truncated": 0.5, "reward/failed": 1.0}
    assert noted([], real) == {}
    assert noted([{}, {}, {}], real) == {}
    refused(lambda: noted(notes[1:], torch.tensor([True, True])), "failed at all 2 answers")


def test_rollouts_are_written_as_the_labs(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_directory())
    ids = tokenizer("12+3")["input_ids"]
    a, b, c = ids[:3]
    batch = {
        "responses": torch.tensor([[a, b, 0], [c, a, b], [b, 0, 0]]),
        "mask": torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0]]),
        "logp": torch.tensor([[-1.0, -2.0, 0], [-3.0, -4.0, -5.0], [-6.0, 0, 0]]),
        "entropy": torch.tensor([[0.1, 0.2, 0], [0.3, 0.4, 0.5], [0.6, 0, 0]]),
        "advantages": torch.tensor([[1.0, 1.0, 0], [7.0, 7.0, 7.0], [-1.0, 0, 0]]),
        "rewards": torch.tensor([1.0, 0.0, 0.5]),
        "group": torch.tensor([4, 9, 4]),
        "idle": torch.tensor([0, 1, 0]),
        "lengths": torch.tensor([2, 3, 1]),
    }
    notes = [{"completion": t, "finished": t != "z"} for t in ("x", "y", "z")]
    prompts = [torch.tensor(ids), torch.tensor(ids[:2]), torch.tensor(ids)]
    save_rollouts(rollouts_of(12, prompts, notes, batch, tokenizer), tmp_path)
    r = load_rollouts(tmp_path / "000012.safetensors")
    assert r.completions == ["x", "z", "y"]  # of a prompt side by side
    assert r.prompts == [tokenizer.decode(prompts[i]) for i in (0, 2, 1)]
    assert r.group.tolist() == [0, 0, 1]
    assert r.tokens.tolist() == [a, b, b, c, a, b]
    assert r.start.tolist() == [0, 2, 3, 6]
    assert r.logp.tolist() == [-1.0, -2.0, -6.0, -3.0, -4.0, -5.0]
    assert r.advantage.tolist() == [1.0, 1.0, -1.0, 0.0, 0.0, 0.0]  # idle: not trained on
    assert r.trained.tolist() == [True, True, False]
    assert r.finished.tolist() == [True, False, True]
    assert r.sampler_logp.isnan().all()
    assert r.sampled is None
    batch["mask"][1, 1] = 0  # an environment spoke
    save_rollouts(rollouts_of(13, prompts, notes, batch, tokenizer), tmp_path)
    r = load_rollouts(tmp_path / "000013.safetensors")
    assert r.tokens.tolist() == [a, b, b, c, a, b]
    assert r.sampled is not None
    assert r.sampled.tolist() == [True, True, True, True, False, True]
    for values in (r.logp, r.entropy, r.advantage):
        assert torch.equal(values.isnan(), ~r.sampled)


# -------------------------------------------------------------------------------------- a whole run


FAKE = '''#!{python}
"""Plays the interpreter of veRL's environment."""
import json, os, shutil, sys, time
from pathlib import Path

module, words = sys.argv[2], sys.argv[3:]
mode = Path(__file__).with_name("mode").read_text()
Path(__file__).with_name("calls").open("a").write(module + "\\n")
if module.endswith("preflight"):
    asked = json.load(sys.stdin)
    error = mode.removeprefix("refuse ") if mode.startswith("refuse") else None
    print("noise")
    print(json.dumps({{"error": error}}))
    sys.exit()
if module == "verl.model_merger":
    source, target = (Path(words[words.index(f"--{{end}}_dir") + 1]) for end in ("local", "target"))
    shutil.copytree({tiny!r}, target, dirs_exist_ok=True)
    (target / "merged").write_text((source / "model").read_text())
    sys.exit()
assert module == "verl.trainer.main_ppo", module
given = dict(word.lstrip("+").split("=", 1) for word in words)
log = Path(given["ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH"])
checkpoints = Path(given["trainer.default_local_dir"])
newest = checkpoints / "latest_checkpointed_iteration.txt"
start = int(newest.read_text()) if given["trainer.resume_mode"] == "auto" else 0
steps, every = int(given["trainer.total_training_steps"]), int(given["trainer.save_freq"])
settings = json.loads(Path(given["data.entrostat"]).read_text())
parts = dict(zip(mode.split()[::2], mode.split()[1::2]))  # "cut 3 peak 2"
cut, peak = int(parts.get("cut", -1)), int(parts.get("peak", -1))
test = int(given["trainer.test_freq"])
assert settings["task"]["name"] == "target_sum"
out = log.open("w")


def evaluate(step):
    import pyarrow.parquet as pq  # not by each of the processes

    folder = Path(given["trainer.validation_data_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{{step}}.jsonl").open("w") as file:
        for row in pq.read_table(given["data.val_files"]).to_pylist():
            name, prompt = row["extra_info"]["set"], row["extra_info"]["index"]
            for sample in range(row["__rollout_n__"]):
                score = float(prompt == 0 or (prompt == 1 and sample == 0) or step == peak)
                file.write(json.dumps(
                    {{"where": f"{{name}}/{{prompt}}", "score": score * (name != "ood"),
                      "failed": 0, "completion": f"{{sample}}", "step": step}}) + "\\n")
    return {{"val-core/test/acc/mean@2": 0.5}}


def write(step, data):
    out.write(json.dumps({{"step": step, "data": data}}) + "\\n")
    out.flush()


print("Started a local Ray instance. View the dashboard at \\x1b[1m127.0.0.1:8265\\x1b[22m")
if given["trainer.val_before_train"] == "true":
    write(start, evaluate(start))
if given.get("trainer.val_only") == "true":
    sys.exit()
for step in range(start + 1, steps + 1):
    if mode == "die 1" or (mode == "die" and step == 3):
        print("(TaskRunnerV1 pid=7) Traceback (most recent call last):")
        print("Error executing job with overrides: []")
        print("Traceback (most recent call last):")
        print("ray.exceptions.RayTaskError(ValueError): ray::TaskRunnerV1.run() (pid=7)")
        print("ValueError: the reward of rollout 3 is no number")
        print("Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.")
        print("(raylet) [repeated 3x across cluster] bye")
        sys.exit(1)
    if mode == "lost" and step == 2:
        print("(raylet) A worker died or was killed while executing a task")
        sys.stdout.flush()
        time.sleep(60)
    if mode == "hang" and step == 2:
        Path(__file__).with_name("child").write_text(str(os.getpid()))
        time.sleep(600)
    data = {{"entropy/exact": 1.0 / step, "reward/mean": 0.1 * step, "rollout/length_mean": 5.0,
            "rollout/tokens": 40.0, "timing_s/step": 2.0, "actor/grad_norm": 0.25, "odd": None,
            "response_length/mean": 5.0, "control/zeta": 0.001}}
    if step % every == 0 or step == steps:
        (checkpoints / f"global_step_{{step}}" / "actor").mkdir(parents=True, exist_ok=True)
        (checkpoints / f"global_step_{{step}}" / "entrostat.json").write_text("{{}}")
        (checkpoints / f"global_step_{{step}}" / "actor" / "model").write_text(str(step))
        (checkpoints / f"global_step_{{step}}" / "actor" / "optim_1").write_text("moments")
        (checkpoints / f"global_step_{{step}}" / "metrics.jsonl").write_text(
            json.dumps({{"step": step, "data": data}}) + "\\n"
        )
        newest.write_text(str(step))
    if step == cut:
        os._exit(9)
    due = test > 0 and (step == steps or step % test == 0)
    write(step, data | (evaluate(step) if due else {{}}))
'''


class Fake:
    """The script, and what it is to do."""

    def __init__(self, folder: Path) -> None:
        self.path, self._mode = folder / "python", folder / "mode"
        self.path.write_text(FAKE.format(python=sys.executable, tiny=str(tiny_directory())))
        self.path.chmod(0o755)
        self.calls = folder / "calls"
        self.does("")

    def does(self, mode: str) -> str:
        self._mode.write_text(mode)
        self.calls.write_text("")
        return str(self.path)

    def called(self) -> list[str]:
        return [word.rpartition(".")[2] for word in self.calls.read_text().split()]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setattr(verl_run, "_LOOK", 0.02)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env").mkdir()
    return Fake(tmp_path / "env")


class Told(Progress):
    def __init__(self) -> None:
        self.facts: list[str] = []
        self.iterations: list[int] = []
        self.ended = False

    def fact(self, text: str) -> None:
        self.facts.append(text)

    def iteration(self, iteration: int, metrics: dict[str, Any]) -> None:
        self.iterations.append(iteration)

    def end(self, path: Path) -> None:
        self.ended = True


def test_a_run_leaves_what_the_lab_leaves(fake: Fake) -> None:
    told = Told()
    path = verl_run.train(config_of(), progress=told, python=fake.does(""))
    assert fake.called() == ["preflight", "main_ppo", "model_merger"]
    rows = json_lines(path / "metrics.jsonl")
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert rows[1]["entropy/exact"] == 0.5
    assert rows[1]["grad/norm"] == 0.25
    assert rows[1]["time/tokens_per_second"] == 20.0
    assert rows[1]["verl/response_length/mean"] == 5.0
    assert "odd" not in rows[1]
    assert not any(key.startswith("val-") for row in rows for key in row)
    # 3 prompts, 2 samples: right twice, once, never
    before, ood, after, _ = json_lines(path / "evaluation.jsonl")
    assert (ood["split"], ood["avg@k"]) == ("ood", 0.0)
    assert (before["iteration"], after["iteration"]) == (0, 3)
    assert (after["prompts"], after["k"], after["avg@k"]) == (3, 2, 0.5)
    assert after["pass@k"] == pytest.approx(2 / 3)
    assert after["distinct"] == 1.0  # "0" and "1"; "0"; nothing
    answers = json_lines(path / "answers.jsonl")[6:9]
    assert [line["right"] for line in answers] == [{"0": 1, "1": 1}, {"0": 1}, {}]
    assert [line["wrong"] for line in answers] == [0, 1, 2]
    assert told.iterations == [1, 2, 3]
    assert told.ended
    written = from_dict(load(path / "config.toml"))
    assert (written.host, written.optim.lr, written.advantage) == ("verl", 3e-4, "rloo")
    assert json.loads((path / "objective.json").read_text())["methods"]
    assert (path / "final" / "model.safetensors").is_file()
    assert json.loads((path / "final" / "entrostat.json").read_text()) == {"iterations": 3}
    # again: nothing is left to do
    fake.does("")
    verl_run.train(config_of(), python=str(fake.path), resume=True)
    assert fake.called() == ["preflight"]


def test_the_page_of_a_run(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--host", "verl", "--verl-python", fake.does(""), "--iterations", "2"]
    words += ["--sampling.prompts", "4", "--eval.prompts", "3", "--eval.samples", "2"]
    words += ["--verl.trainer.n_gpus_per_node", "1", "--verl.ray_kwargs.ray_init.num_cpus", "12"]
    assert main(["train", "--method", "repo_r", "--output", "run", *words]) == 0
    said = capsys.readouterr().out
    assert "[2/2] entropy 0.500  reward 0.200" in said
    assert "test, iteration 0 → 2: avg@2 0.50 → 0.50" in said
    assert "report: run/report.html" in said
    assert "target_sum" in Path("run/report.html").read_text()


def test_a_job_that_dies_says_of_what_and_goes_on(fake: Fake) -> None:
    config = config_of(iterations=4, save={"checkpoint_every": 1}, eval={"prompts": 0})
    with pytest.raises(RunStopped) as stopped:
        verl_run.train(config, python=fake.does("die"))
    said = str(stopped.value)
    assert "veRL ended with code 1 after iteration 2" in said
    assert "ValueError: the reward of rollout 3 is no number" in said
    assert "Set the environment" not in said
    assert "\n" not in said
    assert "run/verl/from-000000.log" in said
    # what came after the checkpoint is forgotten
    with open("run/metrics.jsonl", "a") as file:
        file.write('{"iteration": 3, "entropy/exact": 9.0}\n')
    Path("run/rollouts").mkdir()
    for step in (2, 3):
        Path(f"run/rollouts/00000{step}.safetensors").touch()
    told = Told()
    path = verl_run.train(config, progress=told, python=fake.does(""), resume=True)
    rows = json_lines(path / "metrics.jsonl")
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    assert rows[2]["entropy/exact"] == pytest.approx(1 / 3)
    assert told.iterations == [3, 4]
    assert "what came later (1) will be made again" in told.facts[-1]
    assert [p.name for p in Path("run/rollouts").iterdir()] == ["000002.safetensors"]
    command = (path / "verl" / "command.sh").read_text()
    assert "trainer.resume_mode=auto" in command
    assert "trainer.val_before_train=false" in command


@pytest.mark.parametrize("step", keep([1, 2, 3], 2))
def test_a_kill_between_checkpoint_and_log_loses_nothing(fake: Fake, step: int) -> None:
    """Nor the evaluation that comes between them: at the end, and every two iterations."""
    config = config_of(save={"checkpoint_every": 1}, eval={"every": 2})
    refused(
        lambda: verl_run.train(config, python=fake.does(f"cut {step}")),
        "code 9",
        f"iteration {step}",
        error=RunStopped,
    )
    log = Path("run/metrics.jsonl")
    assert len(json_lines(log) if log.exists() else []) == step - 1
    told = Told()
    path = verl_run.train(config, progress=told, python=fake.does(""), resume=True)
    assert told.iterations == [1, 2, 3][step:]
    rows = json_lines(path / "metrics.jsonl")
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert [row["entropy/exact"] for row in rows] == [1.0, 0.5, pytest.approx(1 / 3)]
    rows = json_lines(path / "evaluation.jsonl")
    assert all(row["avg@k"] == 0.5 * (row["split"] == "test") for row in rows)
    assert [row["iteration"] for row in rows[::2]] == [0, 2, 3]
    command = (path / "verl" / "command.sh").read_text()
    assert ("trainer.val_only=true" in command) is (step == 3)
    assert (path / "final" / "model.safetensors").is_file()


def kept(run: Path) -> tuple[int, float, str]:
    """Iteration and score of `best/`, and what was merged into it."""
    best = run / "best"
    assert (best / "model.safetensors").is_file()
    assert not (best / "actor").exists()
    found = best_of(best)
    assert found is not None
    merged = best / "merged"
    return found["iteration"], found["value"], merged.read_text() if merged.exists() else ""


BEST = {"save": {"best": "test/avg@k", "checkpoints": 1}, "eval": {"every": 1}}


@pytest.mark.parametrize("peak", keep([0, 2, 3], 2))
def test_the_best_policy_is_kept(fake: Fake, peak: int) -> None:
    run = verl_run.train(config_of(**BEST), python=fake.does(f"peak {peak}"))
    assert kept(run) == (peak, 1.0, str(peak) if peak else "")
    final, best = (load_file(run / name / "model.safetensors") for name in ("final", "best"))
    assert final.keys() == best.keys()  # the script trains nothing
    assert all(torch.equal(final[key], best[key]) for key in final)
    assert [path.name for path in (run / "checkpoints").glob("global*")] == ["global_step_3"]


@pytest.mark.parametrize("best", keep([2, 3], 2))
def test_the_best_policy_survives_a_kill(fake: Fake, best: int) -> None:
    with pytest.raises(RunStopped):
        verl_run.train(config_of(**BEST), python=fake.does(f"cut 3 peak {best}"))
    run = verl_run.train(config_of(**BEST), python=fake.does(f"peak {best}"), resume=True)
    assert kept(run) == (best, 1.0, str(best))


@pytest.mark.long
def test_a_kill_between_an_evaluation_and_what_is_best(fake: Fake) -> None:
    with pytest.raises(RunStopped):
        verl_run.train(config_of(**BEST), python=fake.does("die"))  # in iteration 3
    assert best_of(Path("run/best"))["iteration"] == 0
    shutil.rmtree("run/best")
    for log in ("evaluation", "answers"):  # 0 and 1 are as they were, 2 is the best of them
        path = Path(f"run/{log}.jsonl")
        path.write_text("".join(
            json.dumps(row | ({"avg@k": 0.9} if row["iteration"] == 2 else {})) + "\n"
            for row in json_lines(path)
        ))  # fmt: skip
    run = verl_run.train(config_of(**BEST), python=fake.does(""), resume=True)
    assert kept(run) == (2, 0.9, "2")


@pytest.mark.parametrize("cut", keep([2, 3], 2))
def test_a_run_with_sets_goes_on(fake: Fake, cut: int) -> None:
    """All are evaluated before, after iteration 2 and at the end, also where a kill came between.

    Of 2 prompts of `their/own` the first is always right, of the second 1 of 3 samples.
    """
    config = config_of(
        eval=[one | {"every": 2} for one in SETS],
        save={"best": "their/own/avg@k", "checkpoint_every": 1},
    )
    refused(
        lambda: verl_run.train(config, python=fake.does(f"cut {cut} peak 2")),
        "code 9",
        f"iteration {cut}",
        error=RunStopped,
    )
    run = verl_run.train(config, python=fake.does("peak 2"), resume=True)
    rows = json_lines(run / "evaluation.jsonl")
    assert [(row["iteration"], row["set"]) for row in rows] == [
        (iteration, name) for iteration in (0, 2, 3) for name in ("test", "train", "their/own")
    ]
    scores = [row["avg@k"] for row in rows if row["set"] == "their/own"]
    assert scores == [pytest.approx(2 / 3), 1.0, pytest.approx(2 / 3)]
    assert len(json_lines(run / "answers.jsonl")) == 3 * (2 + 3 + 2)
    assert kept(run) == (2, 1.0, "2")
    given = verl_words(run / "verl" / "command.sh")
    assert given["data.max_response_length"] == "20"  # of a set; a rollout of training takes 13
    assert given[f"+{ACTOR}.policy_loss.max_length"] == "13"
    assert given["trainer.test_freq"] == "2"
    # 128 sequences of the training's longest prompt, "48/6:", and 13 tokens
    assert int(given[f"{ACTOR}.ppo_max_token_len_per_gpu"]) == 128 * (int(given[
        "data.max_prompt_length"]) + 13)  # fmt: skip


def verl_words(command: Path) -> dict[str, str]:
    """The overrides in a shell command."""
    words = shlex.split(command.read_text())
    return dict(word.split("=", 1) for word in words if "=" in word)


def test_sets_of_one_interval_by_other_numbers() -> None:
    """Every 3 of 3 iterations is at the end, as 0 is; a set without prompts is none."""
    sets = [{"every": 0}, {"split": "ood", "every": 3}, {"name": "x", "prompts": 0, "every": 1}]
    assert settings_of(eval=sets)["trainer.test_freq"] == 3
    assert settings_of(eval=[{"every": 2}])["trainer.test_freq"] == 2
    assert settings_of(eval=[{"prompts": 0}])["trainer.test_freq"] == -1


def test_what_nobody_followed_is_taken_in(fake: Fake) -> None:
    save = {"checkpoint_every": 1, "checkpoints": 1}
    config = config_of(iterations=4, save=save, eval={"prompts": 0})
    with pytest.raises(RunStopped):
        verl_run.train(config, python=fake.does("die"))
    Path("run/checkpoints/global_step_2/metrics.jsonl").unlink()
    log = Path("run/metrics.jsonl")
    log.write_text(log.read_text().splitlines(keepends=True)[0])
    verl_run.train(config, python=fake.does(""), resume=True)
    assert [row["iteration"] for row in json_lines(log)] == [1, 2, 3, 4]
    assert sorted(path.name for path in Path("run/checkpoints").glob("global*")) == [
        "global_step_4"
    ]


@pytest.mark.long
def test_a_new_run_forgets_one_that_stopped_at_once(fake: Fake) -> None:
    with pytest.raises(RunStopped):
        verl_run.train(config_of(), python=fake.does("die 1"))
    before, _ = json_lines(Path("run/evaluation.jsonl"))
    path = verl_run.train(config_of(eval={"samples": 1}), python=fake.does(""))
    rows = json_lines(path / "evaluation.jsonl")
    assert (before["k"], [row["k"] for row in rows]) == (2, [1, 1, 1, 1])


def test_a_resumed_run_keeps_its_settings(fake: Fake) -> None:
    verl_run.train(config_of(iterations=2, eval={"prompts": 0}), python=fake.does(""))
    other = config_of(iterations=3, eval={"prompts": 0}, optim={"clip": 0.5})
    refused(lambda: verl_run.train(other, python=str(fake.path), resume=True), "optim.clip")
    written = Path("run/config.toml")
    before = written.read_text()
    assert "clip = 1.0" in before
    written.write_text(before.replace("clip = 1.0", "clip = 0.5"))  # as a user may who resumes
    edited = from_dict({**load(written), "output": "run", "iterations": 3})
    refused(lambda: verl_run.train(edited, python=str(fake.path), resume=True), "optim.clip")
    written.write_text(before)
    refused(
        lambda: verl_run.train(
            config_of(iterations=1, eval={"prompts": 0}), python=str(fake.path), resume=True
        ),
        "only be raised",
    )
    (Path("run") / "checkpoints" / "latest_checkpointed_iteration.txt").unlink()
    refused(
        lambda: verl_run.train(
            config_of(iterations=9, eval={"prompts": 0}), python=str(fake.path), resume=True
        ),
        "no checkpoint of veRL's",
        error=RunStopped,
    )


def test_a_dead_worker_does_not_hang_the_run(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verl_run, "MOURNING", 0.2)
    monkeypatch.setattr(job, "_PATIENCE", (2.0, 2.0))
    look = verl_run.Follower.look

    def slow(follower: verl_run.Follower, last: bool = False) -> bool:
        """A look that lasts until the worker is dead; iteration 1's row comes after it."""
        alive = look(follower, last)
        while not last and "died" not in Path("run/verl/from-000000.log").read_text():
            time.sleep(0.01)
        return alive

    monkeypatch.setattr(verl_run.Follower, "look", slow)
    refused(
        lambda: verl_run.train(config_of(eval={"prompts": 0}), python=fake.does("lost")),
        "veRL did not go on after iteration 1: a worker died",
        error=RunStopped,
    )


@pytest.mark.parametrize("background", [False, True])
def test_ctrl_c_ends_the_job(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    background: bool,
) -> None:  # fmt: skip
    """Also where a shell has started us in the background, deaf to SIGINT."""
    child = Path("env/child")
    monkeypatch.setattr(job, "_PATIENCE", (3600.0, 3600.0))  # the first, most polite signal ends it

    def wait(seconds: float) -> None:
        time.sleep(seconds)
        if child.exists() and child.read_text():
            raise KeyboardInterrupt

    monkeypatch.setattr(verl_run, "wait", wait)
    python = fake.does("hang")
    words = ["--host", "verl", "--verl-python", python, "--iterations", "3", "--eval.prompts", "0"]
    words += ["--verl.trainer.n_gpus_per_node", "1", "--verl.ray_kwargs.ray_init.num_cpus", "12"]
    how = signal.SIG_IGN if background else signal.default_int_handler
    before = signal.signal(signal.SIGINT, how)
    try:
        assert main(["train", "--output", "run", *words]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert f"entrostat train --resume run --verl-python {python}" in capsys.readouterr().err
    with pytest.raises(ProcessLookupError):
        os.kill(int(child.read_text()), 0)


@pytest.mark.parametrize(
    ("mode", "tables", "says"),
    [
        ("refuse [verl]: veRL 0.9.1 has no key 'trainer.nodes'", {}, "no key 'trainer.nodes'"),
        ("", {"verl": {"ray_kwargs.ray_init.num_cpus": 0}}, "must be a whole number"),
        ("", {"model": "no/such/model/here"}, "no/such/model/here"),
        ("", {"save": {"best": "tset/avg@k"}}, "Did you mean 'test/avg@k'"),
        ("", {"save": {"best": "test/entropy"}}, "veRL computes no entropies where it evaluates"),
        ("", {"sampling": {"max_new_tokens": 1000}}, "exceed the model's context"),
        ("", {"eval": [{"max_new_tokens": 1000}]}, r"\[\[eval\]\] 'test': a prompt of"),
        ("", {"eval": [{}, {"task": "no_such"}]}, r"\[\[eval\]\] 2: unknown task 'no_such'"),
        ("", {"eval": [{}], "save": {"best": "ood/avg@k"}}, "'ood/avg@k'. Did you mean"),
    ],
)
def test_bad_input_is_found_before_anything_starts(
    mode: str, tables: dict[str, Any], says: str, fake: Fake
) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        verl_run.train(config_of(**tables), python=fake.does(mode))
    assert "\n" not in str(caught.value)
    assert "main_ppo" not in fake.called()


def test_a_directory_may_be_used_again_after_a_refusal(fake: Fake) -> None:
    with pytest.raises(ValueError, match="no/such/model/here"):
        verl_run.train(config_of(model="no/such/model/here"), python=fake.does(""))
    verl_run.train(config_of(), python=fake.does(""))


def test_an_interpreter_without_verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for python in (None, "/bin/false", str(tmp_path / "none")):
        with pytest.raises(ValueError, match=r"docs/train_verl.md|cannot start it") as caught:
            verl_run.train(config_of(), python=python)
        assert "\n" not in str(caught.value)
        assert "--verl-python PATH" in str(caught.value) or python
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------------------------ small ones


LOGS = {
    "own": (
        "ValueError: of a worker\nTraceback (most recent call last):\n"
        "ray.exceptions.RayTaskError(KeyError): ray::f() (pid=1)\nKeyError: 'x'\n\n"
        "(raylet) ConnectionError: bye\n",
        "KeyError: 'x'",
    ),
    "worker": (
        "\x1b[36m(WorkerDict pid=12, ip=10.0.0.1)\x1b[0m RuntimeError: NCCL is unhappy\n"
        "\x1b[36m(WorkerDict pid=12)\x1b[0m done\n",
        "RuntimeError: NCCL is unhappy",
    ),
    "store": (
        "ray.exceptions.ObjectStoreFullError: Failed to put object\n",
        "Ray's object store is full; give it more",
    ),
    "memory": (
        "(raylet) 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers\n"
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory\n",
        "a worker was killed since its node ran out of memory",
    ),
    "dead": (
        "(raylet) worker died\nray.exceptions.ActorDiedError: The actor died unexpectedly\n",
        "a worker died (ray.exceptions.ActorDiedError: The actor died unexpectedly)",
    ),
    "killed": ("hello\n", "it said last: hello"),
    "silent": ("", "it said nothing"),
}


@pytest.mark.parametrize("name", LOGS)
def test_the_reason_is_the_last_real_error(name: str, tmp_path: Path) -> None:
    text, says = LOGS[name]
    (tmp_path / "log").write_text(text)
    assert job.reason(tmp_path / "log").startswith(says)


def test_verls_names_become_the_labs() -> None:
    row = row_of({"timing_s/gen": 1.5, "perf/mfu": 2, "kl/ref": 0.5, "x": float("nan"), "y": True})
    wanted = {"time/sample": 1.5, "verl/perf/mfu": 2, "kl/ref": 0.5, "time/tokens_per_second": 0.0}
    assert row == wanted


def test_an_answer_that_never_came_is_wrong() -> None:
    answers = [{"where": "test/2", "score": 1.0, "completion": "a", "failed": 1}]
    (row,), (line,) = evaluated(answers, 5, sets_of(config_of(eval={"samples": 4})))
    assert (row["avg@k"], row["pass@k"], row["failed"]) == (0.25, 1.0, 1)
    assert (line["prompt"], line["wrong"]) == (2, 3)


def test_the_command_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    recipe_file = str(PAPERS / "steer_table3_steer_math7b.toml")
    assert main(["train", "--config", recipe_file, "--host", "verl", "--print", "--verl-python",
                 "my env/py"]) == 0  # fmt: skip
    assert capsys.readouterr().out.startswith("'my env/py' -m ")
    shown = ["--host", "verl", "--print", "--verl-python", "py"]
    assert main(["train", "--config", recipe_file, *shown]) == 0
    one = capsys.readouterr().out
    assert one.startswith("py -m verl.trainer.main_ppo \\\n")
    assert f"{ACTOR}.calculate_entropy=true" in one
    more = ["--verl.trainer.nnodes", "7"]
    assert main(["train", "--config", recipe_file, *shown, *more]) == 0
    other = capsys.readouterr().out
    assert "trainer.nnodes=7" in other
    assert "trainer.nnodes=1" not in other
    assert main(["train", "--config", recipe_file, "--print"]) == 2
    assert "go with --host verl" in capsys.readouterr().err


def test_code_that_a_file_names_for_verl(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.toml"
    words = ["train", "--config", str(path), "--host", "verl", "--print"]
    for key in ("model.external_lib", "actor.optim.optimizer_impl", "rollout.engine_kwargs.vllm.x"):
        path.write_text(f'[verl]\n"actor_rollout_ref.{key}" = "evil"\n')
        assert main(words) == 2
        assert f"{key} = 'evil' has veRL import or run code" in capsys.readouterr().err
        assert main([*words, "--trust-code"]) == 0
    config = from_dict({**load(path), "host": "verl", "output": "a run"})
    config.scoring.sandbox = "unsafe"
    assert resume_command(config, "py", "host:1") == (
        "entrostat train --resume 'a run' --trust-code --sandbox unsafe --verl-python py "
        "--ray-address host:1"
    )
    # Hydra builds its own log handlers, from any class
    logging = {"+hydra": {"job_logging": {"handlers": {"x": {"class": "subprocess.Popen"}}}}}
    for table in (logging, {"+x": [{"_target_": "os.system"}]}):
        assert code_in_verl(table)
    assert not code_in_verl({"trainer": {"logger": ["console"]}})
