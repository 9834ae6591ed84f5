"""Translate a configuration into TRL's `GRPOConfig`; `[trl]` adds arguments without a setting.

`SETTINGS` is the table: argument, the setting that it comes from, its value. An argument of the
table in `[trl]` raises and names its setting, so that a recipe means the same in every trainer.
Settings that TRL does not support raise as well (`refuse`).

Symbols: B rollouts of an iteration, W processes.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..._names import unknown
from ...config import TrainConfig
from ...errors import in_one_line
from ...models.loading import device_of
from ...runs.run_directory import RunDirectory
from ...runs.trackers.services import check_installed, name_of

Value = Callable[[TrainConfig], Any]

SETTINGS: dict[str, tuple[str, Value]] = {
    "output_dir": ("output", lambda c: str(RunDirectory(Path(c.output)).checkpoints)),
    "max_steps": ("iterations", lambda c: c.iterations * c.updates),
    "seed": ("seed", lambda c: c.seed),
    "use_cpu": ("device", lambda c: device_of(c.device).type == "cpu"),
    "bf16": ("precision", lambda c: c.precision == "bf16"),
    "fp16": ("precision", lambda c: c.precision == "fp16"),
    "gradient_checkpointing": ("gradient_checkpointing", lambda c: c.gradient_checkpointing),
    "use_vllm": ("sampling.engine", lambda c: c.sampling.engine == "vllm"),
    "num_generations": ("sampling.rollouts", lambda c: c.sampling.rollouts),
    "temperature": ("sampling.temperature", lambda c: c.sampling.temperature),
    "top_p": ("sampling.top_p", lambda c: c.sampling.top_p),
    "num_iterations": ("optim.epochs", lambda c: c.optim.epochs),
    "learning_rate": ("optim.lr", lambda c: c.optim.lr),
    "lr_scheduler_type": ("optim.schedule", lambda c: _schedule(c)),
    "warmup_steps": ("optim.warmup", lambda c: c.optim.warmup),
    "adam_beta1": ("optim.betas", lambda c: c.optim.betas[0]),
    "adam_beta2": ("optim.betas", lambda c: c.optim.betas[1]),
    "weight_decay": ("optim.weight_decay", lambda c: c.optim.weight_decay),
    "max_grad_norm": ("optim.clip", lambda c: c.optim.clip),
    "save_strategy": (
        "save.checkpoint_every",
        lambda c: "steps" if c.save.checkpoint_every else "no",
    ),
    "save_steps": (
        "save.checkpoint_every",
        lambda c: (c.save.checkpoint_every or c.iterations) * c.updates,
    ),
    # all: transformers removes a whole one before the new one is whole (`checkpoints.keep`)
    "save_total_limit": ("save.checkpoints", lambda c: None),
}
# arguments that follow from several settings (`arguments`), or that a setting names differently
_SAID_BY = {
    "max_completion_length": "sampling.max_new_tokens",
    "per_device_train_batch_size": "optim.micro_batch",
    "gradient_accumulation_steps": "optim.minibatches",
    "steps_per_generation": "optim.minibatches",
    "generation_batch_size": "sampling.prompts",
    "num_train_epochs": "iterations",
    "data_seed": "seed",
    "lr_scheduler_kwargs": "optim.lr_min",
    "warmup_ratio": "optim.warmup",
    "model_init_kwargs": "model",
    "chat_template_kwargs": "prompt.chat",
    "reward_weights": "task",
    "scale_rewards": "advantage",
    "loss_type": "optim.aggregation",
    "resume_from_checkpoint": "--resume",
    **dict.fromkeys(("do_eval", "eval_strategy", "eval_steps", "eval_on_start",
                     "num_generations_eval", "per_device_eval_batch_size"), "eval.every"),
    **dict.fromkeys(("epsilon", "epsilon_high", "delta", "beta", "importance_sampling_level",
                     "top_entropy_quantile", "entropy_coef", "use_adaptive_entropy",
                     "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta",
                     "entropy_target", "off_policy_mask_threshold", "use_bias_correction_kl",
                     "multi_objective_aggregation", "sync_ref_model"), "method"),
    # before the model is placed: the recipe reads how accelerate was launched (`launched`)
    **dict.fromkeys(("fsdp", "fsdp_config"), "`accelerate launch --use_fsdp --fsdp_version 2`"),
    "deepspeed": "`accelerate launch --use_deepspeed`",
    **dict.fromkeys(("generation_kwargs.stop", "generation_kwargs.stop_strings"), "sampling.stop"),
    **dict.fromkeys(("generation_kwargs.max_tokens", "generation_kwargs.max_new_tokens"),
                    "sampling.max_new_tokens"),
    "generation_kwargs.temperature": "sampling.temperature",
    "generation_kwargs.top_p": "sampling.top_p",
}  # fmt: skip
# arguments that no recipe may set, since the run relies on them, and why
_FIXED: dict[str, tuple[Any, str]] = {
    "shuffle_dataset": (False, "prompts come in the order of the lab's draws"),
    "ignore_data_skip": (False, "a resumed run goes on where it was in its draws"),
    "disable_tqdm": (True, "the run shows its own progress"),
    "save_only_model": (False, "a resumed run needs AdamW's moments"),
}
# defaults that differ from TRL's; [trl] may override them
_USUAL = {"report_to": "none", "dataloader_pin_memory": False}


def cut(config: TrainConfig, world: int) -> tuple[int, int]:
    """Split minibatches into the largest equal micro-batches of at most `optim.micro_batch`.

    Returns the sequences in memory per process (of `world`), and the micro-batches per update.
    """
    s, minibatches = config.sampling, config.optim.minibatches
    each, rest = divmod(s.prompts * s.rollouts, minibatches * world)
    if rest:
        raise ValueError(
            f"host 'trl': sampling.prompts x sampling.rollouts = {s.prompts * s.rollouts} is no "
            f"multiple of optim.minibatches x processes = {minibatches} x {world}; TRL cuts the "
            "rollouts into equal parts, so change one of these"
        )
    most = min(each, config.optim.micro_batch)
    micro = next(size for size in range(most, 0, -1) if each % size == 0)
    return micro, each // micro


def launched(how: str) -> bool:
    """Whether accelerate was launched with `how`: "FSDP" or "DEEPSPEED"."""
    return os.environ.get(f"ACCELERATE_USE_{how}", "false").lower() == "true"


def sharded() -> bool:
    return launched("FSDP") or launched("DEEPSPEED")


def refuse(config: TrainConfig) -> None:
    """Raise on settings, [trl] keys or accelerate launches that this trainer does not support."""
    check_installed(config.log.to)
    if launched("FSDP") and os.environ.get("FSDP_VERSION", "1") == "1":
        raise ValueError(
            "host 'trl': accelerate was launched with FSDP 1, where evaluations, which call the "
            "model and not its wrapper, fail; launch with --fsdp_version 2, or without FSDP"
        )
    vllm, fp16 = config.sampling.engine == "vllm", config.precision == "fp16"
    for key, wrong, reason in (
        ("sampling.rollouts", config.sampling.rollouts < 2,
         "TRL's groups have at least 2 rollouts; raise it, or use --host lab"),
        ("analyze.every",
         config.analyze.every > 0 and int(os.environ.get("WORLD_SIZE", "1")) > 1,
         "an analysis reads batch, weights and optimizer in one process; start one, or set it to "
         "0"),
        ("save.best", bool(config.save.best) and sharded(),
         "no process has the whole model where it is sharded; leave it out"),
        ("precision", fp16 and device_of(config.device).type == "cpu",
         "accelerate has fp16 on a GPU only; use fp32 or bf16"),
        ("sampling.engine", vllm and importlib.util.find_spec("vllm") is None,
         "vLLM is not installed; pip install 'trl[vllm]', or use --sampling.engine transformers"),
    ):  # fmt: skip
        if wrong:
            raise ValueError(f"host 'trl': {key} is {config._get(key)!r}: {reason}")
    _check_own(config.trl)


def _check_own(own: dict[str, Any]) -> None:
    """Raise on keys of `[trl]` that GRPOConfig lacks, or that a setting owns."""
    from trl import GRPOConfig

    known = [field.name for field in dataclasses.fields(GRPOConfig)]
    owners = {key: setting for key, (setting, _) in SETTINGS.items()} | _SAID_BY
    generation = own.get("generation_kwargs")
    inner = [f"generation_kwargs.{key}" for key in generation or () if isinstance(generation, dict)]
    for key in (*own, *inner):
        if key in _FIXED:
            raise ValueError(f"trl.{key} cannot be set: {_FIXED[key][1]}; drop it")
        if key in owners:
            raise ValueError(f"trl.{key} is set by {owners[key]}; change that and drop trl.{key}")
        if key not in known and key not in inner:
            raise ValueError(
                unknown("key", f"trl.{key}", [f"trl.{name}" for name in known],
                        "[trl] takes the arguments of trl.GRPOConfig that no setting says.")
            )  # fmt: skip


def arguments(config: TrainConfig, new: int, world: int = 1) -> dict[str, Any]:
    """Keyword arguments of `GRPOConfig` for a resolved configuration and W = `world`.

    B is the recipe's for any W; a completion may take `new` tokens.
    """
    micro, accumulated = cut(config, world)
    return {
        **_USUAL,
        **_tracked(config),
        **config.trl,
        **{key: value for key, (value, _) in _FIXED.items()},
        **{key: value(config) for key, (_, value) in SETTINGS.items()},
        "max_completion_length": new,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": config.optim.minibatches * accumulated,
    }


def _tracked(config: TrainConfig) -> dict[str, Any]:
    """Arguments of TRL's own trackers; they log once per iteration unless [trl] overrides it."""
    if not config.log.to:
        return {}
    return {
        "report_to": list(config.log.to),
        "run_name": name_of(config, Path(config.output)),
        "project": config.log.project,
        "logging_steps": config.updates,
    }


def grpo_config(config: TrainConfig, new: int, world: int = 1) -> Any:
    """Build the `trl.GRPOConfig`; this joins the process group, if there is one."""
    from trl import GRPOConfig

    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if launched not in ("no", config.precision):
        raise ValueError(
            f"host 'trl': precision is {config.precision!r}, but accelerate was launched with "
            f"--mixed_precision {launched}; launch without, or set --precision {launched}"
        )
    given = arguments(config, new, world)
    try:
        return GRPOConfig(**given)
    except (TypeError, ValueError, AttributeError, ImportError) as error:
        own = ", ".join(f"{key} = {value!r}" for key, value in config.trl.items())
        raise ValueError(f"[trl] ({own}): TRL refuses: {in_one_line(error)}") from None


def _schedule(config: TrainConfig) -> str:
    """The scheduler's name; the lab computes the curve (`RecipeTrainer.create_scheduler`)."""
    warm = config.optim.schedule == "constant" and config.optim.warmup
    return "constant_with_warmup" if warm else config.optim.schedule
