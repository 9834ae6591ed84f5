"""AdamW's coming update in closed form, for the gradient g - c h: what a multiplier c would do.

    x = kappa(c) (g - c h)                       kappa: clipping to a norm
    m' = b1 m + (1 - b1) x,   v' = b2 v + (1 - b2) x^2
    s(c) = -lr (m' / (1 - b1^(t+1))) / (sqrt(v' / (1 - b2^(t+1))) + eps) - lr wd theta

which is the step of `torch.optim.AdamW` (Loshchilov and Hutter, 2019, Algorithm 2). The first-order
change of the mean entropy, whose gradient is h, is <h, s(c)>.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

EVALUATIONS = 12  # of the change, at most, to find a multiplier


@dataclass(frozen=True)
class Coming:
    """The coming update as a function of the multiplier; nothing here changes the optimizer.

    Attributes:
        optimizer: AdamW, as it stands.
        loss: g of each of its parameters, before clipping.
        entropy: h of each.
        clip: the largest norm that clipping leaves; infinite without.
    """

    optimizer: torch.optim.Optimizer
    loss: Sequence[Tensor]
    entropy: Sequence[Tensor]
    clip: float

    def products(self) -> tuple[float, float, float]:
        """<g, g>, <g, h> and <h, h>."""
        pairs = [(self.loss, self.loss), (self.loss, self.entropy), (self.entropy, self.entropy)]
        gg, gh, hh = (float(sum(map(_dot, a, b))) for a, b in pairs)
        return gg, gh, hh

    def clipping(self, c: float, products: tuple[float, float, float]) -> float:
        """kappa(c), as `torch.nn.utils.clip_grad_norm_` has it."""
        gg, gh, hh = products
        norm = max(gg - 2 * c * gh + c * c * hh, 0.0) ** 0.5
        return min(1.0, self.clip / (norm + 1e-6))

    def change(self, c: float, kappa: float, inside: float = 0.0) -> float:
        """<h, s(c)>, nats.

        Args:
            c: the multiplier.
            kappa: what clipping leaves.
            inside: so much of h is added to the momentum m first.
        """
        steps = self.steps(c, kappa, inside)
        return float(sum(map(_dot, self.entropy, steps)))

    def steps(self, c: float, kappa: float, inside: float = 0.0) -> Iterator[Tensor]:
        """s(c) of each parameter, one at a time."""
        places = iter(zip(self.loss, self.entropy, strict=True))
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                g, h = next(places)
                x = torch.sub(g, h, alpha=c).mul_(kappa)
                yield _step(self.optimizer.state.get(p, {}), group, p, x, h, inside)


def _step(
    state: dict[str, Any], group: dict[str, Any], p: Tensor, x: Tensor, h: Tensor, inside: float
) -> Tensor:
    # in place: every pass over a large model counts
    (b1, b2), lr, t = group["betas"], group["lr"], float(state.get("step", 0)) + 1
    v = x.square().mul_(1 - b2)
    m = x.mul_(1 - b1)
    if "exp_avg" in state:
        m.add_(state["exp_avg"], alpha=b1).add_(h, alpha=b1 * inside)
        v.add_(state["exp_avg_sq"], alpha=b2)
    step = m.div_(v.div_(1 - b2**t).sqrt_().add_(group["eps"])).mul_(-lr / (1 - b1**t))
    return step.sub_(p.detach(), alpha=lr * group["weight_decay"])


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vecdot(a.flatten(), b.flatten()).double()


def solve(
    change: Callable[[float], float], wanted: float, low: float, high: float, guess: float,
    tolerance: float,
) -> float:  # fmt: skip
    """C in [low, high] with change(c) = wanted, by regula falsi (Illinois); an end if none has it.

    Args:
        change: rises with c.
        wanted: what it should be.
        low: the least c.
        high: the largest.
        guess: where to begin.
        tolerance: of the change.
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
            fa /= 2  # the end that stays counts half
        b, fb = c, fc
        if abs(fb) <= tolerance:
            break
    return b
