"""Influence: each token's contribution to the entropy change of an iteration's first update.

Shapes: B rollouts of the iteration, T completion tokens at most; R rollouts trained on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from ..core.batch import Terms, TokenBatch
from ..core.objective import Objective
from ..core.stats import TokenStats
from ..dynamics import adamw_preconditioner, forward_mode, functional
from ..dynamics.derivatives import directional
from ..models.policy_evaluator import PolicyEvaluator
from ..models.rollout import Sequences

Gradient: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class InfluenceInput:
    """The input of an analysis: an iteration before its updates, from any trainer."""

    meter: PolicyEvaluator
    objective: Objective
    optimizer: torch.optim.Optimizer  # AdamW over the trained weights, after the last iteration
    lr: float | None  # of the first update; None if the optimizer has it already
    clip: float  # norm that the gradient is clipped to; infinity for none
    sequences: Sequences  # B rollouts
    graded: TokenBatch  # their batch, with outcome advantages [B] and the task's rewards
    kept: Tensor  # [R] int64, the rows that are trained on; at least one
    trained: TokenBatch  # the batch of these rows, prepared: advantages [R, T]
    generator: torch.Generator  # for a plan's random selections; not a stream of the training


def influences(subject: InfluenceInput, trained: TokenBatch, terms: Terms) -> tuple[Tensor, float]:
    """The tokens' influences on the batch's mean entropy, and the value that they must add up to.

    An influence is the token's contribution to the first-order change of the whole rollout batch's
    mean entropy by one AdamW step. The step has no momentum, uses all trained rows and the learning
    rate of the iteration's first update, and clips the gradient norm as configured.
    c_i = -(dL/dlp_i dlp_i + dL/dH_i dH_i), with d the derivative along P grad H and L the methods'
    loss. They add up to <grad H, -P grad L>.

    `trained` is [R, T] under the current policy, `terms` the plan for all of it. Returns [B, T] and
    a number, nats; 0 where not trained.
    """
    meter, sequences, kept = subject.meter, subject.sequences, subject.kept
    of_logp, of_entropy = (
        x.new_zeros(sequences.mask.shape).index_copy(0, kept, x)
        for x in loss_gradient(subject.objective, trained, terms)
    )
    N = sequences.mask.sum()

    def entropy_and_loss(rows: Tensor, stats: TokenStats) -> list[Tensor]:
        loss = (of_logp[rows] * stats.logp + of_entropy[rows] * stats.entropy).sum()
        return [stats.entropy.sum() / N, loss]

    entropy_gradient, of_loss = gradients(meter, sequences, entropy_and_loss)
    clip, P = clip_and_preconditioner(meter, subject.optimizer, of_loss, subject.clip, subject.lr)
    direction = {name: clip * P[name] * g for name, g in entropy_gradient.items()}
    predicted = -dot(direction, of_loss)

    start = {name: p.detach() for name, p in meter.policy.trained().items()}
    shares = []
    with forward_mode(meter.policy.model):
        for rows in meter.pieces(sequences):
            part = sequences[rows]

            def both(part: Sequences = part) -> Tensor:
                stats = meter.stats(part)
                return torch.stack([stats.logp, stats.entropy])

            _, (dlp, dH) = directional(functional(meter.policy.model, both), start, direction)
            shares.append(-(of_logp[rows] * dlp + of_entropy[rows] * dH))
    return torch.cat(shares), predicted


def gradients(
    meter: PolicyEvaluator, sequences: Sequences,
    values: Callable[[Tensor, TokenStats], list[Tensor]],
) -> list[Gradient]:  # fmt: skip
    """Gradients of quantities that add up over sequences; `values` computes those of some rows."""
    parameters, totals = meter.policy.trained(), defaultdict[int, Gradient](dict)
    for rows in meter.pieces(sequences):
        parts = values(rows, meter.stats(sequences[rows]))
        for i, value in enumerate(parts):
            found = torch.autograd.grad(
                value, list(parameters.values()), retain_graph=value is not parts[-1],
                materialize_grads=True,
            )  # fmt: skip
            for name, g in zip(parameters, found, strict=True):
                totals[i][name] = totals[i].get(name, 0) + g
    return list(totals.values())


def clip_and_preconditioner(
    meter: PolicyEvaluator, optimizer: torch.optim.Optimizer, gradient: Gradient, norm: float,
    lr: float | None,
) -> tuple[float, Gradient]:  # fmt: skip
    """The factor of clipping a gradient to `norm`, and AdamW's P for the clipped step."""
    whole = torch.stack(list(torch._foreach_norm(list(gradient.values())))).norm()
    clip = float((norm / (whole + 1e-6)).clamp(max=1))
    clipped = {name: clip * g for name, g in gradient.items()}
    return clip, adamw_preconditioner(optimizer, meter.policy.trained(), clipped, lr)


def dot(one: Gradient, other: Gradient) -> float:
    return float(sum((one[name].double() * other[name].double()).sum() for name in one))


def loss_gradient(objective: Objective, batch: TokenBatch, terms: Terms) -> tuple[Tensor, Tensor]:
    """dL/dlp and dL/dH [R, T] of the whole batch's loss, at the first update.

    `terms` is the plan for all of `batch`.
    """
    logp = batch.logp.clone().requires_grad_()
    entropy = batch.need("entropy").clone().requires_grad_()
    loss = objective.loss(batch.replace(logp=logp, entropy=entropy), terms).loss
    of_logp, of_entropy = torch.autograd.grad(loss, (logp, entropy), materialize_grads=True)
    return of_logp, of_entropy
