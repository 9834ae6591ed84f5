"""The training data of an iteration: its rollouts, and their statistics under the old policy.

Shapes: B rollouts of an iteration, T completion tokens at most; R rollouts that are trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...core.batch import TokenBatch
from ...core.mismatch import mismatch
from ...core.rollouts import describe, of_kinds, outcome_figures
from ...core.stats import TokenStats
from ...data.generation import Answers, answer
from ...data.prompts import draw, encode
from ...data.scoring import Scorer
from ...data.seeds import Purpose, generator, stream_seed
from ...dynamics import online
from ...models.policy import Policy
from ...models.rollout import Sequences
from ...models.stops import early_stop_of
from ...tasks import Example
from .state import State


@dataclass(frozen=True)
class Sampled:
    """An iteration's prompts and the policy's answers."""

    iteration: int
    examples: list[Example]  # the prompts
    answers: Answers  # B rollouts; rollouts of a prompt are adjacent

    @property
    def sequences(self) -> Sequences:
        return self.answers.sequences

    def scored(self, score: Scorer) -> Tensor:
        """Rewards [B] float32."""
        return self.answers.scored(score, self.examples, self.iteration)


@dataclass(frozen=True)
class Selection:
    """The rollouts that are trained on."""

    # all B, with outcome advantages [B]; groups without a signal are marked
    graded: TokenBatch
    kept: Tensor  # [R] int64, rows of those trained on
    batch: TokenBatch  # [R, T], with the methods' advantages [R, T]
    sequences: Sequences  # the same rows
    figures: dict[str, float]  # metrics of the selection

    def __len__(self) -> int:
        return len(self.kept)


def sample_rollouts(state: State, iteration: int, on_progress: Callable[[int], None]) -> Sampled:
    config = state.config
    return generate_for(
        state, draw(state.task, config, iteration), iteration, "sample", on_progress,
        exact=not config.sampling.measure, enough=early_stop_of(config.sampling),
    )  # fmt: skip


def generate_for(
    state: State, examples: list[Example], iteration: int, purpose: Purpose,
    on_progress: Callable[[int], None], temperature: float | None = None,
    rollouts: int | None = None, again: int = 0, **how: Any,
) -> Sampled:  # fmt: skip
    """Generate rollouts with the current policy; `again` counts further draws of an iteration.

    `temperature` and `rollouts` (per prompt) default to the run's settings; `how` are other
    arguments of `answer`.
    """
    config, policy = state.config, state.policy
    if temperature is not None:
        config = replace(config, sampling=replace(config.sampling, temperature=temperature))
    stream = (iteration << 8) + again if again else iteration
    torch.manual_seed(stream_seed(config.seed, stream, purpose))
    answers = answer(
        policy, config, state.task, state.task.splits[0], examples,
        encode(policy, config, examples, state.new), training=True,
        rollouts=rollouts or config.sampling.rollouts,
        generator=generator(config.seed, stream, purpose, policy.device),
        on_progress=on_progress, where=f"iteration {iteration}", **how,
    )  # fmt: skip
    return Sampled(iteration, examples, answers)


def measure(state: State, sampled: Sampled, rewards: Tensor) -> TokenBatch:
    """Measure the old policy [B, T]: the controllers' input and the denominator of the ratio.

    `rewards` [B] are the task's. Without `sampling.measure` the values are the sampler's, also
    float32, which differ from a training pass by rounding in another order.
    """
    sequences = sampled.sequences
    if sequences.sampler_entropy is None:
        return measured(sequences, rewards, statistics(state, state.policy, sequences))
    own = TokenStats(sequences.sampler_logp, sequences.sampler_entropy)
    return measured(sequences, rewards, own)


def measured(sequences: Sequences, rewards: Tensor, old: TokenStats) -> TokenBatch:
    """Combine sequences with the old policy's statistics; all [B, T]."""
    device = sequences.mask.device
    return TokenBatch(
        old.logp, old.logp, sequences.mask, rewards=rewards.to(device), group=sequences.prompt,
        entropy=old.entropy, old_entropy=old.entropy,
        rollout=torch.arange(len(sequences.mask), device=device),
    )  # fmt: skip


def rollout_figures(batch: TokenBatch, sampled: Sampled) -> dict[str, float]:
    answers, sequences = sampled.answers, sampled.sequences
    kinds = [sampled.examples[i].data.get("kind") for i in sequences.prompt.tolist()]
    truncated = 1 - float(sequences.finished.float().mean())
    figures = describe(batch) | {"rollout/truncated": truncated} | answers.figures
    figures |= of_kinds(batch.need("rewards"), kinds)
    if sequences.sampler_entropy is not None:  # the old policy's values are the sampler's
        return figures
    return figures | mismatch(batch.old_logp, sequences.sampler_logp, batch.mask)


def observe(state: State, figures: dict[str, float], iteration: int) -> dict[str, float]:
    """Let the controllers observe the iteration's entropy; return their metrics."""
    progress = (iteration - 1) / max(1, state.config.iterations - 1)
    state.objective.observe_figures(figures, progress)
    return state.objective.metrics()


def select(state: State, sampled: Sampled, batch: TokenBatch) -> Selection:
    """Select and prepare the trained rollouts: groups with a signal; others only for penalties."""
    if state.reference is not None and state.objective.shapes_by_reference:
        drift = statistics(state, state.reference, sampled.sequences)
        batch = batch.replace(ref_logp=drift.logp)
    more: dict[str, float] = {}

    def fill(rows: Tensor, part: TokenBatch) -> TokenBatch:
        rewards = batch.need("rewards")[rows]  # not shaped by any method
        part, found = _with_models(state, part, sampled.sequences[rows], rewards, sampled.iteration)
        more.update(found)
        if state.objective.influence_sample() is not None:  # measured after preparation
            part = part.replace(influence=torch.zeros_like(part.old_logp))
        return part

    ready = state.objective.rollouts(batch, fill=fill)
    kept, chosen = state.objective.drop_zero_advantage(ready)
    outcome = ready.replace(advantages=ready.outcome)
    own = outcome if batch.tempered is None else outcome[~batch.tempered]
    figures = outcome_figures(own)
    if len(kept):
        rewards = batch.need("rewards")[kept]
        figures |= more | online.of_rollouts(chosen, ready.need("outcome")[kept], rewards)
    return Selection(outcome, kept, chosen, sampled.sequences[kept], figures)


def _with_models(
    state: State, batch: TokenBatch, sequences: Sequences, rewards: Tensor, iteration: int
) -> tuple[TokenBatch, dict[str, float]]:
    """Add the other models' values that methods need; also return metrics of training phi."""
    figures: dict[str, float] = {}
    wanted = "ref_logp" in state.objective.needs and batch.ref_logp is None
    if state.reference is not None and wanted:
        batch = batch.replace(ref_logp=statistics(state, state.reference, sequences).logp)
    if state.phi is not None:
        token_rewards = torch.zeros_like(batch.old_logp)
        idle = torch.zeros_like(batch.mask[:, 0]) if batch.idle is None else batch.idle
        if len(live := (~idle).nonzero()[:, 0]):
            token_rewards[live], figures = state.phi.token_rewards(
                sequences[live], rewards[live], batch.need("group")[live], f"iteration {iteration}"
            )
        batch = batch.replace(process_rewards=token_rewards)
    return batch, figures


def statistics(state: State, policy: Policy, sequences: Sequences) -> TokenStats:
    """Log-probs and entropies [B, T] of sequences, at the run's own temperature."""
    config = state.config
    return policy.measure(sequences, config.sampling.temperature, config.optim.micro_batch)
