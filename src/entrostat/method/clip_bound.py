"""A clip bound as a knob: how far a token's ratio may go before its gradient ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from ..control import Range
from ..core.batch import Terms, TokenBatch
from .base import one_of
from .controlled import Controlled, Law, learnt_law


@dataclass(frozen=True)
class ClipBound(Controlled):
    """One clip bound of the surrogate, moved by a controller on a logarithmic scale.

    The surrogate's own bound on that side is replaced by that of the controller (ours; the levers
    are PAR's, Sec. 6). `adapo` is REPO's own controller of the upper one, of a sequence's ratio
    too. Both sides may stand in one chain.

    Parameters:
        side: "high", in [.02, 3] from .28, or "low", in [.02, .95] from .2.
        controller: "thermostat".
        target: nats per token; None takes that of the first iteration, "0.8x" a
            share of it; also schedules (docs/thermostat.md).
    """

    side: Literal["low", "high"] = "high"
    controller: Literal["thermostat"] = "thermostat"
    target: float | str | None = None

    paper: ClassVar[str] = "ours; PAR 6"
    reads_current: ClassVar[bool] = False
    idle_on_policy: ClassVar[str] = "its clip never acts"
    contradicts: ClassVar[dict[str, str]] = {
        "reinforce": "contradict each other: without a ratio there is no clip to move",
        "gspo": (
            "contradict each other: a sequence's ratio leaves 1 by some 1e-4, so that a bound from "
            "0.02 on never acts on it (adapo with controller='thermostat' moves gspo's upper one)"
        ),
    }

    def __post_init__(self) -> None:
        one_of("clip_bound", "side", self.side, ("low", "high"))
        one_of("clip_bound", "controller", self.controller, ("thermostat",))
        object.__setattr__(self, "actuator", (f"clip_{self.side}", None))
        self.check_law("clip_bound", "the bound")

    def controls(self) -> str:
        """The bound."""
        return "the upper clip bound" if self.side == "high" else "the lower clip bound"

    def law(self) -> Law | None:
        """What moves the bound."""
        if self.side == "high":
            return learnt_law(self.controller, 0.28, Range(0.02, 3.0, scale="log"), self.target)
        return learnt_law(self.controller, 0.2, Range(0.02, 0.95, -1, "log"), self.target)

    def plan(
        self, batch: TokenBatch, terms: Terms, state: Any, generator: torch.Generator | None
    ) -> Terms:
        """Move the bound of every token's ratio."""
        if self.side == "high":
            return terms.replace(ratio_max=torch.full_like(terms.ratio_max, 1 + state.value))
        return terms.replace(ratio_min=torch.full_like(terms.ratio_min, 1 - state.value))
