"""Measure the entropy effect of updates: for analysed iterations, and for methods that use it.

`entrostat.analysis` has the measurements.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from ...analysis.analysis import Analysis
from ...analysis.influence import InfluenceInput, influences
from ...data.seeds import generator
from ...method.rounding import share_of
from ...models.policy_evaluator import PolicyEvaluator
from ...runs.schedule import learning_rate_at
from .experience import Sampled, Selection
from .state import State


def evaluator_of(state: State) -> PolicyEvaluator:
    """The policy in plain float32, with operations that support forward-mode differentiation."""
    policy = replace(state.policy, autocast=nullcontext, half=None, rows=False)
    return PolicyEvaluator(
        policy, state.config.sampling.temperature, state.config.optim.micro_batch
    )


def first_learning_rate(state: State, iteration: int) -> float:
    return learning_rate_at(state.config, (iteration - 1) * state.config.updates, state.updates)


def begin(state: State, sampled: Sampled, rewards: Tensor, selection: Selection) -> Analysis:
    """Begin the analysis of an iteration before its updates; the selection is not empty."""
    chance = generator(state.config.seed, sampled.iteration, "analysis", state.policy.device)
    graded = selection.graded.replace(rewards=rewards)
    subject = InfluenceInput(
        evaluator_of(state), state.objective, state.optimizer,
        first_learning_rate(state, sampled.iteration), state.config.optim.clip, sampled.sequences,
        graded, selection.kept, selection.batch, chance,
    )  # fmt: skip
    return Analysis(subject)


def with_influences(state: State, sampled: Sampled, selection: Selection) -> Selection:
    """Add `influence` [R, T] to the selection's batch if a method needs it.

    A share of the prompts is drawn, separately from those with a signal and those without.
    Influences are those of an update on the drawn prompts alone, without the method's own weights,
    on their mean entropy. They are 0 at other prompts' tokens.
    """
    share = state.objective.influence_sample()
    if share is None:
        return selection
    kept, batch, prompt = selection.kept, selection.batch, sampled.sequences.prompt
    found = torch.zeros_like(batch.old_logp)
    chance = generator(state.config.seed, sampled.iteration, "influence", state.policy.device)
    live = prompt[kept].unique()  # prompts with a signal
    idle = prompt[~torch.isin(prompt, live)].unique()
    drawn = torch.cat([_some(prompts, share, chance) for prompts in (live, idle)])
    rows = torch.isin(prompt, drawn).nonzero()[:, 0]
    mine = torch.isin(kept, rows).nonzero()[:, 0]  # the trained rows among them
    if len(mine):
        part = batch[mine]
        terms = state.objective.plan(part, chance)
        subject = InfluenceInput(
            evaluator_of(state), state.objective, state.optimizer,
            first_learning_rate(state, sampled.iteration), state.config.optim.clip,
            sampled.sequences[rows], selection.graded[rows],
            torch.isin(rows, kept[mine]).nonzero()[:, 0], part, chance,
        )  # fmt: skip
        values, _ = influences(subject, part, terms)
        found[mine] = values[subject.kept].to(found.dtype)
        state.optimizer.zero_grad(set_to_none=True)
    return replace(selection, batch=batch.replace(influence=found))


def _some(prompts: Tensor, share: float, chance: torch.Generator) -> Tensor:
    """Draw a share of the prompts, at least one if there are any."""
    order = torch.randperm(len(prompts), generator=chance, device=prompts.device)
    return prompts[order[: share_of(share, len(prompts))]]
