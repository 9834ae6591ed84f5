"""The recipes of the papers: each builds, fits its host's settings, and its three files agree.

So does each row of README.md, which is one of the files and a few flags.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import re
import shlex
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import entrostat as es
from builders import refused
from entrostat.cli.flags import apply_open_flags, dataclass_flags, take_open_flags
from entrostat.config import TrainConfig, from_dict, load
from entrostat.evaluation.eval_sets import check_best
from entrostat.evaluation.settings import PRESETS, Decoding
from entrostat.runs.best_checkpoint import figures_of
from entrostat.runs.resolve import check_host
from entrostat.study.file import read_study
from entrostat.tasks import make_task
from entrostat.trainers.lab.state import FIELDS
from entrostat.trainers.trl import arguments
from entrostat.trainers.verl import recipe
from entrostat.trainers.verl.recipe import unseen
from long_cases import keep
from paths import ROOT

PAPERS = ROOT / "recipes" / "papers"
LAB = sorted(PAPERS.glob("*.toml"))

# Where a host cannot do what the others do; each file's header says why.
DIFFERS: dict[tuple[str, str], dict[str, Any]] = {
    ("repo", "verl"): {"prompts": 120},  # minibatches of 256 trajectories are no groups of 6
    # the model's 4096 positions less the prompt
    ("par", "lab"): {"new_tokens": 3072},
    ("par", "trl"): {"new_tokens": 3072},
    ("par", "verl"): {"new_tokens": 3072},
}

# Read off the papers by hand: prompts, rollouts, epochs, minibatches, tokens, temperature.
# REPO Sec. 4; COV App. F.2; OPEFO Sec. 6.1 (rollouts: not stated); STEER App. D.2; PAR App. B.
BATCHES = {
    "repo": (128, 6, 2, 3, 4096, 1.0),
    "cov": (256, 8, 1, 8, 8192, 1.0),
    "opefo": (32, 8, 1, 1, 3000, 1.0),
    "steer": (512, 8, 1, 512 // 32, 3072, 1.0),
    "par": (256, 16, 1, 4, 4096, 1.0),
}
# The learning rates: REPO App. D.2, COV (authors' script), OPEFO Sec. 6.1, STEER App. D.2.
RATES = {"repo": 5e-5, "cov": 1e-6, "opefo": 2.83e-6, "steer": 1e-6, "par": 1e-6}
OFF_POLICY = "opefo_table1_grpo_math7b"  # OPEFO Sec. 6.1: 8 updates, 1e-6
# The learning rate after the warm-up: REPO App. D.2, COV (authors' script), OPEFO Sec. 6.1, PAR
# App. B; STEER App. D.2 names a rate alone.
SCHEDULES = {"repo": "constant", "cov": "constant", "opefo": "constant", "steer": "constant",
             "par": "cosine"}  # fmt: skip

# Keys of veRL 0.9.1's ppo_trainer configuration; all were found in
# verl/trainer/config/_generated_ppo_trainer.yaml of that version.
VERL_KEYS = frozenset(
    """
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu
    algorithm.filter_groups.enable
    algorithm.filter_groups.max_num_gen_batches
    algorithm.filter_groups.metric
    data.train_batch_size
    trainer.n_gpus_per_node
    trainer.nnodes
    """.split()
)
ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
MODEL = "actor_rollout_ref.model."
OTHERS = ("rewards", "group", "entropy", "old_entropy", "ref_logp")  # what TRL and veRL supply


def experiment(path: Path) -> str:
    return path.name.removesuffix(".toml")


def family(path: Path) -> str:
    return experiment(path).split("_")[0]


def lab_config(path: Path) -> TrainConfig:
    return from_dict(load(path))


def build(settings: dict[str, Any], updates: int) -> es.Objective:
    """The objective of an [objective] table, with nothing in it that make_objective lacks."""
    assert settings.keys() <= {"method", "advantage", "aggregation"}
    return es.make_objective(**settings, updates=updates)


def trl_arguments(config: TrainConfig) -> dict[str, Any]:
    """What `--host trl --sampling.engine vllm` makes of a recipe: arguments of GRPOConfig."""
    sampling = dataclasses.replace(config.sampling, engine="vllm")
    config = dataclasses.replace(config, host="trl", output="run", sampling=sampling).validate()
    assert config.sampling.max_new_tokens is not None
    return arguments.arguments(config, config.sampling.max_new_tokens)


def trl_facts(config: TrainConfig) -> dict[str, Any]:
    """What the arguments mean, by TRL's own arithmetic."""
    args = trl_arguments(config)
    minibatches, rest = divmod(args["steps_per_generation"], args["gradient_accumulation_steps"])
    assert rest == 0
    completions = args["per_device_train_batch_size"] * args["steps_per_generation"]
    iterations, rest = divmod(args["max_steps"], minibatches * args["num_iterations"])
    assert rest == 0
    prompts, rest = divmod(completions, args["num_generations"])
    assert rest == 0
    return {
        "prompts": prompts,
        "rollouts": args["num_generations"],
        "epochs": args["num_iterations"],
        "minibatches": minibatches,
        "iterations": iterations,
        "new_tokens": args["max_completion_length"],
        "temperature": args["temperature"],
        "top_p": args["top_p"],
        "lr": args["learning_rate"],
        "schedule": args["lr_scheduler_type"].removesuffix("_with_warmup"),
        "warmup": args["warmup_steps"],
        "betas": (args["adam_beta1"], args["adam_beta2"]),
        "weight_decay": args["weight_decay"],
        "clip": args["max_grad_norm"],
        "fp16": args["fp16"],
    }


