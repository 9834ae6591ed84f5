"""The objective: methods chained over one surrogate; the same object in every trainer.

    rollouts (once per rollout batch)  figures -> controllers; rewards -> advantages [B, T], edited
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
        aggregation: how tokens' losses become one number.
        conventions: "entrostat"; or "trl": groups without a signal count in the denominators, in
            TRL those of the loss type, and 1e-4 is added to deviations of rewards.
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
        """Once per rollout batch: what its updates are made on.

        The controllers observe the figures, advantages are estimated, rollouts of groups without a
        signal are marked `idle`, methods choose and edit.

        Args:
            batch: [B, T] old_logp, old_entropy, mask, rewards (NaN where unknown) and group.
            figures: of the batch (`core.rollouts.describe`); None where they were observed already.
            progress: 0 at the first iteration of the run, 1 at the last.
            fill: given rows [R] and their batch [R, T], returns that batch with what other models
                say of it (`ref_logp`, `process_rewards`). Rows are those that are trained on.

        Returns:
            [B, T] with `advantages` [B, T], `outcome` [B] and `idle` [B].

        Raises:
            ValueError: a field that a method needs is missing, or figures are no numbers.
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
        """At every update: what the methods decide for a minibatch.

        Args:
            batch: from `rollouts`; the whole minibatch (all micro-batches). Its `logp` and
                `entropy` are the old policy's, or the current one's.
            generator: for random selections; the run's own, so that a resumed run repeats them.
            fresh: the weights are still those that gave `old_logp`. What differs then is the
                rounding of another packing, so every ratio is 1.
            measure: log-probs and entropies [B, T] of the policy as it stands, called only where a
                method reads them and they are not in the batch.
            scale: as `plan` takes it.
            mean: as `plan` takes it.
        """
        measured = measure is not None and self.reads_current and not fresh
        if measured:
            assert measure is not None
            logp, entropy = measure()
            batch = batch.replace(logp=logp, entropy=entropy)
        if fresh:
            batch = batch.replace(old_logp=batch.logp.detach())
        # a sampler's correction and earlier edits are not the methods' to see
        seen = batch.replace(correction=None, edited=None)
        return Plan(
            self, batch, self.plan(seen, generator, scale=scale, mean=mean), fresh, measured
        )

    # ------------------------------------------------------------------ their parts

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
        """At every update: the terms, from detached statistics of the whole minibatch.

        Args:
            batch: prepared; the whole minibatch (all micro-batches, all ranks). Methods decide on
                it without its idle rollouts; penalties are spread over all sampled tokens.
            generator: for random selections; the run's own, so that a resumed run repeats them.
            scale: [B, T] a token's share in the aggregated loss, where a trainer has its own; None
                for that of `aggregation`.
            mean: [B, T] a token's share in the mean over tokens of an entropy bonus, likewise.

        Raises:
            ValueError: advantages are missing, or a field that a method needs.
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
        """The loss of a minibatch, or of a slice of it under the whole's terms.

        Args:
            batch: prepared; `logp` (and `entropy`, where used) carry the gradient.
            terms: from `plan` over the whole minibatch, sliced alike; None plans on this batch.
            generator: for random selections when planning here.

        Raises:
            ValueError: the terms belong to a batch of another shape.
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
        if terms is not planned and ratio is None:  # a weight is made of it
            ratio = importance_ratio(batch, terms.replace(ratio="token"))
        clip = None if ratio is None else clip_sides(terms, ratio)
        metrics = loss_metrics(batch, terms, policy, ratio, clip)
        return LossOutput(
            loss, per_token, terms, {"loss/total": loss.detach(), **metrics}, batch,
            clipped_by(clip, batch, terms),
        )  # fmt: skip

    @torch.no_grad()
    def local(self, batch: TokenBatch, terms: Terms) -> Terms:
        """The terms of these rollouts after what methods read of their current log-probs."""
        for name, method, state in self.chain():
            if type(method).local is not Method.local:
                now = batch.replace(logp=at_least_float32(batch.logp.detach()))
                made = method.local(now, terms, state)
                terms = self.returned(made, terms, batch, f"{name}.local")
        return terms


@dataclass(frozen=True)
class Plan:
    """What an objective decided for a minibatch. `plan[rows]` is the plan of some of its rows.

    Attributes:
        objective: which one.
        batch: [B, T] what was decided on.
        terms: numbers per token.
        fresh: every ratio is 1: the weights are still those that gave `old_logp`.
        measured: a pass over the minibatch was made for the plan.
    """

    objective: Objective
    batch: TokenBatch
    terms: Terms
    fresh: bool = False
    measured: bool = False

    def __getitem__(self, rows: slice | Tensor) -> Plan:
        """The plan of some rows."""
        return Plan(self.objective, self.batch[rows], self.terms[rows], self.fresh, self.measured)

    def share(self, share: float) -> Plan:
        """The plan where its minibatch is this share of the rollouts of an optimizer step."""
        terms = self.terms
        sampled = None if terms.sampled is None else terms.sampled / share
        terms = terms.replace(scale=terms.scale * share, count=terms.count / share, sampled=sampled)
        return replace(self, terms=terms)

    def at(self, logp: Tensor, entropy: Tensor | None = None) -> TokenBatch:
        """[B, T]: the plan's batch under the policy that is being updated.

        Args:
            logp: [B, T] float with gradient.
            entropy: [B, T] float with gradient; None where it is not computed.
        """
        old = {"old_logp": logp.detach()} if self.fresh else {}
        return self.batch.replace(logp=logp, entropy=entropy, **old)

    def loss(self, micro: TokenBatch) -> LossOutput:
        """The loss of these rows; losses and gradients of slices add up to the whole's.

        Args:
            micro: the plan's batch with the current policy's `logp` and `entropy`, as `at` gives
                it.
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
            sits on its paper's recipe; a list may say its own surrogate.
        advantage: estimator of `advantages`; overrides the recipe's.
        aggregation: "token_mean", "seq_mean_token_mean" or "seq_mean_token_sum_norm"; overrides the
            recipe's.
        max_length: the constant of "seq_mean_token_sum_norm"; None takes the batch's T.
        updates: optimizer steps per rollout batch, where known: a strictly on-policy method is then
            refused here rather than by the host.
        conventions: "trl" for TRL's own numbers: groups without a signal count in the denominators,
            and 1e-4 is added to deviations of rewards. `from_grpo_config` says so.
        **params: the method's parameters, where `method` is one name.

    Raises:
        ValueError: one line that says what was given, what exists and the nearest name, or why the
            methods do not go together.

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
