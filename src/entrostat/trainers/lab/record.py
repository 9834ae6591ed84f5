"""Write a run's files during training: metrics, rollouts, evaluations, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...analysis import analysis as dynamics
from ...core.batch import TokenBatch
from ...evaluation.in_training import evaluate
from ...logs.rollouts import Rollouts, save_rollouts
from ...runs import checkpoint as checkpoints
from ...runs.progress import Progress
from ...runs.run_directory import RunDirectory
from ...runs.run_writer import RunWriter
from ...runs.trackers import evaluated
from ..dump import without_padding
from .experience import Sampled, Selection
from .state import State


class Record:
    """Writes a run directory from the iteration after `start`; `alert` reports an alarm."""

    def __init__(
        self, run: RunDirectory, state: State, progress: Progress, start: int,
        alert: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.run, self.state, self.progress = run, state, progress
        models = [state.policy] if state.phi is None else [state.policy, state.phi.policy]
        size = checkpoints.size_of(*(model.trained() for model in models))
        self.schedule = checkpoints.Schedule(state.config.save, size, start)
        self._writer = RunWriter(run, state.config, progress, alert)

    def iteration(
        self,
        sampled: Sampled,
        batch: TokenBatch,
        selection: Selection,
        metrics: dict[str, Any],
        analysis: dynamics.Analysis | None,
    ) -> dict[str, Any]:
        """Record an iteration after its updates; return its metrics, including the analysis."""
        iteration, every = sampled.iteration, self.state.config.save.rollouts_every
        metrics = metrics | {"time/checkpoint": self.schedule.newest}
        change = influence = None
        if analysis is not None:
            line, change = analysis.finish(iteration)
            influence = analysis.influence
            self._writer.analysis.append([line])
            metrics = dynamics.numbers(line) | metrics
        metrics = self._writer.line(iteration, metrics)
        if every and iteration % every == 0:
            tokenizer = self.state.policy.tokenizer
            rollouts = rollouts_of(sampled, batch, selection, tokenizer, change, influence)
            save_rollouts(rollouts, self.run.rollouts)
        self.progress.trained(iteration, metrics)
        return metrics

    def evaluate(self, iteration: int) -> dict[str, float]:
        """Evaluate the sets due after an iteration (0: before the first); return metrics."""
        policy, due = self.state.policy, self.state.held_out.due(iteration)
        rows = evaluate(policy, due, iteration, self.progress, self._writer.answers)
        self._writer.evaluated(rows, policy.save)
        return evaluated(rows)

    def checkpoint_if_due(self, iteration: int) -> None:
        """Write a checkpoint after the last iteration, or if the schedule asks for one."""
        state = self.state
        if iteration != state.config.iterations and not self.schedule.due(iteration):
            return
        checkpoints.check_weights(state.policy.trained(), iteration)
        saved = checkpoints.Checkpoint(
            iteration, state.updates, state.tensors(), state.state_dict(),
            state.config.to_toml(), self._writer.marks(),
        )  # fmt: skip
        checkpoints.write(self.run.checkpoints, saved, state.config.save.checkpoints)
        self.schedule.written(iteration)
        self._writer.best.settle()


def rollouts_of(
    sampled: Sampled, batch: TokenBatch, selection: Selection, tokenizer: Any,
    change: Tensor | None = None, influence: Tensor | None = None,
) -> Rollouts:  # fmt: skip
    """Build the `Rollouts` of `batch` [B, T], with the advantages of the trained ones.

    `change` and `influence` [B, T] come from an analysis, if any. Rollouts at a second temperature,
    which come last, are left out: they do not follow the policy's distribution.
    """
    sequences, graded = sampled.sequences, selection.graded
    advantage = torch.zeros_like(batch.old_logp)
    advantage[selection.kept] = selection.batch.need("advantages").to(advantage.dtype)
    B = len(batch) if batch.tempered is None else int((~batch.tempered).sum())
    figures = {
        "logp": batch.old_logp, "sampler_logp": sequences.sampler_logp,
        "entropy": batch.old_entropy, "advantage": advantage,
        "change": change, "influence": influence,
    }  # fmt: skip
    group = batch.need("group")[:B]
    return without_padding(
        sampled.iteration, tokenizer, sequences.completions[:B], sequences.completed[:B],
        batch.mask[:B], {k: None if x is None else x[:B] for k, x in figures.items()},
        prompts=[sampled.examples[g].prompt for g in group.tolist()],
        completions=sampled.answers.texts[:B], rewards=batch.need("rewards")[:B],
        group=group.int(), finished=sequences.finished[:B], trained=~graded.need("idle")[:B],
    )  # fmt: skip