def verl_facts(config: TrainConfig) -> dict[str, Any]:
    """What `--host verl` makes of a recipe, by veRL's own arithmetic."""
    o = verl_settings(config)
    minibatches, rest = divmod(o["data.train_batch_size"], o[ACTOR + "ppo_mini_batch_size"])
    assert rest == 0
    updates = minibatches * o[ACTOR + "ppo_epochs"]
    loss = f"+{ACTOR}policy_loss."
    kinds = {o[ACTOR + "fsdp_config.dtype"], o[ROLLOUT + "dtype"]}  # trainer and sampler alike
    assert len(kinds) == 1
    return {
        "objective": repr(
            build({k: o[loss + k] for k in ("method", "advantage", "aggregation")}, updates)
        ),
        "model": o[MODEL + "path"],
        "prompts": o["data.train_batch_size"],
        "rollouts": o[ROLLOUT + "n"],
        "epochs": o[ACTOR + "ppo_epochs"],
        "minibatches": minibatches,
        "iterations": o["trainer.total_training_steps"],
        "new_tokens": o["data.max_response_length"],
        "temperature": o[ROLLOUT + "temperature"],
        "top_p": o[ROLLOUT + "top_p"],
        "lr": o[ACTOR + "optim.lr"],
        "schedule": o[ACTOR + "optim.lr_scheduler_type"],
        # veRL moves the rate once per rollout batch, the others once per update
        "warmup": o[ACTOR + "optim.lr_warmup_steps"] * updates,
        "betas": tuple(o[ACTOR + "optim.betas"]),
        "weight_decay": o[ACTOR + "optim.weight_decay"],
        "clip": o[ACTOR + "optim.clip_grad"],
        "fp16": kinds == {"float16"},
        "lora": (
            o[MODEL + "lora_rank"],
            o.get(MODEL + "lora_alpha", 32),
            o.get(MODEL + "target_modules", "all-linear"),
        ),
    }


def verl_settings(config: TrainConfig) -> dict[str, Any]:
    config = dataclasses.replace(config, host="verl", output="run")
    return recipe.settings(config, unseen(config))


