"""Translate a configuration into the full Hydra overrides of a veRL run. Imports no veRL.

There are three layers, of which the later ones win: defaults, which [verl] may change; [verl]; the
common settings. A key of [verl] that a common setting determines raises, so that a recipe means the
same under every trainer.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...agents import is_multi_turn
from ...config import TrainConfig, from_dict, load, toml_value
from ...core.objective import Objective
from ...core.rollouts import FIELDS
from ...data.prompts import longest, usual
from ...runs.best_checkpoint import figures_of
from ...runs.resolve import objective_of
from ...runs.run_directory import default_output
from ...runs.trackers.services import environment
from ...tasks import BUILT_IN, task_class
from . import checkpoints
from .config import bare, flat, hydra_value
from .model_ref import learning_rate_of, make, place_of
from .refusals import DEFAULTS, corrects, raise_if, refusals

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
LOSS = f"{ACTOR}.policy_loss"
INIT = "ray_kwargs.ray_init"
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_PROMPTS, _LOGGER = "data.train_batch_size", "trainer.logger"


@dataclass(frozen=True)
class RunPlan:
    """Values that a configuration leaves open and a run determines before it starts."""

    output: Path  # the run directory, absolute
    new: int  # maximum sampled tokens of a training rollout
    lr: float  # the learning rate
    # maximum tokens of a training rollout, observations included; None for `new`
    longest: int | None = None
    usual: int | None = None  # usual maximum of these tokens; None for `longest`
    # tokens of the longest training prompt; None if prompts were not read
    prompt: int | None = None
    # tokens of the longest prompt, and of the longest answer, of evaluations
    evaluated: tuple[int, int] = (0, 0)
    start: int = 0  # the iteration after which the run resumes
    evaluates: bool = True  # whether there is a set to evaluate on
    owes: bool = True  # whether the evaluation after `start` must be made before continuing
    ray_address: str | None = None  # a running cluster; None lets veRL start Ray here

    @property
    def own(self) -> Path:
        return self.output / "verl"

    @property
    def metrics(self) -> Path:
        """File of veRL's "file" logger for this start."""
        return self.own / f"from-{self.start:06d}.jsonl"


def unseen(config: TrainConfig, ray_address: str | None = None) -> RunPlan:
    """The plan without the prompts and, if the recipe sets the lengths, without the task.

    For a multi-turn task that is not built in, the values are those of a single turn: only
    importing the task would tell, and code that a file names is not imported for that.
    """
    new, most, name = config.sampling.max_new_tokens, None, config.task["name"]
    if new is None or (name in BUILT_IN and is_multi_turn(task_class(name))):
        task = make(config)
        new = longest(task, config, task.splits[0])
        if is_multi_turn(task):
            most = config.sampling.max_context or usual(task, config, task.splits[0])
    output = Path(config.output or default_output(config)).absolute()
    evaluates = any(one.prompts for one in config.eval.resolved)
    return RunPlan(
        output, new, learning_rate_of(config), longest=most, ray_address=ray_address,
        evaluated=(0, max((one.max_new_tokens or 0 for one in config.eval.sets), default=0)),
        evaluates=evaluates, owes=evaluates,
    )  # fmt: skip


def overrides(config: TrainConfig, facts: RunPlan) -> list[str]:
    """Format `settings` as "key=value" overrides of `python -m verl.trainer.main_ppo`."""
    return [f"{key}={hydra_value(value)}" for key, value in settings(config, facts).items()]


def settings(config: TrainConfig, facts: RunPlan) -> dict[str, Any]:
    """Keys and values of veRL's ppo_trainer configuration for a configuration.

    A key that veRL itself lacks begins with `+`.
    """
    given = dict(flat(config.verl))
    said = bare(given)
    config = in_whole_groups(config)
    raise_if(_refusals(config, said), "host verl: ")
    objective = objective_of(config, "verl", FIELDS, facts.new)
    common = _common(config, facts, objective)
    owners = bare({key: setting for key, (_, setting) in common.items()})
    owners[f"{INIT}.address"] = "--ray-address"
    for key in said:
        owner = "method" if key.startswith(LOSS) else owners.get(key)
        if owner is not None and key != _PROMPTS:
            raise ValueError(f"verl.{key} is what {owner} says under every host; set that instead")
    defaults = _defaults(config, facts, said).items()
    values = {key: value for key, value in defaults if key not in said}
    values |= given | {key: value for key, (value, _) in common.items()}
    known = DEFAULTS | bare(values)
    raise_if(refusals(known.get, objective, said), "host verl: ")
    # metrics are read from this file; other loggers may run beside it
    loggers = [*_listed(known[_LOGGER]), *config.log.to, "file"]
    values = {key: value for key, value in values.items() if key.lstrip("+") != _LOGGER}
    return values | {_LOGGER: list(dict.fromkeys(loggers))}


