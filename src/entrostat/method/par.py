"""PAR: revisiting entropy in RLVR (arXiv 2511.05993): weights by the sign of the advantage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

from ..control import Additive, ControlState, Observation
from ..core.batch import Terms, TokenBatch
from .base import Method, Rng, unread, within
from .controlled import Controlled, Law
from .rounding import floor, rounded_share

Schedule = Literal["entropy", "stage", "epoch"]


def weigh_positive(terms: Terms, weight: float) -> Terms:
    """The terms with the weight of tokens with A > 0 multiplied by `weight`."""
    return terms.replace(
        weight=torch.where(terms.advantage > 0, weight * terms.weight, terms.weight)
    )


@dataclass(frozen=True)
class PosAdv(Controlled):
    """Positive-advantage reweighting: tokens with A > 0 get weight lam, by one of three schedules.

        entropy  lam <- clip(lam + delta if entropy > target else lam - delta, 0, 1), from `weight`
        stage    0 for the first half of the training, then linearly to 1
        epoch    (e - 1)/(E - 1) in epoch e of E: from 0 in the first to 1 in the last

    Tokens with A > 0 drive entropy down, so a small lam keeps it up (PAR 7.3).

    Parameters:
        schedule: "entropy", "stage" or "epoch".
        target: entropy to hold, nats per token (schedule "entropy"); "0.8x" is a share of the first
            iteration's.
        delta: step of lam (schedule "entropy").
        weight: lam at first (schedule "entropy").
        epochs: E (schedule "epoch"); e follows from the progress of the training.

    The formulas are missing in our copy of the paper. Ours: step and start of schedule "entropy",
    E, and the range [0, 1] of lam. Public notes on the paper's third version have the step .05 and
    the start 0, which the recipe uses.
    """

    schedule: Schedule = "entropy"
    target: float | str = 0.2
    delta: float = 0.01
    weight: float = within(1.0, 0, 1)
    epochs: int = within(10, 2)

    paper: ClassVar[str] = "PAR 7.3"
    reads_current: ClassVar[bool] = False
    actuator: ClassVar[tuple[str, str | None]] = ("pos_weight", None)
    coefficient: ClassVar[str] = "the weight of positive advantages"

    def __post_init__(self) -> None:
        super().__post_init__()
        of_entropy = ("target", "delta", "weight")
        ignored = {"entropy": ("epochs",), "stage": (*of_entropy, "epochs"), "epoch": of_entropy}
        unread(self, f"schedule={self.schedule!r}", ignored[self.schedule])
        self.check_law("the weight")

    def law(self) -> Law | None:
        if self.schedule != "entropy":
            return None
        return Additive(self.weight, 0.0, 1.0, self.delta, self.target, rises="above")

    def at_first(self) -> ControlState:
        """0, under the schedules that rise with progress."""
        return ControlState(0.0, None)

    def observe(self, state: ControlState, seen: Observation) -> ControlState:
        if self.schedule == "entropy":
            return super().observe(state, seen)
        progress = seen.need("progress", f"pos_adv with schedule={self.schedule!r}")
        if self.schedule == "stage":
            return replace(state, value=max(0.0, 2 * progress - 1))
        epoch = min(self.epochs, 1 + floor(progress * self.epochs))
        return replace(state, value=(epoch - 1) / (self.epochs - 1))

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        return weigh_positive(terms, state.value)


@dataclass(frozen=True)
class PosOnly(Method):
    """Train on tokens with A >= 0 only. PAR reports that entropy collapses fastest.

    Weight 0 where A < 0 (PAR 7.2; STEER 4). The tokens left out still count in the aggregation's
    denominator. In our own runs it lost entropy fastest early and ended where GRPO did:
    docs/behaviour.md.
    """

    paper: ClassVar[str] = "PAR 7.2, STEER 4"
    reads_current: ClassVar[bool] = False
    contradicts: ClassVar[dict[str, str]] = {"neg_only": "together leave no token to train on"}

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        return terms.replace(weight=torch.where(terms.advantage < 0, 0, terms.weight))


@dataclass(frozen=True)
class NegOnly(Method):
    """Train on tokens with A <= 0 only. PAR and STEER report high entropy.

    Weight 0 where A > 0 (PAR 7.2; STEER 4). The tokens left out still count in the aggregation's
    denominator. In our own runs entropy fell, less than under GRPO, or rose once the task was
    forgotten: docs/behaviour.md.
    """

    paper: ClassVar[str] = "PAR 7.2, STEER 4"
    reads_current: ClassVar[bool] = False

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        return weigh_positive(terms, 0.0)


@dataclass(frozen=True)
class RandPosClip(Method):
    """Rand-Pos-Clip: a few random tokens with A > 0 give no gradient.

    Of the minibatch's tokens with A > 0, ratio N are chosen uniformly with the run's generator;
    their policy loss counts in the value but not in the gradient (PAR App. E.2). ratio N is rounded
    as in `clip_cov`, with which PAR compares it at an equal share.

    Parameters:
        ratio: share of the minibatch's N tokens.
        at_least: 0, or k for max(k, floor(ratio N)) tokens, as in `clip_cov`.
    """

    ratio: float = within(2e-4, 0, 1, above=True)
    at_least: int = within(0, 0)

    paper: ClassVar[str] = "PAR App. E.2"
    reads_current: ClassVar[bool] = False

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        count = rounded_share(self.ratio, int(terms.count), self.at_least, generator)
        candidates = (terms.advantage > 0) & batch.mask
        return terms.freeze(batch.whole.pick(candidates, count, generator))