def lab_facts(c: TrainConfig) -> dict[str, Any]:
    objective = build(
        {"method": c.method, "advantage": c.advantage, "aggregation": c.optim.aggregation},
        c.updates,
    )
    return {
        "objective": repr(objective),
        "model": c.model,
        "data": c.task["name"],
        "prompts": c.sampling.prompts,
        "rollouts": c.sampling.rollouts,
        "epochs": c.optim.epochs,
        "minibatches": c.optim.minibatches,
        "iterations": c.iterations,
        "new_tokens": c.sampling.max_new_tokens,
        "temperature": c.sampling.temperature,
        "top_p": c.sampling.top_p,
        "lr": c.optim.lr,
        "schedule": c.optim.schedule,
        "warmup": c.optim.warmup,
        "betas": c.optim.betas,
        "weight_decay": c.optim.weight_decay,
        "clip": c.optim.clip,
        "fp16": c.precision == "fp16",
        "lora": (c.lora.rank, c.lora.alpha, c.lora.targets),
    }


def of_all_hosts(name: str) -> dict[str, dict[str, Any]]:
    """What the files of an experiment say, by host."""
    return {
        "lab": lab_facts(lab_config(PAPERS / f"{name}.toml")),
        "trl": trl_facts(lab_config(PAPERS / f"{name}.toml")),
        "verl": verl_facts(lab_config(PAPERS / f"{name}.toml")),
    }


def disagree(paper: str, said: dict[str, dict[str, Any]]) -> None:
    """Fail where two hosts say different things of what they both say, but for `DIFFERS`."""
    for host, facts in said.items():
        for key in DIFFERS.get((paper, host), {}):
            facts.pop(key)
    for first, second in itertools.combinations(said, 2):
        both = said[first].keys() & said[second].keys()
        assert {k: said[first][k] for k in both} == {k: said[second][k] for k in both}


EXPERIMENTS = [experiment(path) for path in LAB]


def test_every_paper_is_there_and_every_file_says_what_it_is() -> None:
    assert {family(path) for path in LAB} == set(BATCHES)
    for path in LAB:
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {family(path).upper()} Table "), path.name
        table = experiment(path).split("_")[1].removeprefix("table")
        assert f"Table {table}" in text.split("\n")[0], path.name
        assert f"--config recipes/papers/{path.name}\n" in text, path.name


@pytest.mark.parametrize("path", LAB, ids=lambda p: p.name)
def test_lab_recipes_run_in_the_lab(path: Path, tmp_path: Path) -> None:
    config = lab_config(path)
    objective = es.make_objective(
        config.method,
        advantage=config.advantage,
        aggregation=config.optim.aggregation,
        updates=config.updates,
    )
    objective.check_host("lab", FIELDS, config.updates)
    # the task's parameters, on a file with the columns of the named set
    asked, right = [f"What is {i} + 1?" for i in range(100)], [str(i + 1) for i in range(100)]
    if config.task["name"] == "dapo_math":
        rows = [
            {"prompt": [{"role": "user", "content": q}], "reward_model": {"ground_truth": a}}
            for q, a in zip(asked, right, strict=True)
        ]
    else:
        valid = {"synthetic": False, "question_type": "math-word-problem", "source": "amc_aime"}
        valid |= {"problem_is_valid": "Yes", "solution_is_valid": "Yes"}
        rows = [{"problem": q, "answer": a} | valid for q, a in zip(asked, right, strict=True)]
    file = tmp_path / "set.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    without = {"without": []}  # sets that are not on this machine
    task = make_task(**config.task | {"path": str(file)} | without)
    assert task.splits == ("train", "test")
    example = task.example(7, "train")
    (i,) = map(int, re.findall(r"is (\d+) \+ 1", str(example.prompt)))
    assert task.score(rf"so the answer is \boxed{{{i + 1}}}.", example) == 1.0
    assert task.score(rf"\boxed{{{i + 2}}}", example) == 0.0


