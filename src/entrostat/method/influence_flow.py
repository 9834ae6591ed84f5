"""Influence flow (ours): OPEFO's balance with exact influences, towards a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..control import Range, Thermostat, ThermostatState
from ..core.batch import Terms, TokenBatch
from .base import within
from .controlled import Controlled
from .opefo import entropy_change

REACH = 0.1  # of the target, per update


@dataclass(frozen=True)
class InfluenceFlow(Controlled):
    """Influence flow (ours): OPEFO's two sides, weighted by their measured effect on entropy.

    The sign of dH = -A (1 - p)^2 (lp + H) assigns a token to a side (OPEFO Eq. 6). c is its
    influence: its contribution to the first-order change of the mean entropy by the coming AdamW
    step without momentum. Step and entropy are those of the sampled prompts alone, in which a token
    counts more than in the whole batch; with sample=1 c is exact. With P the sum of c where dH > 0
    and N the sum of -c where dH < 0, sides weighted 1 + lam and 1 - lam move entropy by
    P - N + lam (P + N); so

        lam = (want + N - P) / (P + N)   in [-1, 1]; 0 where P + N <= 0

    moves it by `want`. OPEFO's lam is that for c = dH and want = 0. A thermostat sets `want`, at
    most a tenth of the target, and corrects for the errors of first order, momentum and sample.
    Strictly on-policy: pass --optim.epochs 1 --optim.minibatches 1. Logged: `influence/up`,
    `influence/down` (P and N, nats) and `influence/balance` (lam).

    Parameters:
        target: entropy to hold, nats per token; None takes that of the first iteration, "0.8x" a
            share of it; also schedules (docs/thermostat.md).
        sample: share of the prompts on which influences are measured.
    """

    target: float | str | None = None
    sample: float = within(0.25, 0, 1, above=True)

    paper: ClassVar[str] = "ours; OPEFO 5"
    needs: ClassVar[tuple[str, ...]] = ("entropy", "influence")
    hosts: ClassVar[tuple[str, ...]] = ("lab",)
    instead: ClassVar[str] = "Exact influences take passes of their own through the model"
    base: ClassVar[str] = "reinforce"
    on_policy: ClassVar[bool] = True
    actuator: ClassVar[tuple[str, str | None]] = ("entropy_step", None)
    coefficient: ClassVar[str] = "the wanted change of entropy"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_law("the change")

    def law(self) -> Thermostat:
        return Thermostat(0.0, Range(-REACH, REACH), self.target)

    def influence_sample(self) -> float:
        return self.sample

    def plan(
        self, batch: TokenBatch, terms: Terms, state: ThermostatState,
        generator: torch.Generator | None,
    ) -> Terms:  # fmt: skip
        change = entropy_change(terms.advantage, batch.logp, batch.need("entropy"))
        side = torch.where(batch.mask, change, 0).sign()
        c = batch.need("influence")
        up, down = batch.whole.sum(c * (side > 0), -c * (side < 0))
        want = state.value * (state.target or 0.0)
        lam = (want + down - up) / (up + down) if up + down > 0 else 0.0
        lam = min(max(lam, -1.0), 1.0)
        found = {"up": up, "down": down, "balance": lam}
        figures = {f"influence/{name}": terms.count.new_tensor(x) for name, x in found.items()}
        return terms.replace(
            weight=terms.weight * (1 + lam * side), figures=terms.figures | figures
        )
