"""Rounds a share of tokens to a count; `entrostat.core.distributed` selects the tokens."""

from __future__ import annotations

import math

import torch

_ROUNDING = 1e-9


def floor(x: float) -> int:
    """Floor of x up to rounding errors: .29 * 100 is 28.999999999999996."""
    return math.floor(x + _ROUNDING)


def ceiling(x: float) -> int:
    """Ceiling of x up to rounding errors."""
    return math.ceil(x - _ROUNDING)


def share_of(fraction: float, count: int) -> int:
    return max(1, floor(fraction * count))


def rounded_share(
    fraction: float, count: int, at_least: int, generator: torch.Generator | None
) -> int:
    """A share of `count` tokens as a count, rounded at random so that its mean is exact.

    x = fraction * count; floor(x) + 1 with probability x - floor(x), else floor(x).

    `at_least`: 0, or k for max(k, floor(x)) without randomness. Equal generators give equal counts,
    also across ranks; nothing is drawn if x is whole.
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