# What the papers evaluate on and choose a checkpoint by: REPO Sec. 4, COV App. F.2, OPEFO Sec. 6.1,
# STEER App. D, PAR App. B (of whose seven sets the one that it chooses by).
SMALL, SIX = ["aime24", "aime25", "amc23"], ["math500", "minerva", "olympiadbench"]
EVALUATED: dict[str, tuple[list[str], list[str]]] = {
    "repo": (["aime24", "aime25"], []),
    "cov": ([*SMALL, "math500", "olympiadbench", "omni_math", "minerva"], []),
    "opefo": ([*SMALL, *SIX], [f"{name}/avg@k" for name in [*SMALL, *SIX]]),
    "steer": ([*SMALL, *SIX], ["aime24/avg@k"]),
    "par": (["aime25"], ["aime25/avg@k"]),
}


@pytest.mark.parametrize("path", LAB, ids=lambda p: p.name)
def test_recipes_evaluate_as_their_papers(path: Path) -> None:
    config, paper = lab_config(path), family(path)
    names, best = EVALUATED[paper]
    asked = [one.task or {} for one in config.eval.sets]
    assert [task["name"] for task in asked] == names
    assert figures_of(config.save.best) == best
    check_best(config.save.best, names)
    rule = {"rule": "minerva"} if paper == "repo" else None  # REPO App. D.1
    assert all(task.get("grader_options") == rule for task in asked)
    for one, name in zip(config.eval.sets, names, strict=True):
        wanted = PRESETS[paper].decoding(name)
        if paper == "par":  # its model has 4096 positions, prompt included
            wanted = dataclasses.replace(wanted, max_new_tokens=3072)
        greedy = one.temperature == 0
        found = Decoding(
            one.samples or 1, 1.0 if greedy else one.temperature or config.sampling.temperature,
            one.top_p or config.sampling.top_p, greedy=greedy, max_new_tokens=one.max_new_tokens,
        )  # fmt: skip
        assert found == wanted, name


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl is an extra")
def test_trl_takes_the_arguments() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what its imports say is theirs
        from trl import GRPOConfig

        for path in LAB:
            config = lab_config(path)
            assert not config.trl.keys() - {"vllm_importance_sampling_correction"}, path.name
            there = dataclasses.replace(config, host="trl", precision="bf16")
            check_host(there, "trl")
            arguments.refuse(there)
            here = {"use_cpu": True, "bf16": False, "fp16": False}
            built = GRPOConfig(**trl_arguments(config) | here)
            # its own arithmetic: steps_per_generation forward passes, accumulated into updates
            minibatches = built.steps_per_generation / built.gradient_accumulation_steps
            assert minibatches == config.optim.minibatches, path.name
            rollouts = config.sampling.prompts * config.sampling.rollouts
            assert built.generation_batch_size == rollouts, path.name


def splits_evenly(config: TrainConfig) -> None:
    """Fail where veRL's workers could not split every minibatch evenly over the devices."""
    o, facts = verl_settings(config), verl_facts(config)
    devices = o["trainer.nnodes"] * o["trainer.n_gpus_per_node"]
    trajectories = facts["prompts"] * facts["rollouts"]
    assert trajectories % devices == 0
    assert trajectories // facts["minibatches"] % devices == 0


def test_verl_keys_are_all_used() -> None:
    for path in LAB:
        splits_evenly(lab_config(path))
    assert {key for path in LAB for key in lab_config(path).verl} == VERL_KEYS


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_files_of_one_experiment_agree(name: str) -> None:
    said = of_all_hosts(name)
    paper = name.split("_")[0]
    for (whose, host), own in DIFFERS.items():
        if whose == paper:
            assert {key: said[host][key] for key in own} == own
    disagree(paper, said)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_batches_are_those_of_the_papers(name: str) -> None:
    paper = name.split("_")[0]
    prompts, rollouts, epochs, minibatches, tokens, temperature = BATCHES[paper]
    lr = RATES[paper]
    if name == OFF_POLICY:
        minibatches, lr = 8, 1e-6
    for host, facts in of_all_hosts(name).items():
        own = DIFFERS.get((paper, host), {})
        assert facts["prompts"] == own.get("prompts", prompts)
        assert facts["rollouts"] == rollouts
        assert (facts["epochs"], facts["minibatches"]) == (epochs, minibatches)
        assert facts["new_tokens"] == own.get("new_tokens", tokens)
        assert facts["temperature"] == temperature
        assert facts["lr"] == lr
        assert facts["schedule"] == SCHEDULES[paper]


