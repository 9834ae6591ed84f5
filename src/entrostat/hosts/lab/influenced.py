"""Exact influences of some prompts' tokens before the update, for a method that weighs by them."""

from __future__ import annotations

from dataclasses import replace

import torch

from .analysis import meter_of
from .experience import Sampled, Selection
from .influence import Subject, influences
from .schedule import learning_rate_at
from .seeds import generator
from .state import State


def with_influences(state: State, sampled: Sampled, selection: Selection) -> Selection:
    """The selection with `influence` [R, T] in its batch, where a method asks for it.

    Influences are those of an update on the sampled prompts alone, without the method's own
    weights; 0 at other prompts' tokens.
    """
    share = state.objective.influence_sample()
    if share is None:
        return selection
    config, kept, batch = state.config, selection.kept, selection.batch
    found = torch.zeros_like(batch.old_logp)
    chance = generator(config.seed, sampled.iteration, "analysis", state.policy.device)
    prompts = len(sampled.examples)
    drawn = torch.randperm(prompts, generator=chance, device=kept.device)
    drawn = drawn[: max(1, round(share * prompts))]
    rows = torch.isin(sampled.sequences.prompt, drawn).nonzero()[:, 0]
    mine = torch.isin(kept, rows).nonzero()[:, 0]  # of those trained on
    if len(mine):
        part = batch[mine]
        terms = state.objective.plan(part, chance)
        subject = Subject(
            meter_of(state), state.objective, state.optimizer,
            learning_rate_at(config, (sampled.iteration - 1) * config.updates, state.updates),
            config.optim.clip, sampled.sequences[rows], selection.graded[rows],
            torch.isin(rows, kept[mine]).nonzero()[:, 0], part, chance,
        )  # fmt: skip
        values, _ = influences(subject, part, terms)
        found[mine] = values[subject.kept].to(found.dtype)
        state.optimizer.zero_grad(set_to_none=True)
    return replace(selection, batch=batch.replace(influence=found))
