"""STARE: unlikely tokens with A > 0 weigh more while entropy is low (arXiv 2606.19236)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from ..control import ControlState, Observation, held_target, parse_target, plain_target
from ..core.batch import Terms, TokenBatch, at_least_float32
from .base import Method, unread, within
from .controlled import control_figures
from .rounding import ceiling


@dataclass(frozen=True)
class StareState(ControlState):
    """`value` is W, `damp` is M; `applies` whether the gate is open."""

    damp: float = 1.0


@dataclass(frozen=True)
class Stare(Method):
    """STARE: below a target entropy, weights the least likely tokens of each advantage sign.

    s = -lp. L+ are the max(1, ceil(top n)) tokens of largest s among the n with A > 0 in the
    minibatch, L- likewise where A < 0. While the iteration's entropy is below the target, policy
    losses on L+ are weighted by W and, in variant C2, those on L- by M; else all by 1. With alpha
    above 0 the weights move once per iteration, before they are used:

        W <- clip(W + alpha sign(target - H), 1, most)
        M <- clip(M - alpha sign(target - H), least, 1)

    Parameters:
        target: entropy below which it acts, nats per token; None takes that of the first iteration,
            "0.8x" a share of it.
        top: share of the tokens of one sign.
        variant: "O1" weighs L+ alone; "C2" both.
        W: weight on L+; the authors' is 1.1, and 1.05 for 14B and 32B.
        M: weight on L- of C2.
        alpha: step of the weights; 0 keeps them. Their adaptive one is .01.
        most, least: upper end of W's range, lower end of M's.

    Source: the abstract and the authors' code; the text itself was not available. Deviations: their
    code ranks in each micro-batch, here over the whole minibatch, with ties broken at random; its
    dual clip at 10 and its resampling of zero-advantage groups are left out. Their target is in
    nats (.3); None and shares are ours.
    """

    target: float | str | None = 0.3
    top: float = within(0.1, 0, 1, above=True)
    variant: Literal["O1", "C2"] = "O1"
    W: float = within(1.1, 0)
    M: float = within(0.9, 0)
    alpha: float = within(0.0, 0)
    most: float = within(1.5, 1)
    least: float = within(0.5, 0, 1)

    paper: ClassVar[str] = "arXiv 2606.19236"
    base: ClassVar[str] = "clip_higher"
    actuator: ClassVar[tuple[str, str | None]] = ("stare_weight", "most")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant == "O1":
            unread(self, "variant='O1'", ("M",))
        if not self.alpha:
            unread(self, "alpha=0", ("most", "least"))
        if self.alpha and not (1 <= self.W <= self.most and self.least <= self.M <= 1):
            raise ValueError(
                f"stare: with alpha above 0, W must be in [1, {self.most:g}] and M in "
                f"[{self.least:g}, 1], got {self.W} and {self.M}"
            )
        plain_target(self.target, "stare")

    def controls(self) -> str | None:
        return "the weight of surprising tokens" if self.alpha else None

    def init(self) -> StareState:
        """The weights at their start values; not applied until an entropy is seen."""
        return StareState(self.W, parse_target(self.target).fixed, applies=False, damp=self.M)

    def observe(self, state: StareState, seen: Observation) -> StareState:
        H = seen.entropy
        target = held_target(self.target, state.target, H)
        step = self.alpha * ((target > H) - (target < H))
        W, M = state.value, state.damp
        if step:
            W, M = min(max(W + step, 1.0), self.most), min(max(M - step, self.least), 1.0)
        return replace(state, value=W, damp=M, target=target, applies=target > H)

    def plan(
        self, batch: TokenBatch, terms: Terms, state: StareState, generator: torch.Generator | None
    ) -> Terms:
        if not state.applies:
            return terms
        W, M = self._weights(state)
        weight, surprisal = terms.weight, -at_least_float32(batch.logp.detach())
        sides = [(terms.advantage > 0, W)]
        if self.variant == "C2":
            sides.append((terms.advantage < 0, M))
        for side, factor in sides:
            candidates = batch.mask & side
            count = ceiling(self.top * batch.whole.count(candidates))
            if factor != 1 and count:
                chosen = batch.whole.largest(surprisal, candidates, count, generator)
                weight = torch.where(chosen, factor * weight, weight)
        return terms.replace(weight=weight)

    def _weights(self, state: StareState) -> tuple[float, float]:
        """Current W and M; without a step they are the parameters, which may have a schedule."""
        return (state.value, state.damp) if self.alpha else (self.W, self.M)

    def metrics(self, state: StareState) -> dict[str, float]:
        """`control/stare_weight`, with C2 `control/stare_damp` (1 while the gate is closed)."""
        W, M = self._weights(state) if state.applies else (1.0, 1.0)
        damp = {"stare_damp": M} if self.variant == "C2" else {}
        return control_figures(state, stare_weight=W, **damp)
