"""Who moves entropy: each token's share of what an iteration's first update does, in any host.

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
    """What is analysed: an iteration as its updates begin, as any host knows it."""

    meter: PolicyEvaluator
    objective: Objective
    optimizer: torch.optim.Optimizer  # AdamW over what is trained, as the last iteration left it
    lr: float | None  # of the first update; None where the optimizer has it already
    clip: float  # norm that the gradient is clipped to; infinity for none
    sequences: Sequences  # B rollouts
    graded: TokenBatch  # of these, with outcome advantages [B] and the task's rewards
    kept: Tensor  # [R] int64, the rows that are trained on; at least one
    trained: TokenBatch  # these, prepared: advantages [R, T]
    generator: torch.Generator  # for a plan's random selections; none of the training's streams


def influences(subject: InfluenceInput, trained: TokenBatch, terms: Terms) -> tuple[Tensor, float]:
    """The tokens' influences on the batch's mean entropy, and what they must add up to.

    An influence is the token's share of what one AdamW step (without momentum, on all that is
    trained on, at the learning rate of the iteration's first update, its gradient norm clipped as
    configured) does to the mean entropy of the whole rollout batch, to first order:
    c_i = -(dL/dlp_i dlp_i + dL/dH_i dH_i), with d the derivative along P grad H and L the loss as
    the methods make it. They add up to <grad H, -P grad L>.

    `trained` is [R, T] under the policy as it stands, `terms` what the methods planned for all of
    it. Returns [B, T] and a number, nats; 0 where not trained.
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
    """Gradients of figures that add up over sequences; `values` are those of some rows."""
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
    """What clipping to a `norm` leaves of a gradient, and AdamW's P for the step on that."""
    whole = torch.stack(list(torch._foreach_norm(list(gradient.values())))).norm()
    clip = float((norm / (whole + 1e-6)).clamp(max=1))
    clipped = {name: clip * g for name, g in gradient.items()}
    return clip, adamw_preconditioner(optimizer, meter.policy.trained(), clipped, lr)


def dot(one: Gradient, other: Gradient) -> float:
    return float(sum((one[name].double() * other[name].double()).sum() for name in one))


def loss_gradient(objective: Objective, batch: TokenBatch, terms: Terms) -> tuple[Tensor, Tensor]:
    """dL/dlp and dL/dH [R, T] of the whole batch's loss, on the first update.

    `terms` are those planned for all of `batch`.
    """
    logp = batch.logp.clone().requires_grad_()
    entropy = batch.need("entropy").clone().requires_grad_()
    loss = objective.loss(batch.replace(logp=logp, entropy=entropy), terms).loss
    of_logp, of_entropy = torch.autograd.grad(loss, (logp, entropy), materialize_grads=True)
    return of_logp, of_entropy