# The methods' own numbers, by hand: REPO Sec. 3 and App. B, COV App. F.2 and Algorithm 1,
# OPEFO Sec. 5, STEER App. E.3 and the authors' script, PAR Sec. 7.3 (its step and start: public
# notes); clips of the baselines.
METHODS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "repo_table3_dapo_8b": ("rloo", {"ppo": {"low": 0.2, "high": 0.28}}),
    "repo_table3_repo_r_8b": (
        "rloo",
        {
            "ppo": {"low": 0.2, "high": 0.28},
            "repo_r": {"zeta": 1e-3, "zeta_min": 1e-5, "zeta_max": 1e-1, "bidirectional": False},
        },
    ),
    "repo_table3_repo_d_8b": (
        "rloo",
        {
            "ppo": {"low": 0.2, "high": 0.28},
            "repo_d": {"zeta": 1e-3, "zeta_min": 1e-3, "zeta_max": 10.0},
        },
    ),
    "repo_table4_adapo_8b_aime": (
        "rloo",
        {
            "adapo": {
                "ratio": "token",
                "low": 0.2,
                "high": 0.28,
                "high_min": 0.2,
                "high_max": 0.3,
                "factor": 1.01,
            }
        },
    ),
    "cov_table2_grpo_7b": ("grpo", {"ppo": {"low": 0.2, "high": 0.2, "dual": None}}),
    "cov_table2_clip_cov_7b": (
        "grpo",
        {
            "ppo": {"low": 1.0, "high": 1.0},
            "clip_cov": {"ratio": 2e-4, "low": 1.0, "high": 5.0},
        },
    ),
    "cov_table2_kl_cov_7b": (
        "grpo",
        {"ppo": {"low": None, "high": None}, "kl_cov": {"frac": 2e-3, "coef": 1.0}},
    ),
    "opefo_table1_grpo_math7b": ("grpo", {"ppo": {"low": 0.2, "high": 0.2}}),
    "opefo_table1_on_policy_math7b": ("grpo", {"reinforce": {}}),
    "opefo_table1_opefo_math7b": ("grpo", {"reinforce": {}, "opefo": {"mode": "adaptive"}}),
    "steer_table3_grpo_math7b": ("grpo", {"ppo": {"low": 0.2, "high": 0.2}}),
    "steer_table3_steer_math7b": (
        "grpo",
        {"ppo": {"low": 0.2, "high": 0.28}, "steer": {"lambda_min": 0.7, "mapping": "exp"}},
    ),
    "par_table2_grpo_math7b": ("grpo", {"ppo": {"low": 0.2, "high": 0.2}}),
    "par_table2_pos_adv_math7b": (
        "grpo",
        {
            "ppo": {"low": 0.2, "high": 0.2},
            "pos_adv": {"schedule": "entropy", "target": 0.2, "delta": 0.05, "weight": 0.0},
        },
    ),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_methods_are_those_of_the_papers(name: str) -> None:
    advantage, chain = METHODS[name]
    facts = of_all_hosts(name)
    config = lab_config(PAPERS / f"{name}.toml")
    objective = es.make_objective(
        config.method, advantage=config.advantage, aggregation=config.optim.aggregation
    )
    said = {f["objective"] for f in facts.values() if "objective" in f}
    assert said == {repr(objective)}
    assert objective.advantage == advantage
    assert objective.aggregation == AGGREGATIONS[name.split("_")[0]]
    check_chain(objective, chain)


