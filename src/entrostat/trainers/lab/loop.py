"""The lab: a policy-gradient loop that reads from top to bottom.

One iteration: draw prompts, sample a group for each, score, measure the old policy's log-probs and
entropies exactly, let the controllers see the entropy, drop groups without a signal, update.

    state.py       the parts of a run, built and checked
    experience.py  sample, measure, observe, select
    resampling.py  replace prompts without a signal; sample at a second temperature
    updates.py     epochs, minibatches, micro-batches
    analysis.py    the updates' effect on entropy; exact influences for methods that need them
    forecast.py    predictions of that effect on fresh prompts
    record.py      the run's files; ../trackers has the trackers

Differences from the papers' trainers: `old_logp` and `old_entropy` are always recomputed by the
trainer, over the whole rollout batch; methods select over the whole minibatch, however it is cut
into micro-batches; dropout is off; every random stream is seeded from (seed, iteration, purpose),
so a resumed run gives the same result as an uninterrupted one.

Shapes: B rollouts of an iteration, T completion tokens at most.
"""

from __future__ import annotations

import copy
from pathlib import Path

from ...config import TrainConfig
from ...runs import checkpoint as checkpoints
from ...runs.progress import Progress, RunNotes, without_bars
from ...runs.resume import keep_settings, restore_newest
from ...runs.run_directory import RunDirectory
from ...runs.run_writer import Timer
from ...runs.trackers import Trackers
from ...tasks import Task
from .analysis import begin as begin_analysis
from .analysis import with_influences
from .experience import measure, observe, rollout_figures, sample_rollouts, select
from .forecast import Forecast
from .record import Record
from .resampling import with_resampled, with_signal
from .state import build
from .updates import update_policy


@without_bars()
def train(
    config: TrainConfig,
    *,
    task: Task | None = None,
    progress: Progress | None = None,
    resume: bool = False,
) -> Path:
    """Train a policy; returns its run directory.

    Args:
        config: everything that determines the run.
        task: replaces the configuration's task.
        progress: shows the progress; None is silent.
        resume: continue from the newest checkpoint in `config.output`.

    Raises:
        ValueError: a bad setting, found before the first iteration.
        RunStopped: the run cannot continue (a scorer that always fails, NaN in the loss, a full
            disk); the last checkpoint is intact.
    """
    config = copy.deepcopy(config).validate()
    progress = progress or Progress()
    say, trackers = RunNotes(progress), Trackers(config, progress.note)
    if resume:
        keep_settings(config, say)
    state = build(config, task, say)
    with RunDirectory.open(config, resume) as run, state.scorer as score, state.held_out, trackers:
        if run.complete(config.iterations):
            progress.end(run.path)
            return run.path
        start = restore_newest(run, config.iterations, state.restore, resume, say)
        record = Record(run, state, progress, start, trackers.alert)
        say(record.schedule.words())
        found = {"packed": state.policy.packs, "model": state.policy.origin, "said": say.said}
        run.write_settings(config, state.objective.describe(), found)
        trackers.begin(run.path, start, resume)
        progress.begin(config, start)
        if start == 0:
            trackers.log(0, record.evaluate(0))

        for iteration in range(start + 1, config.iterations + 1):
            clock = Timer()
            sampled = sample_rollouts(state, iteration, progress.tokens)
            clock.lap("sample")
            rewards = sampled.scored(score)
            clock.lap("score")
            # replace prompts without a signal, if the run asks for that
            sampled, rewards, dynamic = with_signal(state, sampled, rewards, score, progress.tokens)
            clock.lap("sample")

            # the old policy, exactly: the controllers' input and the denominator of the ratio
            batch = measure(state, sampled, rewards)
            metrics = rollout_figures(batch, sampled)
            metrics |= score.figures() | dynamic | observe(state, metrics, iteration)
            clock.lap("measure")
            # a method may also train on rollouts at another temperature
            sampled, rewards, batch = with_resampled(
                state, sampled, rewards, batch, score, progress.tokens, metrics
            )
            clock.lap("sample")
            # zero-advantage groups have no policy gradient, but penalties act on them
            selection = with_influences(state, sampled, select(state, sampled, batch))
            metrics |= selection.figures
            clock.lap("measure")

            # the updates' effect on entropy: measured by the analysis, predicted by the forecast
            analysis = None
            if config.analyze.due(iteration) and len(selection):
                analysis = begin_analysis(state, sampled, rewards, selection)
            forecast = None
            if config.forecast.due(iteration) and len(selection):
                forecast = Forecast(state, sampled, selection)
            clock.skip()

            metrics |= update_policy(state, selection, analysis, iteration)
            clock.lap("update", without=0.0 if analysis is None else analysis.watch.seconds)
            metrics |= clock.figures(metrics["rollout/tokens"])

            if forecast is not None:
                metrics |= forecast.finish()
            metrics = record.iteration(sampled, batch, selection, metrics, analysis)
            trackers.log(iteration, metrics | record.evaluate(iteration))
            record.checkpoint_if_due(iteration)
            progress.iteration(iteration, metrics)
        run.finish(state.policy.save, config.iterations)
        if not config.save.checkpoints:
            checkpoints.remove(run.checkpoints)
    progress.end(run.path)
    return run.path
