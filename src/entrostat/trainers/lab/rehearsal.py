"""A rehearsal: load the policy, sample a few rollouts, try an update and undo it.

The rollouts pass through the same code as a run's first iteration: sampled or read from a dump,
scored, measured, graded. The trial update uses the run's learning rate without its warm-up, and is
undone.

Shapes: B rollouts, P prompt and T completion tokens at most, V vocabulary; n tokens that are
computed exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...config import Evaluation, TrainConfig
from ...config.settings import Enough
from ...core.batch import TokenBatch
from ...core.objective import Objective
from ...core.stats import TokenStats
from ...data.generation import Answers
from ...data.prompts import encode
from ...data.seeds import generator
from ...diagnosis.doctor import PROMPTS, Finding, examine_subject
from ...diagnosis.doctor.subject import Exact, Moved
from ...logs.rollouts import Rollouts
from ...models.head import find_head
from ...models.policy import vocabulary
from ...models.rollout import Sequences
from ...tasks import Example, Task
from .analysis import with_influences
from .experience import (
    Sampled,
    Selection,
    measure,
    observe,
    rollout_figures,
    sample_rollouts,
    select,
    statistics,
)
from .resampling import with_resampled
from .state import State, build, build_optimizer
from .updates import update, update_policy

_LOGITS = 2**22  # float64 logits held at once for exact tokens: 32 MB
_ROLLOUTS = 24  # rollouts on which gradients are compared


class Rehearsal:
    """A run before its start, and its first rollouts: the doctor's `Subject`."""

    def __init__(
        self, state: State, sequences: Sequences, batch: TokenBatch, figures: dict[str, float],
        selection: Selection,
    ) -> None:  # fmt: skip
        self.state, self.selection, self.figures = state, selection, figures
        self.config, self.task = state.config, state.task
        self.policy, self.objective = state.policy, state.objective
        self.sequences, self.batch, self.graded = sequences, batch, selection.graded
        self.trained, self.tokens = len(selection), int(batch.mask.sum())

    @cached_property
    def whole(self) -> TokenBatch:
        """The batch [B, T] with the other models' values that methods need; ungraded."""
        batch, kept, chosen = self.batch, self.selection.kept, self.selection.batch
        if self.state.reference is not None and "ref_logp" in self.objective.needs:
            found = statistics(self.state, self.state.reference, self.sequences)
            batch = batch.replace(ref_logp=found.logp)
        for name in ("process_rewards", "influence"):
            if (values := getattr(chosen, name)) is not None:
                full = torch.zeros_like(batch.old_logp)
                full[kept] = values.to(full.dtype)
                batch = batch.replace(**{name: full})
        return batch

    @cached_property
    @torch.no_grad()
    def exact(self) -> Exact | None:
        """Tokens of the first rollouts in float64; None if the model has no linear head."""
        policy, head = self.policy, find_head(self.policy.model)
        if head is None:
            return None
        layer = policy.model.get_output_embeddings()
        budget = max(1, _LOGITS // len(layer.weight))
        upto = self.sequences.mask.sum(-1).cumsum(0)
        count = max(1, int((upto <= budget).sum()))
        rows = torch.arange(count, device=policy.device)
        few = self.sequences[rows]
        n = min(int(upto[count - 1]), budget)
        hidden = policy.hidden(few)[:n]
        weight = layer.weight
        if policy.half is not None:  # the operands are rounded before the product
            hidden, weight = hidden.to(policy.half), weight.to(policy.half)
        z = hidden.double() @ weight.double().T
        if (bias := getattr(layer, "bias", None)) is not None:
            z = z + bias.double()
        z = z * head.scale
        if head.softcap is not None:
            z = head.softcap * (z / head.softcap).tanh()
        given = None
        if policy.head is None:
            packs = policy.packs_all(few)
            given = (policy.packed(few) if packs else policy.padded(few))[:n]
        found = policy.token_stats(few, self.config.sampling.temperature)
        own = TokenStats(found.logp[few.mask][:n], found.entropy[few.mask][:n])
        return Exact(rows, z, given, few.completions[few.mask][:n], own)

    def of_exact(self, values: Tensor) -> Tensor:
        """Select `exact`'s tokens: [B, T] -> [n]."""
        assert self.exact is not None
        rows = self.exact.rows
        return values[rows][self.sequences.mask[rows]][: len(self.exact.targets)]

    @cached_property
    def moved(self) -> Moved | None:
        """The effect of an iteration's trial updates, undone; None if nothing is trained on."""
        if not len(self.selection):
            return None
        with tried(self.state) as state:
            figures = update_policy(state, self.selection, None, 1)
            stats = statistics(state, state.policy, self.sequences)
            return Moved(stats, figures, pieces_apart(state, self.selection))

    @property
    def own(self) -> Tensor:
        """Tokens at mask 1 sampled at the run's own temperature, [B, T] bool."""
        tempered, mask = self.batch.tempered, self.batch.mask
        return mask if tempered is None else mask & ~tempered[:, None]

    def after(self, objective: Objective) -> Tensor:
        """Entropies [B, T] after an iteration's updates under this objective, then undone."""
        advantages = self.graded.need("advantages")[self.selection.kept]
        outcome = self.selection.batch.replace(advantages=advantages)
        selection = replace(self.selection, batch=objective.prepare(outcome))
        with tried(replace(self.state, objective=objective)) as state:
            update_policy(state, selection, None, 1)
            return statistics(state, state.policy, self.sequences).entropy


@contextmanager
def rehearse(
    config: TrainConfig,
    prompts: int = PROMPTS,
    recorded: Rollouts | None = None,
    task: Task | None = None,
) -> Iterator[Rehearsal]:
    """Load the policy, sample, score, measure and grade; scorer processes end on exit.

    `prompts` is the number of prompts to sample. `recorded` rollouts replace sampled ones; `task`
    replaces the configuration's task.
    """
    state = build(_small(config, prompts), task, lambda text: None)
    with state.scorer as score, state.held_out:
        if recorded is None:
            sampled = sample_rollouts(state, 1, lambda count: None)
            rewards = sampled.scored(score)
        else:
            sampled, rewards = sampled_of(recorded, state)
        batch = measure(state, sampled, rewards)
        figures: dict[str, float] = rollout_figures(batch, sampled) | score.figures()
        observe(state, figures, 1)
        sampled, rewards, batch = with_resampled(
            state, sampled, rewards, batch, score, lambda count: None, figures
        )
        selection = with_influences(state, sampled, select(state, sampled, batch))
        yield Rehearsal(state, sampled.sequences, batch, figures | selection.figures, selection)


def _small(config: TrainConfig, prompts: int) -> TrainConfig:
    """The configuration of a single iteration in the lab, for any host."""
    config = copy.deepcopy(config)
    config.host = "lab"
    config.sampling = replace(
        config.sampling, engine="transformers", prompts=prompts, measure=True, enough=Enough()
    )
    config.optim = replace(config.optim, warmup=0)
    config.eval = Evaluation(prompts=0)
    config.analyze.every, config.save = 0, replace(config.save, best="")
    return config.validate()


def examine(
    config: TrainConfig,
    *,
    prompts: int = PROMPTS,
    rollouts: Rollouts | None = None,
    task: Task | None = None,
) -> list[Finding]:
    """Run every check of the doctor on a policy, its configuration and a few rollouts.

    Args:
        config: a run's configuration; it is not modified, and no run directory is written.
        prompts: number of prompts to sample; the configuration sets the rollouts of each.
        rollouts: recorded rollouts, used instead of sampled ones.
        task: replaces the configuration's task.

    Returns:
        One finding per check, in the order of `CHECKS`.

    Raises:
        ValueError: a run could not start, for a reason that no check covers.
        RunStopped: a run could not continue.
    """
    return examine_subject(config, lambda: rehearse(config, prompts, rollouts, task))


def sampled_of(rollouts: Rollouts, state: State) -> tuple[Sampled, Tensor]:
    """Convert rollouts to the lab's form, with rewards [B]; the policy encodes the prompts."""
    policy = state.policy
    known = vocabulary(policy.model)
    if int(rollouts.tokens.min()) < 0 or int(rollouts.tokens.max()) >= known:
        raise ValueError(
            f"--rollouts: token {int(rollouts.tokens.max())} is none of the model's {known}; they "
            "are another model's"
        )
    places = {group: i for i, group in enumerate(sorted(set(rollouts.group.tolist())))}
    number = [places[group] for group in rollouts.group.tolist()]
    texts = dict(zip(number, rollouts.prompts, strict=True))
    examples = [Example(texts[i]) for i in range(len(texts))]
    own = [rollouts.rows(i) for i in range(len(rollouts))]
    T = max(rows.stop - rows.start for rows in own)
    prompts = encode(policy, state.config, examples, T, ValueError)

    def of_each(values: Tensor) -> list[list[Any]]:
        return [values[rows].tolist() for rows in own]

    sequences = Sequences.ragged(
        [prompts[i] for i in number], of_each(rollouts.tokens), number, policy.pad, policy.device,
        finished=rollouts.finished.tolist(), logp=of_each(rollouts.sampler_logp),
        mask=None if rollouts.sampled is None else of_each(rollouts.sampled),
    )  # fmt: skip
    answers = Answers(sequences, list(rollouts.completions))
    return Sampled(1, examples, answers), rollouts.rewards.float()


@contextmanager
def tried(state: State) -> Iterator[State]:
    """Yield a state with fresh optimizer and copied controllers; undo its updates on exit."""
    before = {name: p.detach().clone() for name, p in state.policy.trained().items()}
    optimizer, scaler = build_optimizer(state.policy, state.config)
    try:
        yield replace(
            state, optimizer=optimizer, scaler=scaler, objective=copy.deepcopy(state.objective)
        )
    finally:
        with torch.no_grad():
            for name, p in state.policy.trained().items():
                p.copy_(before[name])
                p.grad = None


def pieces_apart(state: State, selection: Selection) -> tuple[int, int, float]:
    """Compare a minibatch's gradient at two micro-batch sizes: sizes, relative distance.

    The gradients are taken under the current policy, whose ratios are not 1, without a step.
    """
    large = min(len(selection), state.config.optim.micro_batch, _ROLLOUTS)
    small = -(-large // 3)
    few = torch.arange(large, device=state.policy.device)
    found: list[list[Tensor]] = []
    for size in (large, small):
        optim = replace(state.config.optim, micro_batch=size, lr=0.0, weight_decay=0.0)
        config = replace(state.config, optim=optim)
        optimizer, scaler = build_optimizer(state.policy, config)
        chance = generator(config.seed, 1, "select", state.policy.device)
        update(
            replace(state, config=config, optimizer=optimizer, scaler=scaler), selection.batch[few],
            selection.sequences[few], chance, made=1, where="the doctor's update",
        )  # fmt: skip
        grads = [p.grad for p in state.policy.trained().values()]
        found.append([torch.zeros(()) if g is None else g.detach().clone() for g in grads])
    one, other = found
    length = sum(float(g.double().square().sum()) for g in one)
    gap = sum(float((a - b).double().square().sum()) for a, b in zip(one, other, strict=True))
    return large, small, (gap / length) ** 0.5 if length > 0 else 0.0
