"""AEPO: rollouts at another temperature pull entropy to its target (arXiv 2510.08141)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..control import ControlState, Observation, held_target, parse_target, plain_target
from ..core.batch import TokenBatch
from .base import Method, Resample, within
from .controlled import control_figures
from .rounding import share_of

_RIGHT = 0.05  # a larger advantage counts as right, in the authors' code


@dataclass(frozen=True)
class Aepo(Method):
    """AEPO: also trains, by REINFORCE, on a few right rollouts sampled at another temperature.

    After the rollouts of an iteration the first `share` of its prompts are sampled again, at
    temperature `hot` while entropy is at most the target and at `cold` while it is above. The first
    right ones of these rollouts (advantage in their group above .05), at most n = max(1,
    floor(alpha B)), replace as many of the B ordinary rollouts; while entropy is above the target,
    half as many, rounded down. Their advantage is 1. Their ratios are to the policy at the ordinary
    temperature, as for all other rollouts.

    Parameters:
        target: entropy to hold, nats per token; None takes that of the first iteration, "0.8x" a
            share of it.
        hot, cold: the two temperatures.
        share: share of the prompts that are sampled again.
        alpha: largest share of the rollouts that is replaced; the authors' is 60 of 2560.

    This is not the AEPO of QwenLong-L1.5 (Shen et al. 2025) that PAR names, which stops gradients
    of samples with negative advantages.

    Source: the authors' public code; the text says the same with alpha as the weight of a second
    term. Deviations: the target is compared with the iteration's own entropy (the code: the last
    update's); zero-advantage groups do not count in the mean over tokens; without a right rollout
    nothing is replaced (the code stops). Their target is in nats (.5); None and shares are ours.
    """

    target: float | str | None = 0.5
    hot: float = within(1.2, 0, 100, above=True)
    cold: float = within(0.8, 0, 100, above=True)
    share: float = within(0.25, 0, 1, above=True)
    alpha: float = within(60 / 2560, 0, 1, above=True)

    paper: ClassVar[str] = "arXiv 2510.08141"
    needs: ClassVar[tuple[str, ...]] = ("tempered",)
    hosts: ClassVar[tuple[str, ...]] = ("lab",)
    instead: ClassVar[str] = "Its trainer has to sample at a second temperature in each iteration"

    def __post_init__(self) -> None:
        super().__post_init__()
        plain_target(self.target, "aepo")

    def init(self) -> ControlState:
        """The temperature of the second sampling; `applies` while it is `hot`."""
        return ControlState(self.hot, parse_target(self.target).fixed)

    def observe(self, state: ControlState, seen: Observation) -> ControlState:
        H = seen.entropy
        target = held_target(self.target, state.target, H)
        low = target >= H
        return ControlState(self.hot if low else self.cold, target, low)

    def resamples(self, state: ControlState) -> Resample:
        return Resample(self.share, state.value)

    def choose(self, batch: TokenBatch, state: ControlState) -> TokenBatch:
        A, again = batch.need("advantages"), batch.need("tempered")
        ordinary = (~again).nonzero()[:, 0]
        right = (again & (A > _RIGHT)).nonzero()[:, 0]
        n = min(share_of(self.alpha, len(ordinary)), len(right))
        n = n if state.applies else n // 2
        idle = batch.need("idle") | again
        idle[ordinary[:n]] = True
        idle[right[:n]] = False
        A = torch.where(again, 0, A)
        A[right[:n]] = 1
        return batch.replace(advantages=torch.where(idle, 0, A), idle=idle)

    def metrics(self, state: ControlState) -> dict[str, float]:
        return control_figures(state, second_temperature=state.value)
