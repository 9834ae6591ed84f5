"""The gradient of the mean entropy in the lab, for the thermostat's multiplier.

Shapes: n rollouts of a minibatch, T completion tokens at most.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...control.adamw import Coming
from ...core.batch import TokenBatch
from ...models.rollout import Sequences
from ..hold import Hold, response, sample
from .state import State


def look(
    state: State, hold: Hold, batch: TokenBatch, sequences: Sequences,
    generator: torch.Generator,
) -> None:  # fmt: skip
    """Take the gradient of the mean entropy before an update, from some of its rollouts.

    Args:
        state: the run's.
        hold: takes note of it.
        batch: [n, T] the minibatch.
        sequences: its rows.
        generator: chooses the rollouts.
    """
    state.optimizer.zero_grad(set_to_none=True)  # the last update's, for memory
    assert batch.old_entropy is not None
    rows, weights = (x.to(batch.mask.device) for x in sample(batch.old_entropy.sum(1), generator))
    gradient, size = Gradient(state), state.config.optim.micro_batch
    for piece, weight in zip(rows.split(size), weights.split(size), strict=True):
        stats = state.policy.token_stats(sequences[piece], state.config.sampling.temperature)
        gradient.add(stats.entropy * weight[:, None], batch[piece], batch.mask.sum(), keep=False)
    found = response(state.optimizer, gradient.parameters, gradient.values)
    hold.look(state.optimizer, found)


def solve(state: State, hold: Hold, entropy: Gradient) -> None:
    """Decide on the multiplier of the coming update and add its part to the gradient.

    Args:
        state: the run's, each parameter with the objective's gradient.
        hold: its multiplier.
        entropy: gradient of the minibatch's mean entropy.
    """
    loss = [torch.zeros_like(p) if p.grad is None else p.grad for p in entropy.parameters]
    coming = Coming(state.optimizer, loss, entropy.values, state.config.optim.clip)
    if all(map(math.isfinite, coming.products)):  # else the update is skipped, or the run ends
        c = hold.solve(coming, state.config.updates)
        for p, g, h in zip(entropy.parameters, loss, entropy.values, strict=True):
            p.grad = g.sub_(h, alpha=c)


class Gradient:
    """Gradient of the mean entropy of some rollouts, of micro-batches that add up.

    Args:
        state: the run's.
    """

    def __init__(self, state: State) -> None:
        self.parameters: list[Tensor] = state.optimizer.param_groups[0]["params"]
        self.values: list[Tensor] = []
        self._scale = state.scaler

    def add(self, entropy: Tensor, batch: TokenBatch, tokens: Tensor, keep: bool) -> None:
        """Add a micro-batch.

        Args:
            entropy: [n, T] with gradient, nats.
            batch: [n, T].
            tokens: [] of all micro-batches.
            keep: the graph is needed again.
        """
        mean = torch.where(batch.mask, entropy, 0).sum() / tokens
        found = torch.autograd.grad(
            self._scale.scale(mean), self.parameters, retain_graph=keep, allow_unused=True
        )
        back = 1 / self._scale.get_scale()
        own = [
            torch.zeros_like(p) if h is None else h.mul_(back)
            for p, h in zip(self.parameters, found, strict=True)
        ]
        if self.values:
            torch._foreach_add_(self.values, own)
        else:
            self.values = own
