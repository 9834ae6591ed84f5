"""ADAPO: DAPO's clip with a controlled upper bound (REPO, arXiv 2603.11682, App. B)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..control import Multiplicative
from ..core.batch import Terms, TokenBatch
from .base import Rng, within
from .controlled import Controlled, Law, Signal
from .surrogates import clip_bounds


@dataclass(frozen=True)
class Adapo(Controlled):
    """ADAPO: PPO's clip whose upper bound opens while entropy is below its target.

    -min(r A, clip(r, 1 - low, 1 + high) A); once per iteration high is multiplied by `factor` where
    entropy < target and divided by it where entropy > target, kept in [high_min, high_max]. It is
    a surrogate: it takes the place of `ppo`. `gspo_adapo` is ADAPO over GSPO.

    Parameters:
        low: lower bound.
        high: upper bound at first.
        high_min, high_max: its range.
        factor: what it is multiplied or divided by.
        target: entropy to hold, nats per token; None takes that of the first iteration, "0.8x" a
            share of it.
        ratio: "token" (PPO's) or "sequence" (GSPO's).
        signal: what is compared with the target: "exact", the mean entropy of tokens, or
            "response_mean", the mean over a response's tokens, then over responses, as the paper's.

    Ambiguity: the paper says that the idea fits GSPO and gives no range for it. In `gspo_adapo`
    `low` and the first `high` are GSPO's, and the range around `high` is as wide in proportion as
    over DAPO: [.2, .3] / .28.
    """

    low: float = within(0.2, 0)
    high: float = within(0.28, 0)
    high_min: float = 0.2
    high_max: float = 0.3
    factor: float = 1.01
    target: float | str | None = None
    ratio: Literal["token", "sequence"] = "token"
    signal: Signal = "exact"

    kind: ClassVar[Literal["surrogate", "intervention"]] = "surrogate"
    paper: ClassVar[str] = "REPO App. B"
    base: ClassVar[str] = "dapo"
    reads_current: ClassVar[bool] = False
    idle_on_policy: ClassVar[str] = "its clip never acts"
    actuator: ClassVar[tuple[str, str | None]] = ("clip_high", "high_max")
    coefficient: ClassVar[str] = "the upper clip bound"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_law("high")

    def law(self) -> Law:
        return Multiplicative(self.high, self.high_min, self.high_max, self.target, self.factor)

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        return clip_bounds(terms, self.low, state.value).replace(ratio=self.ratio)
