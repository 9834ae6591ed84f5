"""How many tokens a share is. Which ones: `entrostat.core.distributed`."""

from __future__ import annotations

import math

import torch

_ROUNDING = 1e-9


def floor(x: float) -> int:
    """The integer below x, or at x up to rounding: .29 * 100 is 28.999999999999996."""
    return math.floor(x + _ROUNDING)


def ceiling(x: float) -> int:
    """The integer above x, or at x up to rounding."""
    return math.ceil(x - _ROUNDING)


def share_of(fraction: float, count: int) -> int:
    return max(1, floor(fraction * count))


def rounded_share(
    fraction: float, count: int, at_least: int, generator: torch.Generator | None
) -> int:
    """How many of `count` tokens a share is, rounded at random so that its mean is the share.

    x = fraction * count; floor(x) + 1 with probability x - floor(x), else floor(x).

    `at_least`: 0, or k for max(k, floor(x)) without chance. Equal generators give equal numbers, on
    every rank of a run as well; nothing is drawn where x is whole.
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