# REPO Sec. 2 (1/|tau| of J_PPO, J_GSPO a mean over sequences); COV Alg. 1, OPEFO Fig. 3, STEER Eq.
# 4 and App. D.2, PAR Eq. 7: one mean over tokens.
AGGREGATIONS = {"repo": "seq_mean_token_mean", "cov": "token_mean", "opefo": "token_mean",
                "steer": "token_mean", "par": "token_mean"}  # fmt: skip


def check_chain(objective: es.Objective, chain: dict[str, dict[str, Any]]) -> None:
    """Fail unless the objective is of these methods, with these numbers."""
    assert objective.names == tuple(chain)
    for method, wanted in zip(objective.methods, chain.values(), strict=True):
        found = {key: getattr(method, key) for key in wanted}
        assert found == {key: pytest.approx(value) for key, value in wanted.items()}


def test_the_sequential_study_starts_from_the_best_of_the_first_task() -> None:
    """REPO Fig. 4: both ways, under three methods; iterations and problems are Sec. 4's."""
    study = read_study(PAPERS / "studies/repo_fig4_sequential.toml")
    of_task = {"aime": ("numina_amc_aime", 200, 128), "appworld": ("appworld", 100, 64)}
    for way in (["aime"], ["appworld"], ["aime", "appworld"], ["appworld", "aime"]):
        for method in ("grpo", "dapo", "repo_r"):
            name = "_".join([*way, method])
            config = study.runs[f"{name}-0"]
            found = config.task["name"], config.iterations, config.sampling.prompts
            assert found == of_task[way[-1]]
            assert config.updates == 6
            origin = study.origins[f"{name}-0"]
            first = (None, "final") if len(way) == 1 else (f"{way[0]}_{method}-0", "best")
            assert (origin.after, origin.start) == first
    assert len(study.runs) == 12 * 3


# ---------------------------------------------------------------------------- the rows of README.md


def choices(text: str) -> list[str]:
    """The texts that braces stand for: of "a {b,c} d" those are "a b d" and "a c d"."""
    braces = re.search(r"\{([^{}]*)\}", text)
    if braces is None:
        return [text]
    rests = (text[: braces.start()] + word + text[braces.end() :] for word in braces[1].split(","))
    return [choice for rest in rests for choice in choices(rest)]


README = (PAPERS / "README.md").read_text(encoding="utf-8")
_TABLES = README.split("## Every row\n")[1].split("\n## The same row")[0]
_ROW = re.compile(r"\| ([^|]*)\| `(\w+)` \| (?:`([^`]*)` )?\|")
_LINES = [line for line in _TABLES.split("\n") if re.match(r"\| (?!row |---)", line)]
ROWS = [
    (file, flags)
    for _, file, text in (_ROW.fullmatch(line).groups() for line in _LINES)  # type: ignore[union-attr]
    for flags in choices(text or "")
]


@cache
def lab_row(file: str, flags: str) -> TrainConfig:
    """The configuration that `entrostat train --config FILE FLAGS` makes."""
    words, open_flags = take_open_flags(shlex.split(flags))
    config = from_dict(apply_open_flags(load(PAPERS / f"{file}.toml"), open_flags))
    return dataclass_flags(TrainConfig, config, words, "entrostat train", "").validate()