def verl_config(path: str | Path, changes: Sequence[str] = ()) -> list[str]:
    """Return the overrides of a recipe, without reading its task or model.

    Args:
        path: a recipe of `entrostat train`.
        changes: "key=value" each, which override [verl].

    Raises:
        ValueError: the file cannot be read; otherwise as for `overrides`.
    """
    config = from_dict({**load(path), "host": "verl"})
    for line in changes:
        key, equals, value = line.partition("=")
        if not equals:
            raise ValueError(f"override {line!r} is no key=value")
        config.verl[key] = toml_value(value)
    return overrides(config, unseen(config))


def in_whole_groups(config: TrainConfig) -> TrainConfig:
    """Set the number of prompts that veRL can split into minibatches.

    veRL counts minibatches in groups, so `sampling.prompts` must be a multiple of
    `optim.minibatches`. If it is not, `data.train_batch_size` of [verl] gives the number of prompts
    that veRL draws instead. It is the only key allowed beside a common setting.
    """
    parts = config.optim.minibatches
    given = bare(dict(flat(config.verl))).get(_PROMPTS)
    prompts = config.sampling.prompts if given is None else given
    if type(prompts) is not int or prompts < 1 or prompts % parts:
        name = "sampling.prompts" if given is None else f"verl.{_PROMPTS}"
        raise ValueError(
            f"host verl: veRL cuts whole groups into minibatches, and {name} {prompts!r} is no "
            f"multiple of optim.minibatches {parts}; set verl.{_PROMPTS} to one, "
            f"{max(1, config.sampling.prompts // parts) * parts} say"
        )
    if given is not None:
        config = copy.deepcopy(config)
        config.sampling.prompts = prompts
    return config


def processors(config: TrainConfig) -> tuple[int, int | None]:
    """Logical processors that Ray must have: with fewer, main_ppo waits forever.

    veRL reserves three per rank, TransferQueue one for its controller and one per storage unit. The
    second number is the processor count that [verl] sets for a local Ray, if any.
    """
    said = bare(dict(flat(config.verl)))

    def count(key: str) -> int | None:
        value = said.get(key)
        if value is not None and (type(value) is not int or value < 1):
            raise ValueError(f"verl.{key} must be a whole number of 1 or more, got {value!r}")
        return value

    ranks = (count("trainer.nnodes") or 1) * (count("trainer.n_gpus_per_node") or 8)
    units = count(_UNITS) or _STORAGE_UNITS
    return 3 * ranks + 1 + units, count(f"{INIT}.num_cpus")


_UNITS, _STORAGE_UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units", 8


