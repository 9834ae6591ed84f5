"""What a configuration names, built and checked: the same parts in every trainer."""

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


@dataclass
class Parts:
    """What a run is made of beside its model."""

    task: Task  # prompts and verifier, or environments
    new: int  # tokens that a completion, or a turn of it, may take
    stop: tuple[str, ...]  # strings that end one
    objective: Objective  # methods and their controllers
    scorer: Scorer  # of the task; it may hold worker processes
    held_out: ResolvedEvalSets  # what the policy is evaluated on; their scorers may hold such, too


def assemble(
    config: TrainConfig, host: str, fields: Iterable[str], task: Task | None, say: Say
) -> Parts:
    """Build and check the parts; writes what it chooses into `config`, which is validated.

    `fields` are what the trainer `host`, "lab" or "trl", knows of a token and its rollout; `task`
    is an object in place of the configuration's.
    """
    task = task_of(config) if task is None else task
    check_task(task)
    new, stop = new_tokens(task, config, task.splits[0]), stop_strings(task, config)
    if config.prompt.chat is None:
        config.prompt.chat = getattr(task, "chat", None)
    objective = objective_of(config, host, fields, longest(task, config, task.splits[0]))
    config.advantage, config.optim.aggregation = objective.advantage, objective.aggregation
    scorer = Scorer(task, config.scoring, say)
    held_out = resolve_eval_sets(config, task, scorer, say)
    choose_precision(config, say)
    return Parts(task, new, stop, objective, scorer, held_out)


def load(config: TrainConfig, parts: Parts, **how: Any) -> tuple[Policy, list[list[int]]]:
    """The policy, and the first iteration's prompts as token ids; chooses the learning rate.

    `how` are settings in place of the configuration's, for loading alone.
    """
    torch.manual_seed(config.seed)  # adapters start at random, in every process alike
    policy = load_policy(replace(config, **how))
    config.optim.lr = learning_rate(config, is_small(policy.model))
    first = draw(parts.task, config, 1)
    prompts = encode(policy, config, first, parts.new, ValueError)
    if is_main():
        warn_of_lost(policy, config, first, prompts)
    check_prompts(parts.held_out, policy)
    return policy, prompts
