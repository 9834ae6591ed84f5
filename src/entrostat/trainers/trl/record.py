"""Files of a recipe's run in TRL: the lab's files, written by the main process.

    EntropyGRPOTrainer -> metrics of an iteration, its rollouts
    EachIteration      -> after the iteration's last step: its line, evaluation, checkpoint

Every process evaluates, with the same prompts and seeds, so that none waits for another.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from ...errors import RunStopped
from ...evaluation.in_training import evaluate
from ...runs import checkpoint as lab_checkpoints
from ...runs.progress import Progress
from ...runs.run_directory import RunDirectory
from ...runs.run_writer import RunWriter
from ...runs.trackers.services import alert_here
from .checkpoints import keep, seal
from .dump import RunLog
from .state import Recipe


class Record(RunLog):
    """Writes a run directory from the iteration after `start`; on the `main` process only."""

    def __init__(
        self, run: RunDirectory, recipe: Recipe, progress: Progress, start: int, main: bool
    ) -> None:
        super().__init__(run.path, max(1, recipe.config.save.rollouts_every))
        self.recipe, self.progress, self.main = recipe, progress, main
        self._writer = RunWriter(
            run, recipe.config, progress, lambda words: alert_here(recipe.config.log.to, words)
        )
        size = lab_checkpoints.size_of(recipe.policy.trained())
        self.schedule = lab_checkpoints.Schedule(recipe.config.save, size, start)
        self.held: dict[str, float] = {}

    def begin(self, trainer: Any, done: int, iterations: int) -> None:
        """Nothing: the logs are already cut back, and the recipe's settings are written."""

    def due(self, iteration: int) -> bool:
        return self.recipe.config.save.rollouts_every > 0 and iteration % self.every == 0

    def line(self, iteration: int, figures: dict[str, float]) -> None:
        """Keep an iteration's metrics until its last step has been made."""
        self.held = figures

    def iteration(self, iteration: int, figures: dict[str, float]) -> None:
        """Write an iteration's line after its updates."""
        if not self.main:
            return
        metrics = self.held | figures | {"time/checkpoint": self.schedule.newest}
        loss = metrics.get("loss/total", 0.0)
        if not math.isfinite(loss):
            raise RunStopped(
                f"iteration {iteration}: the loss is {loss}. The last checkpoint is good; lower "
                "optim.lr or use --precision fp32, then start again or resume"
            )
        self.progress.trained(iteration, self._writer.line(iteration, metrics))

    def evaluate(self, iteration: int) -> None:
        """Evaluate the current policy on the sets due after an iteration; 0 is before the first."""
        recipe, model = self.recipe, self.recipe.policy.model
        due = recipe.held_out.due(iteration)
        training = [module for module in model.modules() if module.training]
        model.eval()
        answers = self._writer.answers if self.main else None
        try:
            rows = evaluate(recipe.policy, due, iteration, self.progress, answers)
        finally:
            for module in training:
                module.training = True
        if self.main:
            self._writer.evaluated(rows, recipe.policy.save)

    def checkpoint_due(self, iteration: int) -> bool:
        """Whether to write a checkpoint now; the main process's clock decides for all."""
        config = self.recipe.config
        due = [iteration == config.iterations or self.schedule.due(iteration)]
        if broadcast_object_list(due)[0]:
            lab_checkpoints.check_weights(self.recipe.policy.trained(), iteration)
        return due[0]

    def checkpoint(self, iteration: int, path: Path) -> None:
        """Seal the checkpoint that TRL has written, with the positions of the logs."""
        self.schedule.written(iteration)
        if not self.main:
            return
        seal(path, iteration, self.recipe.config, self._writer.marks())
        self._writer.best.settle()
        keep(path.parent, max(1, self.recipe.config.save.checkpoints))


class EachIteration(TrainerCallback):
    """Runs after the last optimizer step of each iteration of a `RecipeTrainer`."""

    def __init__(self, trainer: Any, record: Record) -> None:
        self.trainer, self.record = trainer, record

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:  # accelerate has placed and sharded the policy by now
            self.record.evaluate(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        done, rest = divmod(state.global_step, self.trainer.updates)
        if rest:
            return
        tokens = self.record.held.get("rollout/tokens", 0.0)
        self.record.iteration(done, self.trainer.figures(done, tokens))
        self.record.evaluate(done)
        control.should_save = self.record.checkpoint_due(done)
        if not control.should_save:
            self.record.progress.iteration(done, {})

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.accelerator.wait_for_everyone()  # each process writes its random state
        done = state.global_step // self.trainer.updates
        self.record.checkpoint(done, Path(args.output_dir) / f"checkpoint-{state.global_step}")
        self.record.progress.iteration(done, {})
