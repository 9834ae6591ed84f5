"""`entrostat train --host verl`: write prompts, settings and command; start main_ppo; follow it.

Imports no veRL, which runs in its own environment. Its files, beside the lab's:

    data/train.parquet, test.parquet    the prompts
    checkpoints/global_step_N/          veRL's; entrostat.json in it has the controllers
    verl/run.json                       settings of agent loop, reward and trainer
    verl/config.toml                    the settings that the checkpoints were made with
    verl/command.sh                     the command that was started
    verl/from-000010.log, .jsonl        output and metrics of the start after iteration 10
    verl/validation/N.jsonl             the answers of an evaluation
"""

from __future__ import annotations

import copy
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...config import TrainConfig
from ...core.rollouts import FIELDS
from ...data.prompts import longest
from ...data.scoring import Scorer
from ...errors import RunStopped
from ...evaluation.eval_sets import check_prompts, resolve_eval_sets
from ...logs.files import replace_text
from ...logs.lines import JsonLines
from ...logs.run import best_of
from ...runs.best_checkpoint import BEST, rewrite
from ...runs.progress import Progress, RunNotes
from ...runs.resolve import objective_of, task_settings
from ...runs.resume import keep_settings
from ...runs.run_directory import RunDirectory, default_output
from ...runs.trackers.services import open_folder
from ...tasks import Task
from ..resume_command import resume_command
from . import checkpoints, data, model_ref
from .config import MODULE, shell_command
from .follow import Follower, Intake
from .job import MOURNING, Job, reason, wait
from .recipe import RunPlan, in_whole_groups, overrides, processors, unseen

_LOOK = 0.5  # seconds between reads of veRL's output
_PREFLIGHT = "entrostat.trainers.verl.preflight"
_ASK = 240.0  # seconds for veRL's imports and a cluster's answer together


def command(config: TrainConfig, python: str | None = None, ray_address: str | None = None) -> str:
    """The shell command that `train` would start; only `train` writes the files it names."""
    lines = overrides(config, unseen(config, ray_address))
    return shell_command(lines, shlex.quote(python or sys.executable))


def train(
    config: TrainConfig,
    *,
    task: Task | None = None,
    progress: Progress | None = None,
    resume: bool = False,
    python: str | None = None,
    ray_address: str | None = None,
) -> Path:
    """Train with veRL, as `lab.train` does; returns the run directory.

    `task` must be the configuration's, since veRL's processes make theirs from it. `python` is the
    interpreter of veRL's environment; None is this one. `ray_address` is a running cluster; None
    lets veRL start Ray on this machine.
    """
    asked, progress = copy.deepcopy(config).validate(), progress or Progress()
    python, say = python or sys.executable, RunNotes(progress)
    asked.output = str(Path(asked.output or default_output(asked)))
    if resume:
        keep_settings(asked, say, checkpoints.bound_to, "verl/config.toml")
    config = in_whole_groups(asked)
    if config.sampling.prompts != asked.sampling.prompts:
        say(f"prompts: {config.sampling.prompts} per iteration, not {asked.sampling.prompts}: "
            "veRL cuts whole groups into minibatches")  # fmt: skip
    task = model_ref.make(config, task)
    chat = config.prompt.chat
    config.prompt.chat = asked.prompt.chat = getattr(task, "chat", None) if chat is None else chat
    policy = data.outline(config.model)
    # these scorers are never called: veRL's reward workers make their own
    sets = resolve_eval_sets(config, task, Scorer(task, config.scoring, say), say).sets
    check_prompts(sets, policy)
    most, usual = data.room(task, config, policy, task.splits[0])
    new = longest(task, config, task.splits[0])
    said = max((data.room(one.task, one.config, policy, one.split)[0] for one in sets), default=0)
    facts = replace(
        unseen(config, ray_address), new=new, longest=most, usual=usual, evaluated=(0, said),
        evaluates=bool(sets), owes=bool(sets),
    )  # fmt: skip
    objective = objective_of(config, "verl", FIELDS, facts.new)
    asked.optim.lr, asked.advantage = facts.lr, objective.advantage
    asked.optim.aggregation = objective.aggregation
    progress.note("asking veRL whether it can run this")
    tasks = [task_settings(each) for each in (config, *(one.config for one in sets))]
    _ask(python, overrides(config, facts), config, tasks, ray_address)

    with RunDirectory.open(asked, resume) as run:
        if run.complete(config.iterations):
            progress.end(run.path)
            return run.path
        prompt, asking = data.write(run.path / "data", config, task, policy, sets, progress.note)
        intake = Intake(run, config, sets)
        start = checkpoints.go_on(run, config, resume, intake.catch_up, say)
        rows = JsonLines(run.evaluations).read()
        intake.consider([row for row in rows if row["iteration"] == start])
        open_folder(config, run.path, resume)
        data.write_settings(facts.own / "run.json", config, task, policy, sets)
        due = any(one.due(start) for one in sets)
        facts = replace(
            facts, prompt=prompt, evaluated=(asking, said), start=start,
            owes=due and start not in run.evaluated_after(),
        )  # fmt: skip
        if facts.owes:
            (intake.dumps / f"{start}.jsonl").unlink(missing_ok=True)
        replace_text(facts.own / checkpoints.BOUND, asked.to_toml())
        lines = overrides(config, facts)
        replace_text(facts.own / "command.sh", shell_command(lines, shlex.quote(python)) + "\n")
        run.write_settings(asked, objective.describe(), {"verl": python, "said": say.said})
        progress.begin(config, start)
        if start < config.iterations or facts.owes:
            follower = Follower(intake, facts.metrics, progress)
            _follow([python, "-m", MODULE, *lines], facts, config, follower, progress)
        progress.note("merging the ranks' weights into the final model")
        merge = Merge(python, facts.own / "merge.log", resume_command(config, python, ray_address))
        _write_best(run, config, merge)
        last = checkpoints.folder(run.checkpoints, config.iterations) / "actor"
        run.finish(lambda part: merge(last, part), config.iterations)
        checkpoints.keep(run.checkpoints, config.save.checkpoints)
    progress.end(run.path)
    return run.path


