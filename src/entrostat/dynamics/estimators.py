"""Estimates of the entropy change of one update, token by token, up to a common positive factor.

Each treats the policy as a table of independent softmaxes, one per state, and estimates the
entropy change of the state when the sampled token is reinforced by its advantage. They differ in
the terms that they leave out.
Shapes: B sequences, T completion tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .._names import unknown
from ..core.batch import TokenBatch, at_least_float32
from ..method.cov import covariance
from ..method.opefo import entropy_change as opefo_change
from ..method.repo import entropy_change as corollary1_change
from ..method.steer import omega as steer_omega
from .tables import clipped_sides


def _field(name: str, batch: TokenBatch, field: str) -> Tensor:
    return at_least_float32(batch.need(field, f"estimator {name!r}").detach())


class _View:
    """The batch for an estimator: detached, float32 or better, [B, T]."""

    def __init__(
        self, name: str, batch: TokenBatch, low: float | None, high: float | None,
        clipped: Tensor | None,
    ):  # fmt: skip
        self.name, self.batch, self.mask = name, batch, batch.mask
        A = _field(name, batch, "advantages")
        self.A = torch.where(batch.mask, A if A.ndim == 2 else A[:, None], 0)
        self.lp, self.lp0 = _field(name, batch, "logp"), _field(name, batch, "old_logp")
        if clipped is not None:
            self.clipped = clipped & self.mask
            return
        low, high = (math.inf if bound is None else bound for bound in (low, high))
        ratio = (self.lp - self.lp0).exp()
        sides = clipped_sides(ratio, self.A, batch.policy_mask, low, high)
        self.clipped = sides["high"] | sides["low"]

    def __getattr__(self, field: str) -> Tensor:
        return _field(self.name, self.batch, field)


def _corollary1(x: _View) -> Tensor:
    old = x.batch.old_entropy is not None
    L = x.lp0 + x.old_entropy if old else x.lp + x.entropy
    return corollary1_change(x.A, L, x.lp)


def _omega(x: _View) -> Tensor:
    return -steer_omega(x.A, x.lp, x.lp0, x.entropy, x.clipped)


def _tabular(x: _View) -> Tensor:
    p, H, S2, S2L = x.lp.exp(), x.entropy, x.sum_p2, x.sum_p2_logp
    return x.A * (-p * (x.lp + H) + S2L + H * S2)


ESTIMATORS: dict[str, Callable[[_View], Tensor]] = {
    "cov": lambda x: -covariance(x.lp, x.A, x.mask),
    "cov_pg": lambda x: -covariance(x.lp, x.lp.exp() * x.A, x.mask),
    "corollary1": _corollary1,
    "omega": _omega,
    "omega_realised": lambda x: x.lp.exp() * _omega(x),
    "opefo": lambda x: opefo_change(x.A, x.lp, x.entropy),
    "tabular": _tabular,
}


def estimate(
    name: str,
    batch: TokenBatch,
    *,
    low: float | None = None,
    high: float | None = None,
    clipped: Tensor | None = None,
) -> Tensor:
    """Estimated entropy change of each token's state, up to a common positive factor.

    ============== ================================================================ ==============
    cov            -(lp - mean lp)(A - mean A)                                      COV Eq. 8
    cov_pg         -(lp - mean lp)(p A - mean(p A))                                 COV Thm 1
    corollary1     -A L p, L = lp0 + H0                                             REPO Cor. 1
    omega          -I (A/p0) p (1 - p)(lp + H)                                      STEER Eq. 2
    omega_realised -I (A/p0) p^2 (1 - p)(lp + H)                                    STEER Eq. 2
    opefo          -A (1 - p)^2 (lp + H)                                            OPEFO Eq. 6
    tabular        A [-p (lp + H) + S2L + H S2], S2 = sum pi^2, S2L = sum pi^2 log pi  exact
    ============== ================================================================ ==============

    `omega` is STEER's estimate with its importance weight, `omega_realised` the sampled token's
    term of the sum in Eq. 2. `tabular` is the exact first-order change of a softmax table when the
    gradient A (onehot - pi) of the sampled token is applied to its logits.

    Args:
        name: one of the above.
        batch: with advantages; `entropy` for the last four, `old_entropy` for corollary1 (or
            `entropy`, if the policy is still the old one); tabular also `sum_p2`, `sum_p2_logp`.
        low: lower clip bound (the ratio's is 1 - low), which determines I; None for no clip.
        high: upper clip bound (1 + high); None for no clip.
        clipped: [B, T] bool, the tokens with I = 0, instead of the bounds; `loss.clipped` returns
            them for an objective's terms.

    Returns:
        [B, T] float32 or better, 0 at mask 0, detached.

    Raises:
        ValueError: an unknown name, a missing field, bounds together with `clipped`, or `clipped`
            of another shape.
    """
    if name not in ESTIMATORS:
        raise ValueError(unknown("estimator", name, ESTIMATORS))
    if clipped is not None and (low is not None or high is not None):
        raise ValueError(
            f"estimate: clipped is given and low={low}, high={high} too; either says which tokens "
            "the clip holds, so give one"
        )
    if clipped is not None and clipped.shape != batch.mask.shape:
        raise ValueError(
            f"estimate: clipped is {list(clipped.shape)}, the batch {list(batch.mask.shape)}; give "
            "one value per token"
        )
    with torch.no_grad():
        view = _View(name, batch, low, high, clipped)
        return torch.where(batch.mask, ESTIMATORS[name](view), 0)
