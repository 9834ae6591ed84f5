"""What a run leaves while it trains: a line per iteration, rollouts, evaluations, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...analysis import analysis as dynamics
from ...core.batch import TokenBatch
from ...evaluation.in_training import evaluate
from ...logs.rollouts import save_rollouts
from ...runs import checkpoint as checkpoints
from ...runs.progress import Progress
from ...runs.run_directory import RunDirectory
from ...runs.run_writer import RunWriter
from ...runs.trackers import evaluated
from .dump import rollouts_of
from .experience import Sampled, Selection
from .state import State


class Record:
    """Writes into a run directory.

    Args:
        run: where.
        state: of what.
        progress: told of what takes a while.
        start: the iteration that the run goes on after.
        alert: given an alarm's sentence.
    """

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
        """An iteration's updates are made: its metrics, its analysis, its rollouts.

        Returns the metrics with those of the analysis.
        """
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
        """The policy as it stands, on the sets that are due after an iteration, 0 being none.

        Returns what was found as figures, `eval/SET/avg@k` and so on.
        """
        policy, due = self.state.policy, self.state.held_out.due(iteration)
        rows = evaluate(policy, due, iteration, self.progress, self._writer.answers)
        self._writer.evaluated(rows, policy.save)
        return evaluated(rows)

    def checkpoint_if_due(self, iteration: int) -> None:
        """After the last iteration, and as the schedule says.

        Raises:
            RunStopped: a weight is not finite.
        """
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
