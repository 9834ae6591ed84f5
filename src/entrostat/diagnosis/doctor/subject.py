"""What the doctor looks at: a policy as training would begin with it, and a few rollouts of it.

They are the lab's own, made by the lines that a run's first iteration goes through: sampled or
read from a dump, scored, measured, graded. An update is tried with the run's learning rate, without
its warm-up, and taken back.

Shapes: B rollouts, T completion tokens at most, V vocabulary; n tokens that are computed exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ...config import Evaluation, TrainConfig
from ...config.settings import Enough
from ...core.batch import TokenBatch
from ...core.objective import Objective
from ...core.stats import TokenStats
from ...logs.rollouts import Rollouts
from ...models.head import find_head
from ...models.rollout import Sequences
from ...tasks import Task
from ...trainers.lab.add_influence import with_influences
from ...trainers.lab.experience import (
    Selection,
    measure,
    observe,
    rollout_figures,
    sample_rollouts,
    select,
    statistics,
)
from ...trainers.lab.resampling import with_resampled
from ...trainers.lab.state import State, build
from ...trainers.lab.updates import update_policy
from .recorded_rollouts import sampled_of
from .trial import pieces_apart, tried

PROMPTS = 8  # of a group each: 64 rollouts by default, seconds for the tiny policy
_LOGITS = 2**22  # float64 numbers that are held to compute tokens exactly: 32 MB


@dataclass(frozen=True)
class Exact:
    """Some tokens in float64.

    Attributes:
        rows: of the rollouts, [b].
        z: [n, V] logits in float64, of the head's own operands.
        given: [n, V] what the model returned, where statistics are made of that; else None.
        targets: [n] ids.
        own: log-prob and entropy [n] each as training has them.
    """

    rows: Tensor
    z: Tensor
    given: Tensor | None
    targets: Tensor
    own: TokenStats

    def logp(self, temperature: float, z: Tensor | None = None) -> Tensor:
        """[n] float64, of the targets."""
        p = ((self.z if z is None else z.double()) / temperature).log_softmax(-1)
        return p.gather(1, self.targets[:, None])[:, 0]

    def entropy(self, temperature: float, z: Tensor | None = None) -> Tensor:
        """[n] float64, nats."""
        logp = ((self.z if z is None else z.double()) / temperature).log_softmax(-1)
        return -torch.special.xlogy(logp.exp(), logp.exp()).sum(-1)


@dataclass(frozen=True)
class Moved:
    """A policy after an iteration's updates, on the same rollouts.

    Attributes:
        stats: [B, T] log-probs and entropies.
        figures: of the updates.
        pieces: (a, b, difference): |g_a - g_b| / |g_a| of the gradient in micro-batches of a and
            of b rollouts.
    """

    stats: TokenStats
    figures: dict[str, float]
    pieces: tuple[int, int, float]


@dataclass
class Subject:
    """A run that has not begun, and its first rollouts.

    Attributes:
        state: the run in memory; controllers have seen the first entropy.
        sequences: B rollouts.
        texts: B completions.
        batch: [B, T] as methods get it before advantages: the old policy's figures, rewards.
        figures: of the rollout batch.
        selection: what is trained on.
        origin: where the rollouts are from, in words.
    """

    state: State
    sequences: Sequences
    texts: list[str]
    batch: TokenBatch
    figures: dict[str, float]
    selection: Selection
    origin: str

    @property
    def config(self) -> TrainConfig:
        """The run's, resolved."""
        return self.state.config

    @property
    def objective(self) -> Objective:
        """As it stands before the first update."""
        return self.state.objective

    @property
    def tokens(self) -> int:
        """Tokens at mask 1."""
        return int(self.batch.mask.sum())

    @cached_property
    def whole(self) -> TokenBatch:
        """[B, T]: the batch with what methods ask of other models; ungraded."""
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
        """Tokens of the first rollouts in float64; None where the model has no linear head."""
        policy, temperature = self.state.policy, self.config.sampling.temperature
        head = find_head(policy.model)
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
        if policy.half is not None:  # its operands are rounded before they are multiplied
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
        found = policy.token_stats(few, temperature)
        own = TokenStats(found.logp[few.mask][:n], found.entropy[few.mask][:n])
        return Exact(rows, z, given, few.completions[few.mask][:n], own)

    def of_exact(self, values: Tensor) -> Tensor:
        """[B, T] -> [n]: the tokens that `exact` has."""
        assert self.exact is not None
        rows = self.exact.rows
        return values[rows][self.sequences.mask[rows]][: len(self.exact.targets)]

    @cached_property
    def moved(self) -> Moved | None:
        """An iteration's updates, tried and taken back; None where there is nothing to train on."""
        if not len(self.selection):
            return None
        with tried(self.state) as state:
            figures = update_policy(state, self.selection, None, 1)
            stats = statistics(state, state.policy, self.sequences)
            return Moved(stats, figures, pieces_apart(state, self.selection))

    @property
    def own(self) -> Tensor:
        """[B, T] bool: tokens at mask 1 that were sampled at the run's own temperature."""
        tempered, mask = self.batch.tempered, self.batch.mask
        return mask if tempered is None else mask & ~tempered[:, None]

    def after(self, objective: Objective) -> Tensor:
        """[B, T]: entropies after an iteration's updates under this objective, taken back."""
        graded, kept = self.selection.graded, self.selection.kept
        assert graded.advantages is not None
        edited = None if graded.edited is None else graded.edited[kept]
        outcome = self.selection.batch.replace(advantages=graded.advantages[kept], edited=edited)
        selection = replace(self.selection, batch=objective.prepare(outcome))
        with tried(replace(self.state, objective=objective)) as state:
            update_policy(state, selection, None, 1)
            return statistics(state, state.policy, self.sequences).entropy


