"""The objective: methods chained over one surrogate; the same object in every trainer.

    rollouts (once per rollout batch)  metrics -> controllers; rewards -> edited advantages [B, T]
    step     (every update)            whole minibatch, detached -> Plan, numbers per token
    Plan.loss (every micro-batch)      the plan's terms + (lp, H) with gradient -> scalar

Shapes: B sequences, T completion tokens; N = number of tokens at mask 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor

from .._names import unknown
from ..method import Method, MethodSpec, resolve
from . import preparation
from .batch import Terms, TokenBatch, at_least_float32
from .chain import Chain, Conventions
from .loss import (
    Aggregation,
    LossOutput,
    aggregation_scale,
    clip_sides,
    clipped_by,
    importance_ratio,
    loss_metrics,
    surrogate,
)
from .preparation import Fill, per_token

Statistics = tuple[Tensor, Tensor | None]  # log-probs and entropies [B, T]


class Objective(Chain):
    """Methods chained over one surrogate. Build one with `make_objective`.

    Attributes:
        methods: the chain, surrogate first.
        names: their names.
        advantage: name of the advantage estimator.
        aggregation: how the tokens' losses are reduced to a scalar.
        conventions: "entrostat"; or "trl": zero-advantage groups count in the denominators (in TRL
            those of the loss type), and 1e-4 is added to standard deviations of rewards.
        states: one state per method (None where it has none).
    """

    def rollouts(
        self,
        batch: TokenBatch,
        figures: Mapping[str, float] | None = None,
        *,
        progress: float | None = None,
        fill: Fill | None = None,
    ) -> TokenBatch:
        """Once per rollout batch: prepare the batch for its updates.

        The controllers observe the metrics and advantages are estimated. Rollouts of zero-advantage
        groups are marked `idle`; methods choose rollouts and edit advantages.

        Args:
            batch: [B, T] old_logp, old_entropy, mask, rewards (NaN where unknown) and group.
            figures: metrics of the batch (`core.rollouts.describe`); None if observed already.
            progress: 0 at the first iteration of the run, 1 at the last.
            fill: given the rows [R] to train on and their batch [R, T], returns that batch with
                the outputs of other models (`ref_logp`, `process_rewards`).

        Returns:
            [B, T] with `advantages` [B, T], `outcome` [B] and `idle` [B].

        Raises:
            ValueError: a field that a method needs is missing, or a metric is not a number.
        """
        if figures is not None:
            self.observe_figures(figures, progress)
        graded = self.compute_advantages(batch)
        return self.prepare(graded.replace(outcome=graded.advantages), fill)

    def step(
        self,
        batch: TokenBatch,
        generator: torch.Generator | None = None,
        *,
        fresh: bool = False,
        measure: Callable[[], Statistics] | None = None,
        scale: Tensor | None = None,
        mean: Tensor | None = None,
    ) -> Plan:
        """At every update: plan a minibatch.

        Args:
            batch: from `rollouts`; the whole minibatch (all micro-batches). Its `logp` and
                `entropy` are the old or the current policy's.
            generator: for random selections; the run's own, so that a resumed run repeats them.
            fresh: the weights are still those that gave `old_logp`. Log-probs then differ only by
                the rounding of another packing, so every ratio is set to 1.
            measure: returns the current policy's log-probs and entropies [B, T]; called only if a
                method reads them and not `fresh`.
            scale: as in `plan`.
            mean: as in `plan`.
        """
        measured = measure is not None and self.reads_current and not fresh
        if measured:
            assert measure is not None
            logp, entropy = measure()
            batch = batch.replace(logp=logp, entropy=entropy)
        if fresh:
            batch = batch.replace(old_logp=batch.logp.detach())
        # methods do not see a sampler's correction or earlier edits
        seen = batch.replace(correction=None, edited=None)
        return Plan(
            self, batch, self.plan(seen, generator, scale=scale, mean=mean), fresh, measured
        )

    # ------------------------------------------------------------------ parts of a step

    outcome_advantages = preparation.outcome_advantages
    compute_advantages = preparation.compute_advantages
    drop_zero_advantage = preparation.drop_zero_advantage
    chosen = preparation.choose
    prepare = preparation.prepare

    @torch.no_grad()
    def plan(
        self,
        batch: TokenBatch,
        generator: torch.Generator | None = None,
        *,
        scale: Tensor | None = None,
        mean: Tensor | None = None,
    ) -> Terms:
        """At every update: compute the terms from detached statistics of the whole minibatch.

        Args:
            batch: prepared; the whole minibatch (all micro-batches, all ranks). Methods see it
                without idle rollouts; penalties apply to all sampled tokens.
            generator: for random selections; the run's own, so that a resumed run repeats them.
            scale: [B, T] a token's share in the aggregated loss, if the trainer has its own; None
                for that of `aggregation`.
            mean: [B, T] a token's share in the mean over tokens of an entropy bonus, likewise.

        Raises:
            ValueError: advantages, or a field that a method needs, are missing.
        """
        if batch.advantages is None:
            raise ValueError("Objective.plan: the batch has no advantages; call prepare first")
        if batch.ranks.world > 1 and generator is None:
            raise ValueError(
                "Objective.plan: on several ranks chance needs a generator, in the same state on "
                "each; pass generator=entrostat.core.process_ranks.shared_generator(seed, step)"
            )
        batch = batch.replace(
            logp=at_least_float32(batch.logp.detach()),
            entropy=None if batch.entropy is None else at_least_float32(batch.entropy.detach()),
            advantages=per_token(batch),
        )
        sampled, batch = batch, batch.without_idle()
        advantage = batch.need("advantages")
        dtype = advantage.dtype
        one = torch.ones((), dtype=dtype, device=batch.mask.device)
        terms = Terms(
            advantage=advantage,
            scale=self._scale(batch, dtype) if scale is None else scale.to(dtype),
            mean=None if mean is None else mean.to(dtype),
            count=one * max(1, batch.whole.tokens),
            weight=one.expand(batch.mask.shape),
            ratio_min=(one * -math.inf).expand(batch.mask.shape),
            ratio_max=(one * math.inf).expand(batch.mask.shape),
        )
        if batch is not sampled and scale is None:
            overall = self._scale(sampled, dtype)
            terms = terms.replace(
                scale=torch.where(batch.mask, terms.scale, overall), overall=overall,
                sampled=one * max(1, sampled.whole.tokens),
            )  # fmt: skip
        for name, method, state in self.chain():
            self.check_fields(name, method, batch)
            planned = method.plan(batch, terms, state, generator)
            terms = self.returned(planned, terms, batch, f"{name}.plan")
        return terms

    def _scale(self, batch: TokenBatch, dtype: torch.dtype) -> Tensor:
        aggregation, whole = self.aggregation, batch.whole
        return aggregation_scale(batch.mask, aggregation, dtype, self.max_length, whole)

    def loss(
        self,
        batch: TokenBatch,
        terms: Terms | None = None,
        generator: torch.Generator | None = None,
    ) -> LossOutput:
        """The loss of a minibatch, or of a slice of it under the terms of the whole minibatch.

        Args:
            batch: prepared; `logp` (and `entropy`, where used) carry the gradient.
            terms: from `plan` on the whole minibatch, sliced alike; None plans on this batch.
            generator: for random selections if planned here.

        Raises:
            ValueError: the terms have another shape than the batch.
        """
        if terms is None:
            terms = self.plan(batch, generator)
        if terms.advantage.shape != batch.mask.shape:
            raise ValueError(
                f"Objective.loss: terms are for a batch of shape {list(terms.advantage.shape)}, "
                f"this one has {list(batch.mask.shape)}; slice both alike"
            )
        planned, terms = terms, self.local(batch, terms)
        per_token, policy, ratio = surrogate(batch, terms)
        loss = (per_token * terms.scale).sum()
        if terms is not planned and ratio is None:  # a method's weight uses it
            ratio = importance_ratio(batch, terms.replace(ratio="token"))
        clip = None if ratio is None else clip_sides(terms, ratio)
        metrics = loss_metrics(batch, terms, policy, ratio, clip)
        return LossOutput(
            loss, per_token, terms, {"loss/total": loss.detach(), **metrics}, batch,
            clipped_by(clip, batch, terms),
        )  # fmt: skip

    @torch.no_grad()
    def local(self, batch: TokenBatch, terms: Terms) -> Terms:
        """The terms of these rollouts after each method's `local`."""
        for name, method, state in self.chain():
            if type(method).local is not Method.local:
                now = batch.replace(logp=at_least_float32(batch.logp.detach()))
                made = method.local(now, terms, state)
                terms = self.returned(made, terms, batch, f"{name}.local")
        return terms


