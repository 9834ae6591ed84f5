"""EntroPIC: PI control of the weights of likely tokens by their advantage's sign (2511.15248)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..control import ControlState, Observation, held_target, parse_target, plain_target
from ..core.batch import Terms, TokenBatch
from .base import Method, Rng, within
from .controlled import control_figures


@dataclass(frozen=True)
class EntropicState(ControlState):
    """`value` is alpha; `integral` the sum of the errors of the iterations before, nats."""

    integral: float = 0.0


@dataclass(frozen=True)
class Entropic(Method):
    """EntroPIC: with entropy above target, likely right tokens weigh more, likely wrong ones less.

    With e = H - target, once per iteration, for tokens with pi(y_t) > threshold:

        alpha = clip(kp e + ki (sum of earlier e), -1, 1)
        weight 1 + alpha where A > 0, 1 - alpha where A < 0

    Parameters:
        target: entropy to hold, nats per token; None takes that of the first iteration, "0.8x" a
            share of it.
        kp: gain of the error, 1 / nats.
        ki: gain of the sum, 1 / nats.
        threshold: probability above which a token is likely.

    Source: the authors' code and the abstract; the text itself was not available. Deviations: their
    code adds alpha times the mean over likely tokens of the unclipped -ratio |A|; here the clipped
    policy term is weighted, and its mean stays over all tokens. Their alpha is computed in each
    micro-batch from the current policy's entropy; here once per iteration. The targets None and
    "0.8x" are ours. The sum of errors is unbounded, as in their code.
    """

    target: float | str | None = None
    kp: float = within(1.0, 0)
    ki: float = within(0.01, 0)
    threshold: float = within(0.95, 0, 1)

    paper: ClassVar[str] = "arXiv 2511.15248"

    def __post_init__(self) -> None:
        super().__post_init__()
        plain_target(self.target, "entropic")

    def controls(self) -> str:
        return "the weights of likely tokens"

    def init(self) -> EntropicState:
        return EntropicState(0.0, parse_target(self.target).fixed)

    def observe(self, state: EntropicState, seen: Observation) -> EntropicState:
        target = held_target(self.target, state.target, seen.entropy)
        error = seen.entropy - target
        alpha = min(max(self.kp * error + self.ki * state.integral, -1.0), 1.0)
        return EntropicState(alpha, target, state.applies, state.integral + error)

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        likely = batch.logp > (math.log(self.threshold) if self.threshold else -math.inf)
        factor = torch.where(likely, 1 + state.value * terms.advantage.sign(), 1)
        return terms.replace(weight=terms.weight * factor)

    def metrics(self, state: EntropicState) -> dict[str, float]:
        return control_figures(state, alpha=state.value)
