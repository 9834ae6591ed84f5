"""Choosing tokens over the whole minibatch: how many, at random, or by size.

Masks are [B, T] bool. Everything works on detached values.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_ROUNDING = 1e-9


def floor(x: float) -> int:
    """The integer below x, or at x up to rounding: .29 * 100 is 28.999999999999996."""
    return math.floor(x + _ROUNDING)


def share_of(fraction: float, count: int) -> int:
    """max(1, floor(fraction * count))."""
    return max(1, floor(fraction * count))


def rounded_share(
    fraction: float, count: int, at_least: int, generator: torch.Generator | None
) -> int:
    """How many of `count` tokens a share is, rounded at random so that its mean is the share.

    x = fraction * count; floor(x) + 1 with probability x - floor(x), else floor(x).

    Args:
        fraction: the share.
        count: of what.
        at_least: 0, or k for max(k, floor(x)) without chance.
        generator: the run's; None takes torch's global one. Equal generators give equal numbers, on
            every rank of a run as well. None is drawn where x is whole.
    """
    x = fraction * count
    whole = floor(x)
    if at_least > 0:
        return max(at_least, whole)
    rest = x - whole
    if rest < _ROUNDING:
        return whole
    device = None if generator is None else generator.device
    chance = torch.rand((), generator=generator, device=device, dtype=torch.float64)
    return whole + int(chance < rest)


def pick(candidates: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """[B, T] bool: `count` of the candidates (all where there are fewer), uniformly at random.

    Args:
        candidates: [B, T] bool.
        count: how many.
        generator: the run's; None takes torch's global one.
    """
    places = candidates.flatten().nonzero()[:, 0]
    if count < len(places):
        device = places.device if generator is None else generator.device
        order = torch.randperm(len(places), generator=generator, device=device)
        places = places[order[:count].to(places.device)]
    chosen = torch.zeros_like(candidates).flatten()
    chosen[places] = True
    return chosen.view_as(candidates)


def largest(values: Tensor, candidates: Tensor, count: int) -> Tensor:
    """[B, T] bool: the `count` candidates of largest value (all where there are fewer).

    Which of equal values at the threshold is left to `topk`, and may depend on their order.
    """
    count = min(count, int(candidates.sum()))
    ranked = torch.where(candidates, values, -math.inf).flatten()
    chosen = torch.zeros_like(candidates).flatten()
    chosen[ranked.topk(count, sorted=False).indices] = True
    return chosen.view_as(candidates) & candidates


def order_statistics(values: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The values [n] that would stand at `rank` and at the next place if they were sorted; []."""
    if values.device.type == "cpu":  # numpy sorts with vector instructions: a tenth of torch's time
        ranked = torch.from_numpy(np.sort(values.numpy()))
    else:
        ranked = values.sort().values
    return ranked[rank], ranked[min(rank + 1, len(values) - 1)]
