"""The objective: methods chained over one surrogate; the same object in every host.

    prepare (once per rollout batch)  rewards -> advantages [B, T], edited by the methods
    plan    (every update)            whole minibatch, detached -> Terms, numbers per token
    loss    (every update)            Terms + (lp, H) with gradient -> scalar; slices add up
    observe (once per iteration)      the iteration's entropy -> controllers

Shapes: B sequences, T completion tokens; N = number of tokens at mask 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from .._names import unknown
from ..control import Observation
from ..method import Method, MethodSpec, Resample, resolve
from ..method.checks import returned
from ..method.controlled import Controlled
from ..method.requirements import check_host, check_updates
from ..method.schedules import at
from ..method.state_dict import check_savable, restored
from .advantages import EPS
from .advantages import advantages as estimate_advantages
from .batch import Terms, TokenBatch, at_least_float32
from .loss import (
    Aggregation,
    LossOutput,
    aggregation_scale,
    importance_ratio,
    loss_metrics,
    missing,
    surrogate,
)

Conventions = Literal["entrostat", "trl"]
TRL_EPS = 1e-4  # what TRL adds to a deviation of rewards


class Objective:
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

    def __init__(
        self,
        methods: tuple[Method, ...],
        names: tuple[str, ...],
        advantage: str,
        aggregation: Aggregation = "token_mean",
        max_length: int | None = None,
        conventions: Conventions = "entrostat",
    ) -> None:
        self.conventions: Conventions = conventions
        self.methods = methods
        self.names = names
        self.advantage = advantage
        self.aggregation: Aggregation = aggregation
        self.max_length = max_length
        shaping = [n for n, m in zip(names, methods, strict=True)
                   if type(m).shape is not Method.shape]  # fmt: skip
        if advantage == "gdpo" and shaping:
            raise ValueError(
                f"make_objective: {shaping[0]} edits one reward per rollout, and gdpo normalizes "
                "each reward function on its own; keep one"
            )
        self.states: list[Any] = [method.init() for method in methods]
        check_savable(names, self.states)

    def __repr__(self) -> str:
        chain = ", ".join(repr(method) for method in self.methods)
        return f"Objective({self.advantage} | {chain} | {self.aggregation})"

    @property
    def strictly_on_policy(self) -> bool:
        """Whether only one update per rollout batch is sound."""
        return any(method.on_policy for method in self.methods)

    @property
    def needs(self) -> frozenset[str]:
        """The `TokenBatch` fields that its methods read beyond those every batch has."""
        return frozenset(need for method in self.methods for need in method.required())

    @property
    def reads_current(self) -> bool:
        """Whether `plan` reads the current policy's logp or entropy of the whole minibatch.

        If not, a host may plan on the old policy's and spare itself a pass before the update.
        """
        plans = [m for m in self.methods if type(m).plan is not Method.plan]
        return any(method.reads_current for method in plans)

    @property
    def penalises(self) -> bool:
        """Whether rollouts of groups without a signal matter: a penalty acts on their tokens."""
        return any(method.penalises for method in self.methods)

    def check_host(self, host: str, fields: Iterable[str], updates: int = 1) -> None:
        """Refuse, before the run, what a host cannot supply.

        Args:
            host: "lab", "trl" or "verl".
            fields: the `TokenBatch` fields that the host fills.
            updates: optimizer steps per rollout batch.

        Raises:
            ValueError: names the method, what it needs and what to do.
        """
        check_host(self.names, self.methods, host, fields)
        self.check_updates(updates)

    def check_updates(self, updates: int) -> None:
        """Refuse several updates per rollout batch where a method is sound with one only.

        Raises:
            ValueError: names the method.
        """
        check_updates(self.names, self.methods, updates)

    def outcome_advantages(self, batch: TokenBatch) -> TokenBatch:
        """The batch with advantages [B] from its rewards and groups, before any edit of these.

        Methods that shape rewards have done so in what is returned. A host marks groups whose
        advantages are all 0 as `idle` between this and `prepare`; where nothing `penalises`, it may
        drop them.

        Raises:
            ValueError: no rewards or groups; a group of one where the estimator compares.
        """
        if batch.rewards is None or batch.group is None:
            raise ValueError(
                f"Objective.prepare: '{self.advantage}' needs rewards and group in the batch; "
                "pass both, or advantages"
            )
        rewards = batch.rewards
        for name, method, state in self._chain():
            if type(method).shape is not Method.shape:
                self._check_fields(name, method, batch)
                batch = returned(method.shape(batch, state), batch, batch, f"{name}.shape")
        assert batch.rewards is not None
        assert batch.group is not None
        A = self._estimate(batch)
        if batch.rewards is rewards:
            return batch.replace(advantages=A, edited=None)
        unshaped = self._estimate(batch.replace(rewards=rewards))
        before = _per_token(batch.replace(advantages=unshaped))
        return _note_edits(batch.replace(advantages=A, edited=None), before)

    def _estimate(self, batch: TokenBatch) -> Tensor:
        """[B]: outcome advantages, from a few numbers of each rollout of the whole."""
        assert batch.rewards is not None
        assert batch.group is not None
        eps = TRL_EPS if self.conventions == "trl" else EPS
        if self.advantage == "gdpo" and batch.reward_parts is not None:
            (group, *parts), mine = batch.whole.gather(
                batch.group, *batch.reward_parts.detach().unbind(-1)
            )
            found = estimate_advantages(
                "gdpo", torch.stack(parts, -1), group, eps=eps, weights=batch.reward_weights
            )
            return found[mine]
        numbers, mine = batch.whole.gather(batch.rewards.detach(), batch.group, batch.lengths)
        return estimate_advantages(self.advantage, *numbers, eps=eps)[mine]

    @property
    def shapes_by_reference(self) -> bool:
        """Whether rewards are edited by the reference's log-probs, before advantages are there."""
        return any(
            "ref_logp" in method.required() and type(method).shape is not Method.shape
            for method in self.methods
        )

    def resamples(self) -> Resample | None:
        """Further rollouts that this iteration needs, once it was observed; None for none."""
        asked = (method.resamples(state) for _, method, state in self._chain())
        return next((found for found in asked if found is not None), None)

    def influence_sample(self) -> float | None:
        """The largest share of the prompts whose influences a method needs; None for none."""
        asked = [method.influence_sample() for method in self.methods]
        return max((share for share in asked if share is not None), default=None)

    @torch.no_grad()
    def chosen(self, batch: TokenBatch) -> TokenBatch:
        """A graded batch (outcome advantages [B], `idle`) as the methods choose from it."""
        for name, method, state in self._chain():
            if type(method).choose is not Method.choose:
                self._check_fields(name, method, batch)
                before = _per_token(batch)
                batch = returned(method.choose(batch, state), batch, batch, f"{name}.choose")
                batch = _note_edits(batch, before)
        return batch

    @torch.no_grad()
    def prepare(self, batch: TokenBatch) -> TokenBatch:
        """Once per rollout batch: advantages [B, T], float32 or better, edited by the methods.

        Advantages already in the batch ([B] or [B, T]) are taken as they are; those of idle
        rollouts become 0, and methods do not see these.

        Raises:
            ValueError: a field that a method needs is missing.
        """
        if batch.advantages is None:
            batch = self.outcome_advantages(batch)
        if batch.idle is None:
            return self._prepared(batch)
        rows, A, edited = (~batch.idle).nonzero()[:, 0], torch.zeros_like(_per_token(batch)), None
        live = batch[rows].replace(idle=None)
        if live.whole.sequences:  # on some rank
            part = self._prepared(live)
            assert part.advantages is not None
            A[rows] = part.advantages
            if part.edited is not None:
                edited = torch.zeros_like(batch.mask)
                edited[rows] = part.edited
        return batch.replace(advantages=A, edited=edited)

    def _prepared(self, batch: TokenBatch) -> TokenBatch:
        """`prepare` of a batch without idle rollouts."""
        batch = batch.replace(advantages=_per_token(batch))
        before = batch.advantages
        assert before is not None
        for name, method, state in self._chain():
            self._check_fields(name, method, batch)
            batch = returned(method.prepare(batch, state), batch, batch, f"{name}.prepare")
        return batch if batch.advantages is before else _note_edits(batch, before)

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
            advantages=_per_token(batch),
        )
        sampled, batch = batch, batch.without_idle()
        assert batch.advantages is not None
        dtype = batch.advantages.dtype
        one = torch.ones((), dtype=dtype, device=batch.mask.device)
        terms = Terms(
            advantage=batch.advantages,
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
        for name, method, state in self._chain():
            self._check_fields(name, method, batch)
            planned = method.plan(batch, terms, state, generator)
            terms = returned(planned, terms, batch, f"{name}.plan")
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
        metrics = loss_metrics(batch, terms, policy, ratio)
        return LossOutput(loss, per_token, terms, {"loss/total": loss.detach(), **metrics})

    @torch.no_grad()
    def local(self, batch: TokenBatch, terms: Terms) -> Terms:
        """The terms of these rollouts after what methods read of their current log-probs."""
        for name, method, state in self._chain():
            if type(method).local is not Method.local:
                now = batch.replace(logp=at_least_float32(batch.logp.detach()))
                made = method.local(now, terms, state)
                terms = returned(made, terms, batch, f"{name}.local")
        return terms

    def observe(
        self,
        *,
        entropy: float,
        nll: float | None = None,
        progress: float | None = None,
        perplexity: float | None = None,
        stderr: float | None = None,
    ) -> None:
        """Move the controllers, once per iteration, before its updates.

        Args:
            entropy: masked mean of the exact entropy over the full rollout batch, nats.
            nll: masked mean of -lp0 over the same tokens, nats.
            progress: 0 at the first iteration of the run, 1 at the last.
            perplexity: mean over responses of exp(their mean -lp0).
            stderr: standard error of `entropy` between prompts, nats; NaN or None where unknown.

        Raises:
            ValueError: not a finite number, or a method needs a signal that is not given.
        """
        given = {
            "entropy": entropy, "nll": nll, "progress": progress, "perplexity": perplexity,
        }  # fmt: skip
        given["stderr"] = None if stderr is not None and math.isnan(stderr) else stderr
        signals = {name: None if x is None else float(x) for name, x in given.items()}
        for name, value in signals.items():
            if value is not None and not math.isfinite(value):
                raise ValueError(f"Objective.observe: {name} is {value}; need a number")
        if signals["progress"] is not None and not 0 <= signals["progress"] <= 1:
            raise ValueError(f"Objective.observe: progress is {progress}; it goes from 0 to 1")
        if any(method.schedules for method in self.methods):
            self._move(signals["progress"])
        seen = Observation(
            float(entropy), nll=signals["nll"], progress=signals["progress"],
            perplexity=signals["perplexity"], stderr=signals["stderr"],
        )  # fmt: skip
        self.states = [method.observe(state, seen) for _, method, state in self._chain()]

    def _move(self, progress: float | None) -> None:
        """Scheduled parameters as they are at this time of the run."""
        if progress is None:
            raise ValueError(
                "Objective.observe: a schedule needs `progress`, which this trainer does not "
                "report; pass it: observe(entropy=..., progress=...)"
            )
        self.methods = tuple(at(method, progress) for method in self.methods)
        for i, method in enumerate(self.methods):
            if method.schedules and isinstance(method, Controlled):
                self.states[i] = method.init()  # a fixed coefficient

    def metrics(self) -> dict[str, float]:
        """The controllers' figures now, and scheduled parameters: `control/...`."""
        out: dict[str, float] = {
            f"control/{name}_{key}": float(getattr(method, key))
            for name, method, _ in self._chain()
            for key in method.schedules
        }
        for name, method, state in self._chain():
            for key, value in method.metrics(state).items():
                group, _, rest = key.partition("/")
                # two methods may have a coefficient of one name: the later says whose it is
                clash = key in out and out[key] != value
                out[f"{group}/{name}_{rest}" if clash else key] = value
        return out

    def describe(self) -> dict[str, Any]:
        """All that decides what is trained, as plain data: estimator, aggregation, parameters."""
        chain = zip(self.names, self.methods, strict=True)
        other = {} if self.conventions == "entrostat" else {"conventions": self.conventions}
        return other | {
            "advantage": self.advantage,
            "aggregation": self.aggregation,
            "max_length": self.max_length,
            "methods": [
                {"name": name, **dataclasses.asdict(method)}
                | {key: text for key, (text, _) in method.schedules.items()}
                for name, method in chain
            ],
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain data (JSON) that `load_state_dict` restores exactly."""
        return {
            "objective": self.describe(),
            "states": [None if s is None else s.to_dict() for s in self.states],
        }

    def load_state_dict(self, data: dict[str, Any]) -> None:
        """Restore what `state_dict` gave.

        Raises:
            ValueError: it is the state of another objective: other methods, or other parameters.
        """
        self.states = restored(data, self.describe(), self.names, self.methods)

    def _chain(self) -> Iterable[tuple[str, Method, Any]]:
        return zip(self.names, self.methods, self.states, strict=True)

    @staticmethod
    def _check_fields(name: str, method: Method, batch: TokenBatch) -> None:
        for need in method.required():
            if getattr(batch, need) is None:
                raise ValueError(missing(f"`{name}`", need))


def _note_edits(batch: TokenBatch, before: Tensor) -> TokenBatch:
    """The batch; tokens whose advantage differs from `before` [B, T] are among its `edited`."""
    moved = _per_token(batch) != before
    return batch.replace(edited=moved if batch.edited is None else batch.edited | moved)


def _per_token(batch: TokenBatch) -> Tensor:
    """Advantages as [B, T], float32 or better, 0 at mask 0."""
    A = batch.advantages
    assert A is not None
    A = at_least_float32(A.detach())
    dtype = torch.promote_types(A.dtype, at_least_float32(batch.logp).dtype)
    A = A.to(dtype)
    return torch.where(batch.mask, A if A.ndim == 2 else A.unsqueeze(-1), 0)


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
    found = resolve(method, params, advantage, aggregation)
    objective = Objective(
        found.methods, found.names, found.advantage, found.aggregation, max_length, conventions
    )
    objective.check_updates(updates or 1)
    return objective


__all__ = ["Aggregation", "LossOutput", "Objective", "make_objective"]