@pytest.mark.parametrize("row", keep(ROWS, *ROWS[::4]), ids=" ".join)
def test_every_row_builds_in_all_hosts(row: tuple[str, str]) -> None:
    file, flags = row
    paper = file.split("_")[0]
    config = lab_row(file, flags)
    said = {"lab": lab_facts(config)}
    objective = es.make_objective(config.method, advantage=config.advantage, updates=config.updates)
    objective.check_host("lab", FIELDS, config.updates)
    assert objective.aggregation == AGGREGATIONS[paper]
    named = re.search(r"--advantage (\w+)", flags)
    exception = named[1] if named else ADVANTAGES.get((paper, objective_name(flags)))
    assert objective.advantage == (exception or {"repo": "rloo"}.get(paper, "grpo"))
    if "--method prime" not in flags:  # the lab alone trains its second model
        for host in ("trl", "verl"):
            objective.check_host(host, OTHERS, config.updates)
        said |= {"trl": trl_facts(config)}
        if "--numerics" in flags:
            refused(lambda: verl_settings(config), "numerics.round_logp", "--host lab")
        else:
            splits_evenly(config)
            said |= {"verl": verl_facts(config)}
        if "--sampling.max_new_tokens" in flags:  # then the lab's is no longer its own
            own = config.sampling.max_new_tokens or 0
            longest = max(own, *(one.max_new_tokens or 0 for one in config.eval.sets))
            if "verl" in said:  # where it bounds evaluations, too
                assert said["verl"]["new_tokens"] == longest
                said["verl"]["new_tokens"] = own
            assert {facts["new_tokens"] for facts in said.values()} == {own}
        disagree(paper, said)


# Where a row's advantage is not its paper's: REPO's GRPO; COV's RLOO and PRIME (leave-one-out).
ADVANTAGES = {("repo", "grpo"): "grpo", ("cov", "loop_token"): "rloo", ("cov", "prime"): "rloo"}


def objective_name(flags: str) -> str:
    found = re.search(r"--method (\S+)", flags)
    return found[1] if found else ""


# Rows whose objective or updates the papers spell out, by hand: REPO Sec. 4, App. B and D.2,
# footnote 3 (REPO-D's controller), COV App. F.2, OPEFO Sec. 6.1 and Tab. 2, STEER App. D.2 and E.3,
# PAR Sec. 6.1 and App. D.1, E.2; ADAPO's range over GSPO is ours.
PPO = {"low": 0.2, "high": 0.28}
GSPO = {"low": 3e-4, "high": 4e-4}
SPELLED: list[tuple[str, str, int, dict[str, dict[str, Any]]]] = [
    ("repo_table3_dapo_8b", "--method rloo ", 1, {"reinforce": {}}),
    ("repo_table3_dapo_8b", "--method grpo", 6, {"ppo": {"low": 0.2, "high": 0.2}}),
    ("repo_table3_dapo_8b", "--method loop", 6, {"ppo": {"low": 0.2, "high": 0.2}}),
    ("repo_table3_dapo_8b", "--method gspo", 6, {"gspo": GSPO}),
    ("repo_table3_dapo_8b", "--method gspo_repo_d", 6,
     {"gspo": GSPO, "repo_d": {"zeta": 1e-3, "zeta_min": 1e-3, "zeta_max": 10.0}}),
    ("repo_table3_dapo_8b", "--method h_bonus", 6,
     {"ppo": PPO, "entropy_bonus": {"coef": 1e-3, "coef_min": 1e-3, "coef_max": 10.0}}),
    ("repo_table4_adapo_8b_aime", "--method loop_tight", 6, {"ppo": {"low": 0.1, "high": 0.1}}),
    ("repo_table4_adapo_8b_aime", "--method gspo_adapo", 6,
     {"adapo": {**GSPO, "high_min": 4e-4 / 1.4, "high_max": 6e-4 / 1.4, "factor": 1.01}}),
    ("repo_table4_adapo_8b_aime", "--method repo_r ", 6,
     {"ppo": PPO, "repo_r": {"zeta": 1e-3, "zeta_min": 1e-5, "zeta_max": 0.1}}),
    ("repo_table4_adapo_8b_aime", "--method rloo,reinforce,repo_r ", 1,
     {"reinforce": {}, "repo_r": {"zeta_max": 0.1}}),
    ("cov_table2_kl_cov_7b", "--model Qwen/Qwen2.5-32B ", 8,
     {"ppo": {"low": None, "high": None}, "kl_cov": {"frac": 2e-4, "coef": 1.0}}),
    ("cov_table2_grpo_7b", "--method reinforce ", 1, {"reinforce": {}}),
    ("opefo_table1_grpo_math7b", "--method grpo_token,entropy_bonus ", 8,
     {"ppo": {"low": 0.2, "high": 0.2}, "entropy_bonus": {"coef": 0.01}}),
    ("opefo_table1_opefo_math7b", "--method.mode static ", 1,
     {"reinforce": {}, "opefo": {"lam": 1e-3}}),
    ("steer_table3_grpo_math7b", "--method extreme,steer", 16,
     {"ppo": {"low": 0.99, "high": 5.0}, "steer": {"lambda_min": 0.7}}),
    ("steer_table3_steer_math7b", "--method.mapping linear ", 16,
     {"ppo": PPO, "steer": {"lambda_min": 0.7, "lambda_max": 1.2}}),
    ("steer_table3_grpo_math7b", "--method.low 0.8", 16, {"ppo": {"low": 0.8, "high": 0.2}}),
    ("par_table2_grpo_math7b", "--method clip_lower", 4, {"ppo": {"low": 0.28, "high": 0.2}}),
    ("par_table2_grpo_math7b", "--method clip_tighter", 4, {"ppo": {"low": 0.12, "high": 0.2}}),
    ("par_table2_grpo_math7b", "--method rand_pos_clip ", 4,
     {"ppo": {"low": 0.2, "high": 0.2}, "rand_pos_clip": {"ratio": 2e-4}}),
]  # fmt: skip
SPELLED += [
    ("par_table2_grpo_math7b", f"--optim.minibatches {N}", N, {"ppo": {"low": 0.2, "high": 0.2}})
    for N in (1, 2, 8, 16)
]


