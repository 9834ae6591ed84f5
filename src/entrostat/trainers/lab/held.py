"""The gradient of the mean entropy in the lab, for the thermostat's multiplier.

It is that of the whole minibatch, from the forward pass of its update. Shapes: n rollouts of a
micro-batch, T completion tokens at most.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...control.adamw import Coming
from ...core.batch import TokenBatch
from ..hold import Hold, response
from .state import State


def decide(state: State, hold: Hold, entropy: Gradient) -> None:
    """Decide on the multiplier of the coming update and bring its part of the gradient up to it.

    Args:
        state: the run's, each parameter with the gradient of the loss.
        hold: its multiplier; in the loss is that of before, or none in the exact form.
        entropy: gradient of the minibatch's mean entropy.
    """
    optimizer, updates = state.optimizer, state.config.updates
    loss = [torch.zeros_like(p) if p.grad is None else p.grad for p in entropy.parameters]
    if hold.exact:
        coming = Coming(optimizer, loss, entropy.values, state.config.optim.clip)
        if not all(map(math.isfinite, coming.products)):  # the update is skipped, or the run ends
            return
        more = hold.solve(coming, updates)
    else:
        found = response(optimizer, entropy.parameters, entropy.values)
        if not all(map(math.isfinite, (found.drift, found.gain))):
            return
        before = hold.state.value
        hold.look(optimizer, found)
        hold.decide(optimizer, updates)
        more = hold.state.value - before
    for p, g, h in zip(entropy.parameters, loss, entropy.values, strict=True):
        p.grad = g.sub_(h, alpha=more)


class Gradient:
    """Gradient of the mean entropy of some rollouts, of micro-batches that add up.

    Args:
        state: the run's.
    """

    def __init__(self, state: State) -> None:
        self.parameters: list[Tensor] = state.optimizer.param_groups[0]["params"]
        self.values: list[Tensor] = []
        self._scale = state.scaler

    def add(self, entropy: Tensor, batch: TokenBatch, tokens: Tensor) -> None:
        """Add a micro-batch; its graph is kept for the loss.

        Args:
            entropy: [n, T] with gradient, nats.
            batch: [n, T].
            tokens: [] of all micro-batches.
        """
        mean = torch.where(batch.mask, entropy, 0).sum() / tokens
        found = torch.autograd.grad(
            self._scale.scale(mean), self.parameters, retain_graph=True, allow_unused=True
        )
        pairs = zip(self.parameters, found, strict=True)
        own = [torch.zeros_like(p) if h is None else h for p, h in pairs]
        if (scale := self._scale.get_scale()) != 1:
            torch._foreach_div_(own, scale)
        if self.values:
            torch._foreach_add_(self.values, own)
        else:
            self.values = own
