"""A method under test, and one pass of it over a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.batch import Terms, TokenBatch
from ..core.loss import Aggregation
from ..core.objective import Objective, make_objective
from .data import Data, contract_data, moved


@dataclass(frozen=True)
class Added:
    """Terms that a method adds to the loss, after `data.moved`.

    Attributes:
        entropy: coefficient on the mean entropy of all tokens.
        ref_kl: coefficient on the KL to the reference.
        form: its estimator.
    """

    entropy: float = 0.0
    ref_kl: float = 0.0
    form: Literal["k1", "k2", "k3"] = "k3"


@dataclass(frozen=True)
class Allowed:
    """Exceptions from the rules by a method's definition. Each is checked as well.

    Attributes:
        random: it draws tokens with the generator, fewer than the candidates.
        all_of: parameters under which that draw takes every candidate, so that the order of the
            rollouts cannot matter; None skips that check.
        added: the terms that it adds to the loss, by hand. None takes the coefficients from its
            terms, which tests less.
        equal_rewards_teach: equal nonzero rewards give a gradient; "always": equal rewards of 0
            too.
        no_gradient_alone: signs of the advantage (1, -1) for which a batch of one token gets no
            policy gradient, as with advantages normalised over all tokens.
    """

    random: bool = False
    all_of: Mapping[str, Any] | None = None
    added: Added | None = None
    equal_rewards_teach: bool | Literal["always"] = False
    no_gradient_alone: Sequence[int] = ()


class Pass:
    """One pass over a batch: prepare, plan, loss, backward.

    Attributes:
        batch: prepared, [B, T].
        terms: planned on it.
        out: `Objective.loss` of both.
        loss: [] detached.
        gradients: [B, T] each, of the loss w.r.t. the caller's logp and entropy; 0 without a
            gradient.
    """

    def __init__(self, objective: Objective, data: Data, seed: int = 5) -> None:
        self.logp = data["logp"].clone().requires_grad_()
        there = "entropy" in data
        self.entropy = data["entropy" if there else "logp"].clone().requires_grad_()
        own = {"logp": self.logp} | ({"entropy": self.entropy} if there else {})
        batch = TokenBatch(**data | own)
        self.batch = objective.prepare(batch)
        self.terms = objective.plan(self.batch, generator=torch.Generator().manual_seed(seed))
        self.out = objective.loss(self.batch, self.terms)
        self.loss = self.out.loss.detach()
        self.gradients = self.backward(self.out.loss)

    def backward(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of a loss of this pass's batch w.r.t. logp and entropy."""
        leaves = (self.logp, self.entropy)
        if not loss.requires_grad:
            return torch.zeros_like(self.logp), torch.zeros_like(self.entropy)
        lp, entropy = torch.autograd.grad(
            loss, leaves, allow_unused=True, retain_graph=True, materialize_grads=True
        )
        return lp, entropy

    @property
    def figures(self) -> dict[str, Tensor]:
        """The logged metrics: of the loss and of the methods' planning."""
        return self.out.metrics | self.terms.figures

    @property
    def touched(self) -> int:
        """The number of chosen tokens: without gradient, else with a weight other than 1."""
        frozen = self.terms.frozen
        chosen = self.terms.weight != 1 if frozen is None else frozen
        return int((chosen & self.batch.mask).sum())


class Subject:
    """A method, or a chain of methods, under test.

    Args:
        spec: an argument of `make_objective`.
        params: parameters of a single method.
        allowed: its exceptions from the rules.
    """

    def __init__(
        self, spec: Any, params: Mapping[str, Any] | None = None, allowed: Allowed | None = None
    ) -> None:
        self.spec, self.params = spec, dict(params or {})
        self.allowed = allowed or Allowed()
        self._clean: dict[Any, Pass] = {}

    def fresh(
        self, aggregation: Aggregation | None = None, max_length: int | None = None, **params: Any
    ) -> Objective:
        given = self.params | params
        return make_objective(self.spec, aggregation=aggregation, max_length=max_length, **given)

    def objective(
        self, aggregation: Aggregation = "token_mean", max_length: int | None = None
    ) -> Objective:
        return moved(self.fresh(aggregation, max_length))

    def run(
        self,
        data: Data,
        aggregation: Aggregation = "token_mean",
        max_length: int | None = None,
        seed: int = 5,
    ) -> Pass:
        return Pass(self.objective(aggregation, max_length), data, seed)

    def clean(self, aggregation: Aggregation = "token_mean", max_length: int | None = None) -> Pass:
        """The cached pass over the unmodified data, the reference for other passes."""
        key = (aggregation, max_length)
        if key not in self._clean:
            self._clean[key] = self.run(contract_data(), aggregation, max_length)
        return self._clean[key]


def equal_terms(a: Terms, b: Terms) -> bool:
    return all(_equal(value, vars(b)[name]) for name, value in vars(a).items())


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and one == other