@pytest.mark.parametrize("spelled", SPELLED, ids=lambda s: f"{s[0]} {s[1].strip()}")
def test_rows_that_the_papers_spell_out(spelled: tuple[str, str, int, dict[str, Any]]) -> None:
    file, start, updates, chain = spelled
    rows = [row for row in ROWS if row[0] == file and f"{row[1]} ".startswith(f"{start.strip()} ")]
    assert rows
    for row in rows:
        config = lab_row(*row)
        assert config.updates == updates
        check_chain(es.make_objective(config.method, advantage=config.advantage), chain)


@pytest.mark.long
def test_every_row_of_the_tables_is_there() -> None:
    """Models and training sets of the papers' tables, by hand."""
    configs = [lab_row(*row) for row in ROWS]
    models = {config.model for config in configs}
    assert {
        "Qwen/Qwen3-8B", "Qwen/Qwen3-32B",  # REPO Tab. 3
        "meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-7B",  # COV Tab. 2
        "Qwen/Qwen2.5-32B", "Qwen/Qwen3-8B-Base",
        "Qwen/Qwen2.5-Math-7B", "Qwen/Qwen3-4B-Base",  # OPEFO Tab. 1
        "Qwen/Qwen2.5-Math-1.5B", "Qwen/Qwen2.5-14B",  # STEER Tab. 11
        "meta-llama/Llama-3.1-8B-Instruct",  # PAR Tab. 5
    } <= models  # fmt: skip
    fits = {config.model for config in configs if config.optim.lr == 5e-7}
    assert len(fits) == 11  # COV App. B.1
    tab3 = {c.task["name"] for c in configs if c.task["name"].endswith(".jsonl") and c.updates == 1}
    assert tab3 == {
        f"dapo_math_{kind}_{size}.jsonl"
        for kind in ("kmeans", "random")
        for size in (10001, 5031, 2538, 1246, 616)
    }
    qwen3 = [c for c in configs if c.model == "Qwen/Qwen3-4B-Base"]
    assert {c.sampling.max_new_tokens for c in qwen3} == {8000}  # OPEFO Sec. 6.1
    assert len(qwen3) == 7  # OPEFO Tab. 1