@dataclass(frozen=True)
class Plan:
    """An objective's decisions for a minibatch. `plan[rows]` is the plan of some of its rows.

    Attributes:
        objective: the objective that made the plan.
        batch: [B, T] the batch that was planned on.
        terms: numbers per token.
        fresh: every ratio is 1: the weights are still those that gave `old_logp`.
        measured: whether the plan needed a forward pass over the minibatch.
    """

    objective: Objective
    batch: TokenBatch
    terms: Terms
    fresh: bool = False
    measured: bool = False

    def __getitem__(self, rows: slice | Tensor) -> Plan:
        """The plan of the selected rows."""
        return Plan(self.objective, self.batch[rows], self.terms[rows], self.fresh, self.measured)

    def share(self, share: float) -> Plan:
        """Rescale the plan to a minibatch that is this share of an optimizer step's rollouts."""
        terms = self.terms
        sampled = None if terms.sampled is None else terms.sampled / share
        terms = terms.replace(scale=terms.scale * share, count=terms.count / share, sampled=sampled)
        return replace(self, terms=terms)

    def at(self, logp: Tensor, entropy: Tensor | None = None) -> TokenBatch:
        """[B, T]: the plan's batch under the current policy.

        Args:
            logp: [B, T] float with gradient.
            entropy: [B, T] float with gradient; None if it is not computed.
        """
        old = {"old_logp": logp.detach()} if self.fresh else {}
        return self.batch.replace(logp=logp, entropy=entropy, **old)

    def loss(self, micro: TokenBatch) -> LossOutput:
        """The loss of these rows; losses and gradients of slices add up to the total.

        Args:
            micro: the plan's batch with the current policy's `logp` and `entropy`, as returned by
                `at`.
        """
        return self.objective.loss(micro, self.terms)


