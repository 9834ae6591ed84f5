"""OPEFO: on-policy entropy flow optimisation (arXiv 2605.11491)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..control import Range, Thermostat
from ..core.batch import Terms, TokenBatch
from .base import Rng, unread, within
from .controlled import Controlled, Law

Mode = Literal["adaptive", "static", "plus_only", "minus_only"]


def entropy_change(advantage: Tensor, logp: Tensor, entropy: Tensor) -> Tensor:
    """Entropy change dH = -A (1 - p)^2 (lp + H) of each token (OPEFO Eq. 6), up to the step size.

    All [B, T].
    """
    return -advantage * (-logp.expm1()).square() * (logp + entropy)


def balance(increase: float, decrease: float) -> float:
    """OPEFO's lam = (N- - P+)/(N- + P+) in [-1, 1] (Eq. 9); 0 if both are 0.

    P+ is the sum of the positive changes, N- the sum of the negative changes' magnitudes.
    """
    total = increase + decrease
    return (decrease - increase) / total if total > 0 else 0.0


@dataclass(frozen=True)
class Opefo(Controlled):
    """OPEFO: tokens that raise entropy and tokens that lower it are weighted to balance.

    dH_t = -A (1 - p)^2 (lp + H); P+ and N- are the sums of its positive values and of its negative
    magnitudes over the minibatch. lam = (N- - P+)/(N- + P+); tokens with dH > 0 are weighted
    1 + lam, those with dH < 0 by 1 - lam, so that the weighted flow is zero (OPEFO Eqs. 6 to 9).
    Strictly on-policy: one update per rollout batch; pass --optim.epochs 1 --optim.minibatches 1.
    Logged, as in every run: `flow/increase` and `flow/decrease` (P+ and N- per token before
    weighting) and `flow/balance` (the lam that balances them).

    Parameters:
        mode: "adaptive"; the paper's ablations (Table 2) are "static" (a fixed lam), "plus_only"
            and "minus_only" (the adaptive lam on one side, weight 1 on the other).
        lam: the coefficient of mode "static".
        controller: "none"; "thermostat" (ours) adds an offset in [-1, 1] to the lam of each update
            and clips the sum to [-1, 1]. It holds a target, while balance alone drifts.
        target: of the thermostat, nats per token; None takes that of the first iteration, "0.8x" a
            share of it; also schedules (docs/thermostat.md).
    """

    mode: Mode = "adaptive"
    lam: float = within(1e-3, -1, 1)
    controller: Literal["none", "thermostat"] = "none"
    target: float | str | None = None

    paper: ClassVar[str] = "OPEFO 5"
    needs: ClassVar[tuple[str, ...]] = ("entropy",)
    base: ClassVar[str] = "reinforce"
    on_policy: ClassVar[bool] = True
    actuator: ClassVar[tuple[str, str | None]] = ("balance", None)
    coefficient: ClassVar[str] = "the balance of the flow"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode != "static":
            unread(self, f"mode={self.mode!r}", ("lam",))
        if self.controller != "thermostat":
            unread(self, f"controller={self.controller!r}", ("target",))
        self.check_law("the balance")

    def law(self) -> Law | None:
        if self.controller == "none":
            return None
        return Thermostat(0.0, Range(-1.0, 1.0), self.target)

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        change = entropy_change(terms.advantage, batch.logp, batch.need("entropy"))
        change = torch.where(batch.mask, change, 0)
        lam = self.lam
        if self.mode != "static":
            lam = balance(*batch.whole.sum(change.clamp(min=0), (-change).clamp(min=0)))
        if state is not None:
            lam = min(max(lam + state.value, -1.0), 1.0)
        lam = change.new_tensor(lam)
        up = 1 if self.mode == "minus_only" else 1 + lam
        down = 1 if self.mode == "plus_only" else 1 - lam
        weight = torch.where(change > 0, up, torch.where(change < 0, down, 1))
        return terms.replace(weight=terms.weight * weight)
