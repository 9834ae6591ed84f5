"""The mathematics of token statistics: values and gradients from a few sums over the vocabulary.

With z' = z - M <= 0 measured from the largest logit M, and every sum over all tokens but that one,

    rest   = sum exp z'          log p_j       = z'_j - log1p(rest)
    slope  = sum z' exp z'       H             = log1p(rest) - slope / (1 + rest)
    rest2  = sum exp 2z'         sum p^2       = (1 + rest2) / (1 + rest)^2
    slope2 = sum z' exp 2z'      sum p^2 log p = (slope2 - log1p(rest)(1 + rest2)) / (1 + rest)^2

have terms of one sign only, so they keep float32's relative accuracy however small 1 - p_max is.

Gradient of a logit, with L = log1p(rest), n = 1 + rest, p = exp(z')/n and the incoming gradients
g1 (log p), g2 (H), g3 (sum p^2), g4 (sum p^2 log p):

    dz = g1 onehot - p [g1 + g2 (z' - slope/n)]
         + p [2 g3 (p - S2) + g4 (2 p log p + p - 2 S2L - S2)]

At the largest logit of a nearly certain policy 1 - p and p - S2 cancel; there they are computed
from rest, slope, rest2 and slope2 instead.

Shapes: N tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

LOWEST = -1e20  # in place of -inf: its exponential is 0, its products are finite


@dataclass(frozen=True)
class Head:
    """Logits from hidden states: softcap(scale * (hidden weight^T + bias)) / temperature."""

    scale: float = 1.0  # factor on the head's output, as some models have
    softcap: float | None = None  # c of c tanh(logits / c)
    temperature: float = 1.0

    @property
    def factor(self) -> float:
        """The factor on the raw output, before a softcap."""
        return self.scale / (self.softcap or self.temperature)

    def apply_(self, z: Tensor) -> Tensor:
        """Turn raw outputs [...] of the head into logits, in place."""
        if self.factor != 1:
            z.mul_(self.factor)
        if self.softcap is not None:
            z.tanh_().mul_(self.softcap / self.temperature)
        return z

    def backward_(self, gradient: Tensor, z: Tensor | None) -> Tensor:
        """Turn the gradient of the logits [...] into that of the raw outputs, in place.

        `z`: the logits, overwritten; needed with a softcap only.
        """
        if self.softcap is not None:
            assert z is not None
            # d tanh = 1 - tanh^2, tanh = z temperature / softcap
            gradient.mul_(z.mul_(self.temperature / self.softcap).square_().neg_().add_(1))
            return gradient.mul_(self.scale / self.temperature)
        return gradient if self.factor == 1 else gradient.mul_(self.factor)


def once() -> None:
    """Raise in a backward pass that is to be differentiated again (create_graph=True).

    The second derivative would silently lack a part.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "token_stats cannot be differentiated twice (create_graph=True); "
            "entrostat.core.stats.reference.token_stats_from_logits can"
        )


class Sums(NamedTuple):
    """Per-token results of one pass over the vocabulary, [N] each; None without moments."""

    top: Tensor  # int64, index of the largest logit; the first on ties
    largest: Tensor  # that logit M, in the tiles' dtype
    target: Tensor  # the target's logit, in the tiles' dtype
    rest: Tensor  # float64, sum of exp(z - M) over all tokens but `top`
    slope: Tensor  # float64, sum of (z - M) exp(z - M)
    rest2: Tensor | None  # float64, sum of exp 2(z - M)
    slope2: Tensor | None  # float64, sum of (z - M) exp 2(z - M)

    @classmethod
    def empty(cls, n: int, dtype: torch.dtype, device: torch.device, moments: bool) -> Sums:
        lowest = torch.full((n,), -math.inf, dtype=dtype, device=device)
        rest, slope, rest2, slope2 = torch.zeros(4, n, dtype=torch.float64, device=device)
        return cls(
            torch.zeros(n, dtype=torch.int64, device=device), lowest, torch.zeros_like(lowest),
            rest, slope, rest2 if moments else None, slope2 if moments else None,
        )  # fmt: skip

    def of(self, rows: slice) -> Sums:
        return Sums(*(None if x is None else x[rows] for x in self))  # type: ignore[arg-type]

    def stats(self) -> tuple[Tensor, ...]:
        """The target's log p, H, and with moments sum p^2, sum p^2 log p; float64 [N] each."""
        n, L = 1 + self.rest, self.rest.log1p()
        logp = (self.target.double() - self.largest.double()) - L
        entropy = L - self.slope / n
        if self.rest2 is None or self.slope2 is None:
            return logp, entropy
        sum_p2 = (1 + self.rest2) / n.square()
        return logp, entropy, sum_p2, (self.slope2 - L * (1 + self.rest2)) / n.square()


class Coefficients(NamedTuple):
    """The gradient of the logits: e (a + b z' + e (c + d z')) with e = exp z', [N] float each.

    None is 0.
    """

    a: Tensor
    b: Tensor | None
    c: Tensor | None
    d: Tensor | None
    at_top: Tensor  # the exact value at the largest logit, its own share of g1 included
    at_target: Tensor | None  # added at the target unless that is the largest logit

    def of(self, rows: slice) -> Coefficients:
        return Coefficients(*(None if x is None else x[rows] for x in self))  # type: ignore[arg-type]


def coefficients(found: Sums, incoming: tuple[Tensor | None, ...], targets: Tensor) -> Coefficients:
    """From the gradients [N] of log p, H, sum p^2 and sum p^2 log p; None for no gradient."""
    n, L = 1 + found.rest, found.rest.log1p()
    g1, g2, g3, g4 = (None if g is None else g.double() for g in incoming)
    zero = torch.zeros_like(n)
    a, b, c, d, at_top, at_target = zero, None, None, None, zero, None
    if g1 is not None:
        hit = targets == found.top
        a, at_target = a - g1 / n, torch.where(hit, 0, g1)
        at_top = torch.where(hit, g1 * found.rest, -g1) / n
    if g2 is not None:
        slope = g2 * found.slope / n.square()
        a, b, at_top = a + slope, -g2 / n, at_top + slope
    if g3 is not None or g4 is not None:
        assert found.rest2 is not None
        assert found.slope2 is not None
        S2 = (1 + found.rest2) / n.square()
        S2L = (found.slope2 - L * (1 + found.rest2)) / n.square()
        p_minus_s2 = (found.rest - found.rest2) / n.square()  # at the top, where p = 1/n
        c = zero
        if g3 is not None:
            a, c = a - 2 * g3 * S2 / n, c + 2 * g3 / n.square()
            at_top = at_top + 2 * g3 * p_minus_s2 / n
        if g4 is not None:
            a, c = a - g4 * (2 * S2L + S2) / n, c + g4 * (1 - 2 * L) / n.square()
            d = 2 * g4 / n.square()
            bend = -2 * (L * (found.rest - found.rest2) + found.slope2) / n.square()
            at_top = at_top + g4 * (bend + p_minus_s2) / n
    dtype = found.largest.dtype
    return Coefficients(
        *(None if x is None else x.to(dtype) for x in (a, b, c, d, at_top, at_target))  # type: ignore[arg-type]
    )
