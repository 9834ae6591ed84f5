"""`entrostat train --host trl`: a recipe in TRL, with the lab's run directory.

    arguments.py    translates the configuration to TRL's
    recipe.py       prompts, rewards and learning rates of the lab
    turns.py        multi-turn rollouts with an environment
    record.py       the run's files
    checkpoints.py  resuming from TRL's checkpoints
    trackers.py     TRL's own W&B, trackio, TensorBoard, MLflow

Under `accelerate launch` every process runs this; the main process writes files and shows progress.
B, the rollouts of an iteration, is the recipe's for any number of processes.
"""

from __future__ import annotations

import copy
import os
import shutil
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

try:
    import trl  # noqa: F401
except ImportError as error:
    raise ValueError(f"host 'trl' needs TRL 1.16 ({error}); pip install 'entrostat[trl]'") from None
from accelerate.utils import broadcast_object_list

from ..._launch import is_main
from ...config import TrainConfig
from ...core.rollouts import FIELDS
from ...models.capabilities import is_small
from ...models.hardware import choose_threads
from ...models.rounding import use_float32_outputs
from ...runs.progress import Progress, RunNotes, without_bars
from ...runs.resolve import task_of
from ...runs.resume import keep_settings, restore_newest
from ...runs.run_directory import RunDirectory, default_output
from ...runs.trackers.services import open_folder
from ...tasks import Task
from ..assemble import assemble, load
from . import arguments, checkpoints, trackers, turns
from .recipe import RecipeTrainer
from .record import Record
from .state import Recipe


@without_bars()
def train(
    config: TrainConfig,
    *,
    task: Task | None = None,
    progress: Progress | None = None,
    resume: bool = False,
) -> Path:
    """Train a policy in TRL, as `lab.train` does; only the main process prints."""
    config = copy.deepcopy(config).validate()
    world, main = int(os.environ.get("WORLD_SIZE", "1")), is_main()
    if config.device != "cpu" and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    shown = progress if progress is not None and main else Progress()
    say = RunNotes(shown)
    config.output = config.output or default_output(config)
    if resume:
        keep_settings(config, say, checkpoints.bound_to)
    recipe = build(config, task, world, say)
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)  # TRL's and transformers' own
        # processes meet here first: everything is checked, nothing is written yet
        args = arguments.grpo_config(config, recipe.new, world)
        run = RunDirectory(Path(config.output))
        if main:
            run = stack.enter_context(RunDirectory.open(config, resume))
        stack.enter_context(recipe.scorer)
        stack.enter_context(recipe.held_out)
        if run.complete(config.iterations):
            shown.end(run.path)
            return run.path
        start = 0
        if main:  # TRL itself restores this checkpoint
            start = restore_newest(
                run, config.iterations, lambda saved: None, resume, say, checkpoints
            )
        (start,) = broadcast_object_list([start])
        record = Record(run, recipe, shown, start, main)
        if main:
            say(record.schedule.words())
            found = {"model": recipe.policy.origin, "said": say.said, "processes": world,
                     "trl": metadata.version("trl")}  # fmt: skip
            run.write_settings(config, recipe.objective.describe(), found)
            open_folder(config, run.path, resume)
        shown.begin(config, start)
        stack.enter_context(trackers.told(config, run.path))
        trainer = RecipeTrainer(recipe, record, shown, args)
        trackers.guard(trainer, run.path)
        recipe.policy = recipe.policy.moved(trainer.accelerator.device)
        use_float32_outputs(trainer)
        newest = run.checkpoints / f"checkpoint-{start * config.updates}"
        trainer.train(resume_from_checkpoint=str(newest) if start else None)
        _finish(trainer, run, config, main)
    shown.end(run.path)
    return run.path


def build(config: TrainConfig, task: Task | None, world: int, say: RunNotes) -> Recipe:
    """Build the run in memory; write chosen defaults into `config`."""
    arguments.refuse(config)
    arguments.cut(config, world)
    task = task_of(config) if task is None else task
    turns.refuse(config, task, world)
    parts = assemble(config, "trl", FIELDS, task, say)
    # TRL checkpoints gradients itself; with FSDP accelerate brings each process its shard
    device = "cpu" if arguments.launched("FSDP") else config.device
    policy, _ = load(config, parts, gradient_checkpointing=False, device=device)
    choose_threads(config, policy, is_small(policy.model), say)
    return Recipe(**vars(parts), config=config, policy=policy)


def _finish(trainer: RecipeTrainer, run: RunDirectory, config: TrainConfig, main: bool) -> None:
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    save = _save_sharded(trainer) if sharded else trainer.recipe.policy.save
    if not main:
        return
    run.finish(save, config.iterations)
    if not config.save.checkpoints:
        shutil.rmtree(run.checkpoints, ignore_errors=True)


def _save_sharded(trainer: RecipeTrainer) -> Callable[[Path], None]:
    """Return a function that saves a sharded model; every process must call `_save_sharded`."""
    whole = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    model: Any = trainer.accelerator.unwrap_model(trainer.model_wrapped)

    def save(directory: Path) -> None:
        model.save_pretrained(directory, state_dict=whole)
        trainer.recipe.policy.tokenizer.save_pretrained(directory)

    return save
