"""Build and check the parts that a configuration names, in the same way for every trainer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from .._launch import is_main
from .._text import Say
from ..config import TrainConfig
from ..core.objective import Objective
from ..data.prompts import draw, encode, longest, new_tokens, stop_strings, warn_of_lost
from ..data.scoring import Scorer
from ..evaluation.eval_sets import ResolvedEvalSets, check_prompts, resolve_eval_sets
from ..models.capabilities import is_small
from ..models.hardware import choose_precision
from ..models.loading import learning_rate, load_policy
from ..models.policy import Policy
from ..runs.resolve import check_task, objective_of, task_of
from ..tasks import Task
from .hold import Hold


@dataclass
class Parts:
    """The parts of a run other than its model."""

    task: Task  # prompts and verifier, or environments
    new: int  # maximum tokens of a completion, or of one turn of it
    stop: tuple[str, ...]  # strings that end a completion
    objective: Objective  # methods and their controllers
    scorer: Scorer  # the task's scorer; it may hold worker processes
    held_out: ResolvedEvalSets  # the evaluation sets; their scorers may hold worker processes too


def assemble(
    config: TrainConfig, host: str, fields: Iterable[str], task: Task | None, say: Say
) -> Parts:
    """Build and check the parts; write chosen defaults into `config`, which is validated.

    `fields` are the token and rollout fields that the trainer `host` ("lab" or "trl") provides.
    `task` replaces the configuration's task.
    """
    task = task_of(config) if task is None else task
    check_task(task)
    new, stop = new_tokens(task, config, task.splits[0]), stop_strings(task, config)
    if config.prompt.chat is None:
        config.prompt.chat = getattr(task, "chat", None)
    objective = objective_of(config, host, fields, longest(task, config, task.splits[0]))
    config.advantage, config.optim.aggregation = objective.advantage, objective.aggregation
    if config.optim.whole_groups is None:
        # the multiplier is to see prompts that earlier updates have not trained on
        config.optim.whole_groups = config.optim.epochs == 1 and Hold.of(objective) is not None
    scorer = Scorer(task, config.scoring, say)
    held_out = resolve_eval_sets(config, task, scorer, say)
    choose_precision(config, say)
    return Parts(task, new, stop, objective, scorer, held_out)


def load(config: TrainConfig, parts: Parts, **how: Any) -> tuple[Policy, list[list[int]]]:
    """Load the policy, encode the first iteration's prompts, and choose the learning rate.

    `how` overrides settings for loading only.
    """
    torch.manual_seed(config.seed)  # adapters are initialized at random, equally in every process
    policy = load_policy(replace(config, **how))
    config.optim.lr = learning_rate(config, is_small(policy.model))
    first = draw(parts.task, config, 1)
    prompts = encode(policy, config, first, parts.new, ValueError)
    if is_main():
        warn_of_lost(policy, config, first, prompts)
    check_prompts(parts.held_out, policy)
    return policy, prompts
