"""AdamW's coming update in closed form, for the gradient g - c h with a multiplier c.

    x = kappa(c) (g - c h)                       kappa: clipping to a norm
    m' = b1 m + (1 - b1) x,   v' = b2 v + (1 - b2) x^2
    s(c) = -lr (m' / (1 - b1^(t+1))) / (sqrt(v' / (1 - b2^(t+1))) + eps) - lr wd theta

which is the step of `torch.optim.AdamW` (Loshchilov and Hutter, 2019, Algorithm 2). The first-order
change of the mean entropy, whose gradient is h, is <h, s(c)>.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

EVALUATIONS = 12  # of the change, at most, to find a multiplier
# elements per piece: call overhead dominates for small tensors, large ones leave the cache
PIECE = 1 << 17

# of several small parameters or a part of one, flat: p, g, h, m, v [n] each; their settings; t + 1
_Piece = tuple[Sequence[Tensor], dict[str, Any], float]


class Coming:
    """The coming update as a function of the multiplier; nothing here changes the optimizer.

    Args:
        optimizer: AdamW, in its current state.
        loss: g of each of its parameters, before clipping.
        entropy: h of each of its parameters.
        clip: the largest gradient norm after clipping; infinite without clipping.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, loss: Sequence[Tensor], entropy: Sequence[Tensor],
        clip: float,
    ) -> None:  # fmt: skip
        self.optimizer, self._clip = optimizer, clip
        self._pieces = list(_pieces(optimizer, loss, entropy))

    @cached_property
    def products(self) -> tuple[float, float, float]:
        """<g, g>, <g, h> and <h, h>."""
        rows = (tensors for tensors, _, _ in self._pieces)
        terms = [(dot(g, g), dot(g, h), dot(h, h)) for _, g, h, _, _ in rows]
        gg, gh, hh = (float(sum(each)) for each in zip(*terms, strict=True))
        return gg, gh, hh

    def clipping(self, c: float) -> float:
        """kappa(c), as in `torch.nn.utils.clip_grad_norm_`."""
        gg, gh, hh = self.products
        norm = max(gg - 2 * c * gh + c * c * hh, 0.0) ** 0.5
        return min(1.0, self._clip / (norm + 1e-6))

    def change(self, c: float, inside: float = 0.0) -> float:
        """<h, s(c)>, nats; `inside` times h is added to the momentum m first."""
        steps = zip(self._pieces, self.steps(c, inside), strict=True)
        return float(sum(dot(h, step) for ((_, _, h, *_), _, _), step in steps))

    def steps(self, c: float, inside: float = 0.0) -> Iterator[Tensor]:
        """s(c), flat, in pieces, in the order of the parameters."""
        kappa = self.clipping(c)
        for tensors, group, t in self._pieces:
            p, g, h, m, v = (x.float() if x.itemsize < 4 else x for x in tensors)
            (b1, b2), lr = group["betas"], group["lr"]
            x = torch.sub(g, h, alpha=c).mul_(kappa)
            square = x.square().mul_(1 - b2).add_(v, alpha=b2)
            mean = x.mul_(1 - b1).add_(m, alpha=b1).add_(h, alpha=b1 * inside)
            square.div_(1 - b2**t).sqrt_().add_(group["eps"])
            step = mean.div_(square).mul_(-lr / (1 - b1**t))
            yield step.sub_(p, alpha=lr * group["weight_decay"])


def _pieces(
    optimizer: torch.optim.Optimizer, loss: Sequence[Tensor], entropy: Sequence[Tensor]
) -> Iterator[_Piece]:
    gradients = iter(zip(loss, entropy, strict=True))
    for group in optimizer.param_groups:
        small: list[Sequence[Tensor]] = []
        t = size = 0.0
        for p in group["params"]:
            g, h = next(gradients)
            state = optimizer.state.get(p, {})
            m, v = (state[k] if state else torch.zeros_like(p) for k in ("exp_avg", "exp_avg_sq"))
            flat, now = [x.detach().flatten() for x in (p, g, h, m, v)], state.get("step", 0) + 1
            if small and (now != t or size + p.numel() > PIECE):
                yield [*map(torch.cat, zip(*small, strict=True))], group, t
                small, size = [], 0
            t = float(now)
            if p.numel() < PIECE:
                small.append(flat)
                size += p.numel()
            else:
                for parts in zip(*(x.split(PIECE) for x in flat), strict=True):
                    yield parts, group, t
        if small:
            yield [*map(torch.cat, zip(*small, strict=True))], group, t


def dot(a: Tensor, b: Tensor) -> Tensor:
    """<a, b> of flat tensors, float64."""
    if a.itemsize < 4:  # of 16 bits
        a, b = a.float(), b.float()
    return torch.linalg.vecdot(a, b).double()


def solve(
    change: Callable[[float], float], wanted: float, low: float, high: float, guess: float,
    tolerance: float,
) -> float:  # fmt: skip
    """Find c in [low, high] with change(c) = wanted, by regula falsi (Illinois); else an end.

    `change` rises with c; `guess` is the start value, `tolerance` the tolerance of the change.
    """
    b = min(max(guess, low), high)
    fb = change(b) - wanted
    a = low if fb > 0 else high
    if abs(fb) <= tolerance or a == b:
        return b
    fa = change(a) - wanted
    if fa * fb > 0:
        return a
    for _ in range(EVALUATIONS):
        c = b - fb * (b - a) / (fb - fa)
        fc = change(c) - wanted
        if fc * fb < 0:
            a, fa = b, fb
        else:
            fa /= 2  # Illinois: halve the value at the retained end
        b, fb = c, fc
        if abs(fb) <= tolerance:
            break
    return b