def make_objective(
    method: MethodSpec,
    *,
    advantage: str | None = None,
    aggregation: Aggregation | None = None,
    max_length: int | None = None,
    updates: int | None = None,
    conventions: Conventions = "entrostat",
    **params: Any,
) -> Objective:
    """Build an objective from names.

    Args:
        method: a name of `methods()`, a table `{"name": ..., param: ...}`, or a list of them, which
            may also name an advantage estimator: `["rloo", "gspo", "repo_r"]`. A bare intervention
            is combined with its paper's recipe; a list may name its own surrogate.
        advantage: estimator of `advantages`; overrides the recipe's.
        aggregation: "token_mean", "seq_mean_token_mean" or "seq_mean_token_sum_norm"; overrides the
            recipe's.
        max_length: the constant of "seq_mean_token_sum_norm"; None takes the batch's T.
        updates: optimizer steps per rollout batch, if known: more than one with a strictly
            on-policy method then raises here rather than in the trainer.
        conventions: "trl" for TRL's own numbers: zero-advantage groups count in the denominators,
            and 1e-4 is added to standard deviations of rewards. `from_grpo_config` sets it.
        **params: the method's parameters, if `method` is one name.

    Raises:
        ValueError: an unknown name or parameter (with the nearest name), or methods that cannot be
            combined (with the reason).

    Example:
        >>> make_objective("repo_r", bidirectional=True).names
        ('ppo', 'repo_r')
    """
    if aggregation is not None and aggregation not in get_args(Aggregation):
        raise ValueError(unknown("aggregation", str(aggregation), get_args(Aggregation)))
    if max_length is not None and max_length < 1:
        raise ValueError(f"make_objective: max_length must be at least 1, got {max_length}")
    if conventions not in get_args(Conventions):
        raise ValueError(unknown("conventions", str(conventions), get_args(Conventions)))
    chain = resolve(method, params, advantage, aggregation)
    objective = Objective(*chain, max_length, conventions)
    objective.check_updates(updates or 1)
    return objective


__all__ = ["Aggregation", "LossOutput", "Objective", "Plan", "make_objective"]