def _ask(
    python: str, lines: list[str], config: TrainConfig, tasks: Sequence[dict[str, Any]],
    ray_address: str | None,
) -> None:  # fmt: skip
    """Check the run in veRL's environment before anything is started (`preflight.py`)."""
    needed, said = processors(config)
    asked = {
        "overrides": lines,
        "tasks": [task for place, task in enumerate(tasks) if task not in tasks[:place]],
        "processors": needed, "said": said, "ray_address": ray_address,
    }  # fmt: skip
    try:
        done = subprocess.run(
            [python, "-m", _PREFLIGHT], input=json.dumps(asked), capture_output=True, text=True,
            timeout=_ASK, check=False,
        )  # fmt: skip
    except OSError as problem:
        raise ValueError(f"verl-python {python!r}: cannot start it: {problem.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"host verl: {python} did not answer within {_ASK:.0f} seconds") from None
    try:
        error = json.loads(done.stdout.splitlines()[-1])["error"]
    except (IndexError, KeyError, TypeError, ValueError):
        words = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:300]
        raise ValueError(
            f"host verl: {python} is no environment with veRL and entrostat "
            "(docs/train_verl.md says how to make one; give its interpreter by --verl-python "
            f"PATH): {words}"
        ) from None
    if error is not None:
        here = "No module named 'verl'" in error and python == sys.executable
        hint = "; if another environment has it, give --verl-python PATH" if here else ""
        raise ValueError(f"host verl: {error}{hint}")


def _follow(
    words: list[str], facts: RunPlan, config: TrainConfig, follower: Follower, progress: Progress
) -> None:
    """Start veRL and record its output until it ends."""
    environment = {"HYDRA_FULL_ERROR": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    if config.threads:
        environment["OMP_NUM_THREADS"] = str(config.threads)
    progress.note("starting veRL: Ray, workers and the rollout engine")
    log = facts.metrics.with_suffix(".log")
    facts.metrics.unlink(missing_ok=True)
    job = Job(words, log, environment)
    broken: float | None = None
    try:
        while (code := job.ended()) is None and (broken is None or broken < MOURNING):
            wait(_LOOK)
            died = job.broken()  # before the rows, so that a later look's rows come after the death
            alive = follower.look()
            if died:
                broken = 0.0
            elif broken is not None:  # if iterations continue, the dead part did not matter
                broken = None if alive else broken + _LOOK
        follower.look(last=code == 0)
    finally:
        job.stop()
    done = checkpoints.newest(facts.output / "checkpoints")
    if code != 0 or done < config.iterations:
        how = f"ended with code {code}"
        if code is None:
            how = "did not go on"
        elif code < 0:
            how = f"was killed (signal {-code})"
        raise RunStopped(
            f"veRL {how} after iteration {max(done, facts.start)}: {reason(log)}. Its log: {log}. "
            f"Go on with: {resume_command(config, words[0], facts.ray_address)}"
        )


def _write_best(run: RunDirectory, config: TrainConfig, merge: Merge) -> None:
    """Build a model from the best policy, kept as shards or as the initial model."""
    directory = run.path / BEST
    found = best_of(directory)
    if found is None or (directory / "config.json").exists():
        return
    if found["iteration"]:
        rewrite(run.path, lambda part: merge(directory / "actor", part))
    else:
        rewrite(run.path, lambda part: data.copy_model(config.model, part))


@dataclass(frozen=True)
class Merge:
    """Merges the ranks' shards into one model with veRL's own tool."""

    python: str  # interpreter of veRL's environment
    log: Path  # takes its output
    again: str  # the command to try again

    def __call__(self, source: Path, target: Path) -> None:
        words = ["-m", "verl.model_merger", "merge", "--backend", "fsdp", "--local_dir"]
        words = [self.python, *words, str(source), "--target_dir", str(target)]
        job = Job(words, self.log, {"CUDA_VISIBLE_DEVICES": ""})
        try:
            while (code := job.ended()) is None:
                wait(_LOOK)
        finally:
            job.stop()
        if code != 0:
            raise RunStopped(
                f"the weights of {source} could not be merged: {reason(self.log)}. Its log: "
                f"{self.log}. They are intact; try again with: {self.again}"
            )