def _defaults(config: TrainConfig, facts: RunPlan, said: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults that [verl] may change: veRL's implementation choices, not the training."""
    values: dict[str, Any] = {
        "trainer.project_name": config.log.project,
        "trainer.experiment_name": config.log.name or facts.output.name,
        _LOGGER: ["console"],
        f"{ACTOR}.strategy": "fsdp2",
        "actor_rollout_ref.ref.strategy": "fsdp2",
        f"{MODEL}.use_remove_padding": True,
        # float32, one slice of the logits at a time, without storing it for autograd
        f"{ACTOR}.entropy_from_logits_with_chunking": True,
        f"{ACTOR}.entropy_checkpointing": True,
        f"{ROLLOUT}.name": "vllm",
        "data.dataloader_num_workers": 0,  # rows need no processing
        "reward.num_workers": 1,  # it has its own `scoring.workers` processes
        _UNITS: _STORAGE_UNITS,
    }
    if corrects(said.get):
        values[f"{ROLLOUT}.calculate_log_probs"] = True
    if f"{ACTOR}.ppo_micro_batch_size_per_gpu" not in said:
        values[f"{ACTOR}.use_dynamic_bsz"] = True
        if facts.prompt is not None:
            most = facts.longest or facts.new
            several = config.optim.micro_batch * (facts.prompt + (facts.usual or most))
            # the longest rollout must fit alone
            values[f"{ACTOR}.ppo_max_token_len_per_gpu"] = max(several, facts.prompt + most)
    if facts.prompt is not None:
        values["data.max_prompt_length"] = max(facts.prompt, facts.evaluated[0])
    return values


def _common(config: TrainConfig, facts: RunPlan, objective: Objective) -> dict[str, Any]:
    """Map a key of veRL's to (its value, the common setting that determines it)."""
    sampling, optim, run = config.sampling, config.optim, facts.output
    minibatch = sampling.prompts // optim.minibatches
    response = max(facts.longest or facts.new, facts.evaluated[1])
    short = "bf16" if config.precision == "auto" else config.precision
    dtype = _DTYPES[short]
    every = checkpoints.between_evaluations(config) or config.iterations
    settings = str(facts.own / "run.json")
    reward = "reward.custom_reward_function"
    table: dict[str, Any] = {
        "data.train_files": (str(run / "data" / "train.parquet"), "task"),
        "data.val_files": (str(run / "data" / "test.parquet"), "task"),
        "data.shuffle": (False, "seed"),
        "data.validation_shuffle": (False, "seed"),
        "data.filter_overlong_prompts": (False, "task"),
        _PROMPTS: (sampling.prompts, "sampling.prompts"),
        "data.max_response_length": (response, "sampling.max_new_tokens"),
        "+data.entrostat": (settings, "task"),
        f"{reward}.path": ("pkg://entrostat.trainers.verl.reward", "task"),
        f"{reward}.name": ("compute_score", "task"),
        f"+{reward}.reward_kwargs.settings": (settings, "task"),
        f"{ROLLOUT}.agent.default_agent_loop": ("entrostat", "sampling.stop"),
        # only means that there is no critic: the objective estimates advantages
        "algorithm.adv_estimator": ("grpo", "advantage"),
        f"{MODEL}.path": (place_of(config.model), "model"),
        f"{MODEL}.enable_gradient_checkpointing": (
            config.gradient_checkpointing, "gradient_checkpointing",
        ),
        f"{MODEL}.lora_rank": (config.lora.rank, "lora.rank"),
        f"{ACTOR}.ppo_mini_batch_size": (minibatch, "optim.minibatches"),
        f"{ACTOR}.ppo_epochs": (optim.epochs, "optim.epochs"),
        f"{ACTOR}.optim.lr": (facts.lr, "optim.lr"),
        f"{ACTOR}.optim.lr_scheduler_type": (optim.schedule, "optim.schedule"),
        f"{ACTOR}.optim.min_lr_ratio": (optim.lr_min, "optim.lr_min"),
        # veRL changes the rate once per rollout batch
        f"{ACTOR}.optim.lr_warmup_steps": (optim.warmup // config.updates, "optim.warmup"),
        f"{ACTOR}.optim.betas": (list(optim.betas), "optim.betas"),
        f"{ACTOR}.optim.weight_decay": (optim.weight_decay, "optim.weight_decay"),
        f"{ACTOR}.optim.clip_grad": (optim.clip, "optim.clip"),
        f"{ACTOR}.data_loader_seed": (config.seed, "seed"),
        f"{ROLLOUT}.seed": (config.seed, "seed"),
        f"{ROLLOUT}.n": (sampling.rollouts, "sampling.rollouts"),
        f"{ROLLOUT}.temperature": (sampling.temperature, "sampling.temperature"),
        f"{ROLLOUT}.top_p": (sampling.top_p, "sampling.top_p"),
        f"{ROLLOUT}.dtype": (dtype, "precision"),
        f"{ROLLOUT}.val_kwargs.n": (config.eval.samples, "eval.samples"),
        f"{ROLLOUT}.val_kwargs.temperature": (sampling.temperature, "sampling.temperature"),
        f"{ROLLOUT}.val_kwargs.top_p": (sampling.top_p, "sampling.top_p"),
        f"{ROLLOUT}.val_kwargs.do_sample": (True, "eval.samples"),
        "trainer.total_training_steps": (config.iterations, "iterations"),
        "trainer.total_epochs": (1, "iterations"),  # the file has the prompts of all iterations
        "trainer.val_before_train": (facts.owes, "eval.prompts"),
        "trainer.test_freq": (every if facts.evaluates else -1, "eval.every"),
        "trainer.save_freq": (checkpoints.every(config), "save.checkpoint_every"),
        # veRL removes old checkpoints before it marks the new one as its latest
        "trainer.max_actor_ckpt_to_keep": (max(1, config.save.checkpoints) + 1, "save.checkpoints"),
        "trainer.default_local_dir": (str(run / "checkpoints"), "output"),
        "trainer.rollout_data_dir": (
            str(run / "rollouts") if config.save.rollouts_every else None, "save.rollouts_every",
        ),
        "trainer.validation_data_dir": (str(facts.own / "validation"), "output"),
        "trainer.resume_mode": ("auto" if facts.start else "disable", "--resume"),
        "trainer.use_v1": (True, "method"),
        "trainer.v1.trainer_mode": ("entrostat", "method"),
        f"{LOSS}._target_": ("entrostat.trainers.verl.settings.PolicyLoss", "method"),
        f"{LOSS}.loss_mode": ("entrostat", "method"),
        f"+{LOSS}.method": (config.method, "method"),
        f"+{LOSS}.advantage": (objective.advantage, "advantage"),
        f"+{LOSS}.aggregation": (objective.aggregation, "optim.aggregation"),
        f"+{LOSS}.max_length": (objective.max_length, "sampling.max_new_tokens"),
        f"+{LOSS}.seed": (config.seed, "seed"),
        f"{ACTOR}.calculate_entropy": ("entropy" in objective.needs, "method"),
        f"{ACTOR}.use_kl_loss": ("ref_logp" in objective.needs, "method"),
        "hydra.run.dir": (str(facts.own), "output"),
        "hydra.output_subdir": (None, "output"),
        f"+{INIT}.runtime_env.env_vars.VERL_FILE_LOGGER_PATH": (str(facts.metrics), "output"),
    }  # fmt: skip
    for key, value in environment(config, facts.output).items():
        table[f"+{INIT}.runtime_env.env_vars.{key}"] = (value, "log.to")
    # veRL's FSDP engine reads `mixed_precision`; `dtype` alone leaves it in bf16
    for part in ("actor", "ref") if "ref_logp" in objective.needs else ("actor",):
        engine = f"actor_rollout_ref.{part}.fsdp_config"
        table[f"{engine}.dtype"] = (dtype, "precision")
        if short != "bf16":
            for key, kind in (("param", short), ("reduce", "fp32"), ("buffer", "fp32")):
                table[f"+{engine}.mixed_precision.{key}_dtype"] = (kind, "precision")
    if config.lora.rank:
        targets: Any = config.lora.targets
        targets = targets if targets == "all-linear" else [t.strip() for t in targets.split(",")]
        table[f"{MODEL}.lora_alpha"] = (config.lora.alpha, "lora.alpha")
        table[f"{MODEL}.target_modules"] = (targets, "lora.targets")
    if facts.start == config.iterations:
        table["trainer.val_only"] = (True, "eval.prompts")
    if config.device != "auto":
        table["trainer.device"] = (config.device, "device")
    if facts.ray_address is not None:
        table[f"+{INIT}.address"] = (facts.ray_address, "--ray-address")
    return table


def _listed(loggers: Any) -> list[str]:
    listed = [loggers] if isinstance(loggers, str) else loggers or []
    if not (isinstance(listed, Sequence) and all(isinstance(name, str) for name in listed)):
        raise ValueError(f"verl.{_LOGGER} must be a name or a list of names, got {loggers!r}")
    return list(listed)


def _refusals(config: TrainConfig, said: Mapping[str, Any]) -> list[tuple[bool, str]]:
    """List (applies, message) for common settings that veRL does not support."""
    optim, engine = config.optim, said.get(f"{ROLLOUT}.name", "vllm")
    best, between = config.save.best, checkpoints.between_evaluations(config)
    every = sorted({one.every or config.iterations for one in config.eval.resolved if one.prompts})
    return [
        (config.sampling.engine == "vllm" and engine != "vllm",
         f"sampling.engine is 'vllm', but verl.{ROLLOUT}.name is {engine!r}; leave one out"),
        (optim.schedule not in ("constant", "cosine"),
         f"optim.schedule={optim.schedule!r}: veRL has constant and cosine; choose one of them"),
        (optim.warmup % config.updates != 0,
         f"optim.warmup {optim.warmup}: veRL moves the learning rate once per iteration, which is "
         f"{config.updates} updates here; set a multiple of {config.updates}"),
        (len(every) > 1, f"[[eval]]: sets are evaluated every {' and '.join(map(str, every))} "
         "iterations, but veRL evaluates all of them at once; give all one `every`, "
         f"{min(every, default=0)} say"),
        (bool(best) and between % checkpoints.every(config) != 0,
         "save.best: veRL has the weights that it evaluated only where it wrote a checkpoint; set "
         f"save.checkpoint_every to a divisor of eval.every, {between} say"),
        (any(one.endswith(("/entropy", "/prompt_entropy")) for one in figures_of(best)),
         f"save.best is {best!r}, but veRL computes no entropies where it evaluates; "
         "choose avg@k, pass@k or distinct"),
    ]  # fmt: skip
