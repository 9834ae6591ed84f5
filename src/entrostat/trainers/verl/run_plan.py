"""What a configuration leaves open and veRL has to be told. Imports no veRL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...agents import is_multi_turn
from ...config import TrainConfig
from ...data.prompts import longest, usual
from ...runs.run_directory import default_output
from ...tasks import BUILT_IN, task_class
from .model_ref import learning_rate_of, make


@dataclass(frozen=True)
class RunPlan:
    """What a configuration leaves open, and a run finds out before it starts."""

    output: Path  # the run directory, absolute
    new: int  # tokens that the policy may sample in a rollout of the training split
    lr: float  # the learning rate
    # tokens that any of its rollouts may take, an environment's too; None for `new`
    longest: int | None = None
    usual: int | None = None  # tokens that most of them take at most; None for `longest`
    # tokens of the longest prompt trained on; None where prompts were not looked at
    prompt: int | None = None
    # tokens of the longest prompt, and of the longest answer, of evaluations
    evaluated: tuple[int, int] = (0, 0)
    start: int = 0  # the iteration that the run goes on after
    evaluates: bool = True  # whether there is a set to evaluate on
    owes: bool = True  # whether the evaluation after `start` is still to be made, before going on
    ray_address: str | None = None  # of a running cluster; None has veRL start one here

    @property
    def own(self) -> Path:
        return self.output / "verl"

    @property
    def metrics(self) -> Path:
        """What veRL's "file" logger writes of this start."""
        return self.own / f"from-{self.start:06d}.jsonl"


def unseen(config: TrainConfig, ray_address: str | None = None) -> RunPlan:
    """The facts that need neither the prompts nor, where the recipe says the lengths, the task.

    Of a task of several turns that is not built in they are those of one turn then: only a look at
    it would say, and what a file names is not imported for that.
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
