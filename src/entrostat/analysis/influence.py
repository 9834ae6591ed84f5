"""Who moves entropy: each token's share of what an iteration's first update does, in any host.

Shapes: B rollouts of the iteration, T completion tokens at most; R rollouts trained on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.batch import Terms, TokenBatch
from ..core.objective import Objective
from ..dynamics import adamw_preconditioner, forward_mode, functional
from ..dynamics.derivatives import directional
from ..models.policy_evaluator import PolicyEvaluator
from ..models.rollout import Sequences


@dataclass(frozen=True)
class InfluenceInput:
    """What is analysed: an iteration as its updates begin, as any host knows it.

    Attributes:
        optimizer: AdamW over what is trained, as the last iteration left it.
        lr: of the iteration's first update; None where the optimizer has it already.
        clip: norm that the gradient is clipped to; infinity for none.
        sequences: B rollouts.
        graded: of these, with outcome advantages [B] and the task's rewards.
        kept: [R] int64, the rows that are trained on; at least one.
        trained: these, prepared: advantages [R, T].
        generator: for a plan's random selections; none of the training's streams.
    """

    meter: PolicyEvaluator
    objective: Objective
    optimizer: torch.optim.Optimizer
    lr: float | None
    clip: float
    sequences: Sequences
    graded: TokenBatch
    kept: Tensor
    trained: TokenBatch
    generator: torch.Generator


def influences(subject: InfluenceInput, trained: TokenBatch, terms: Terms) -> tuple[Tensor, float]:
    """The tokens' influences on the batch's mean entropy, and what they must add up to.

    An influence is the token's share of what one AdamW step (without momentum, on all that is
    trained on, at the learning rate of the iteration's first update, its gradient norm clipped as
    configured) does to the mean entropy of the whole rollout batch, to first order:
    c_i = -(dL/dlp_i dlp_i + dL/dH_i dH_i), with d the derivative along P grad H and L the loss as
    the methods make it. They add up to <grad H, -P grad L>.

    Args:
        subject: whose policy and optimizer are read.
        trained: [R, T] under the policy as it stands.
        terms: what the methods planned for all of it.

    Returns:
        ([B, T], a number), nats; 0 where not trained.
    """
    meter, sequences, kept = subject.meter, subject.sequences, subject.kept
    parts = meter.pieces(sequences)
    of_logp, of_entropy = (
        x.new_zeros(sequences.mask.shape).index_copy(0, kept, x)
        for x in loss_gradient(subject.objective, trained, terms)
    )
    parameters = meter.policy.trained()
    leaves = list(parameters.values())
    entropy_gradient = {name: torch.zeros_like(p) for name, p in parameters.items()}
    of_loss = {name: torch.zeros_like(p) for name, p in parameters.items()}
    N = sequences.mask.sum()
    for rows in parts:
        stats = meter.stats(sequences[rows])
        loss = (of_logp[rows] * stats.logp + of_entropy[rows] * stats.entropy).sum()
        for value, total, keep in (
            (stats.entropy.sum() / N, entropy_gradient, True), (loss, of_loss, False)
        ):  # fmt: skip
            gradients = torch.autograd.grad(
                value, leaves, retain_graph=keep, materialize_grads=True
            )
            for name, g in zip(parameters, gradients, strict=True):
                total[name] += g
    norm = torch.stack(list(torch._foreach_norm(list(of_loss.values())))).norm()
    clip = float((subject.clip / (norm + 1e-6)).clamp(max=1))
    first = {name: clip * g for name, g in of_loss.items()}
    P = adamw_preconditioner(subject.optimizer, parameters, first, subject.lr)
    direction = {name: clip * P[name] * g for name, g in entropy_gradient.items()}
    predicted = -sum(
        float((direction[name].double() * of_loss[name].double()).sum()) for name in direction
    )

    start = {name: p.detach() for name, p in parameters.items()}
    shares = []
    with forward_mode(meter.policy.model):
        for rows in parts:
            part = sequences[rows]

            def both(part: Sequences = part) -> Tensor:
                stats = meter.stats(part)
                return torch.stack([stats.logp, stats.entropy])

            _, (dlp, dH) = directional(functional(meter.policy.model, both), start, direction)
            shares.append(-(of_logp[rows] * dlp + of_entropy[rows] * dH))
    return torch.cat(shares), predicted


def loss_gradient(objective: Objective, batch: TokenBatch, terms: Terms) -> tuple[Tensor, Tensor]:
    """dL/dlp and dL/dH [R, T] of the whole batch's loss, on the first update.

    `terms` are those planned for all of `batch`.
    """
    logp = batch.logp.clone().requires_grad_()
    entropy = batch.need("entropy").clone().requires_grad_()
    loss = objective.loss(batch.replace(logp=logp, entropy=entropy), terms).loss
    of_logp, of_entropy = torch.autograd.grad(loss, (logp, entropy), materialize_grads=True)
    return of_logp, of_entropy