@contextmanager
def subject_of(
    config: TrainConfig,
    prompts: int = PROMPTS,
    recorded: Rollouts | None = None,
    task: Task | None = None,
) -> Iterator[Subject]:
    """Load the policy, sample, score, measure and grade; the scorer's processes end with it.

    Args:
        config: of the run.
        prompts: of the one iteration that is sampled.
        recorded: rollouts in the place of sampled ones.
        task: an object in place of the configuration's.

    Raises:
        ValueError: a run could not begin so.
        RunStopped: it could not go on: logits are not finite, a scorer always fails.
    """
    state = build(_small(config, prompts), task, lambda text: None)
    with state.scorer as score, state.held_out:
        if recorded is None:
            sampled = sample_rollouts(state, 1, lambda count: None)
            rewards = sampled.scored(score)
        else:
            sampled, rewards = sampled_of(recorded, state)
        batch = measure(state, sampled, rewards)
        figures: dict[str, float] = rollout_figures(batch, sampled.answers) | score.figures()
        observe(state, figures, 1)
        sampled, rewards, batch = with_resampled(
            state, sampled, rewards, batch, score, lambda count: None, figures
        )
        selection = with_influences(state, sampled, select(state, sampled, batch))
        origin = f"{len(batch)} rollouts of {len(sampled.examples)} prompts"
        if recorded is not None:
            origin += f", recorded in iteration {recorded.iteration}"
        yield Subject(
            state, sampled.sequences, sampled.answers.texts, batch, figures | selection.figures,
            selection, origin,
        )  # fmt: skip


def _small(config: TrainConfig, prompts: int) -> TrainConfig:
    """The configuration of one iteration in the lab, whatever the host."""
    config = copy.deepcopy(config)
    config.host = "lab"
    config.sampling = replace(
        config.sampling, engine="transformers", prompts=prompts, measure=True,
        enough=Enough(),
    )  # fmt: skip
    config.optim = replace(config.optim, warmup=0)
    config.eval = Evaluation(prompts=0)
    config.analyze.every, config.save = 0, replace(config.save, best="")
    return config.validate()
