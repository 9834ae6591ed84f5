"""The gradient of the mean entropy from an update's own forward pass, in the lab and in TRL.

    entropy = Gradient(parameters)               where `hold.due`, or in the exact form
    entropy.add(...)                             of each micro-batch, before its backward pass
    decide(hold, optimizer, entropy, ...)        after the last one's, before clipping

Shapes: n rollouts of a micro-batch, T completion tokens at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ..control.adamw import Coming
from .hold import Hold, response


class Gradient:
    """Gradient of a minibatch's mean entropy, of micro-batches that add up.

    `parameters` are in the optimizer's order; `scale` multiplies a loss before its backward pass
    (fp16).
    """

    def __init__(self, parameters: Sequence[Tensor], scale: float = 1.0) -> None:
        self.parameters, self._scale = parameters, scale
        self.values: list[Tensor] = []

    def add(self, entropy: Tensor, mask: Tensor, tokens: Tensor | float) -> None:
        """Add a micro-batch's [n, T], of so many tokens of all; its graph is kept for the loss."""
        mean = torch.where(mask, entropy, 0).sum() / tokens
        found = torch.autograd.grad(
            self._scale * mean, self.parameters, retain_graph=True, allow_unused=True
        )
        pairs = zip(self.parameters, found, strict=True)
        own = [torch.zeros_like(p) if h is None else h for p, h in pairs]
        if self._scale != 1:
            torch._foreach_div_(own, self._scale)
        if self.values:
            torch._foreach_add_(self.values, own)
        else:
            self.values = own

    def over_ranks(self) -> None:
        """Add up what processes have, each with all parameters."""
        for h in self.values:
            dist.all_reduce(h)


def decide(
    hold: Hold, optimizer: torch.optim.Optimizer, entropy: Gradient, updates: int, clip: float
) -> None:
    """Decide on the multiplier of the coming update and bring its part of the gradient up to it.

    In the loss is the multiplier of before, or none in the exact form. The optimizer's parameters
    have the gradient of the loss, not scaled; `clip` is the largest norm that clipping leaves.
    """
    parameters = entropy.parameters
    loss = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    if hold.exact:
        coming = Coming(optimizer, loss, entropy.values, clip)
        if not all(map(math.isfinite, coming.products)):  # the update is skipped, or the run ends
            return
        more = hold.solve(coming, updates)
    else:
        found = response(optimizer, parameters, entropy.values)
        if not all(map(math.isfinite, (found.drift, found.gain))):
            return
        before = hold.state.value
        hold.look(optimizer, found)
        hold.decide(optimizer, updates)
        more = hold.state.value - before
    for p, g, h in zip(parameters, loss, entropy.values, strict=True):
        p.grad = g.sub_(h, alpha=more)
