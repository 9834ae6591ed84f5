"""The method `thermostat`: solves for a multiplier, or moves a coefficient by Kalman filters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..control import Multiplier, parse_target
from ..core.batch import Terms, TokenBatch
from .base import Rng, unread
from .controlled import Controlled

Knob = Literal["multiplier", "zeta", "zeta_d", "entropy_coef", "balance"]
# the method that has the knob, which starts at 0
KNOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "zeta": ("repo_r", {"zeta": 0.0}),
    "zeta_d": ("repo_d", {"zeta": 0.0}),
    "entropy_coef": ("entropy_bonus", {"coef": 0.0}),
    "balance": ("opefo", {}),
}


@dataclass(frozen=True)
class HeldEntropy(Controlled):
    """The thermostat (ours): holds the mean entropy at a target.

    Before every update it solves for the multiplier c of an entropy bonus, loss - c * (masked mean
    of H), such that AdamW's coming steps change entropy by the wanted amount. It needs one gradient
    of the mean entropy per iteration. `control.multiplier` has the equations, docs/thermostat.md
    the measurements.

    Parameters:
        target: entropy to hold: nats per token (0.7), a share of the first iteration's ("0.8x";
            None is "1x"), a schedule over the run ("linear 1x 0.6x", "cosine 1x 0.6x",
            "points 0:1x 0.5:0.8x 1:0.6x").
        solve: "sample" takes the gradient at most once per iteration (the lab and TRL on a
            minibatch, veRL on a fourth of one); "exact" takes it at every update and finds the root
            of AdamW's step in closed form (the lab and TRL).
        side: "both", or "below" for a multiplier that is never negative: entropy is kept from
            falling below the target, but not pushed down to it.
        knob: "multiplier"; or a coefficient that a bank of Kalman filters moves, without a
            gradient, by its effect learnt online: "zeta" of bidirectional REPO-R in [-1, 1];
            "zeta_d" of REPO-D in [0, 10]; "entropy_coef" in [-.5, .5]; "balance", an offset of
            OPEFO's lam in [-1, 1].
    """

    target: float | str | None = None
    solve: Literal["sample", "exact"] = "sample"
    side: Literal["both", "below"] = "both"
    knob: Knob = "multiplier"

    paper: ClassVar[str] = "ours"
    needs: ClassVar[tuple[str, ...]] = ("entropy", "old_entropy")
    reads_current: ClassVar[bool] = False
    penalises: ClassVar[bool] = True
    actuator: ClassVar[tuple[str, str | None]] = ("multiplier", None)
    coefficient: ClassVar[str] = "the entropy coefficient"

    @property
    def _who(self) -> str:
        return "thermostat"

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_target(self.target, self._who)
        if self.knob != "multiplier":
            unread(self, f"knob={self.knob!r}", ("solve", "side"))

    @property
    def stands_for(self) -> tuple[str, dict[str, Any]] | None:
        """The method that has the knob, with its parameters; None for the multiplier."""
        if self.knob == "multiplier":
            return None
        name, given = KNOBS[self.knob]
        target = {"target": "1x" if self.target is None else self.target}
        return name, given | target | {"controller": "thermostat"}

    def law(self) -> Multiplier:
        return Multiplier(self.target, self.side)

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        """Add the bonus, except with solve="exact", whose bonus is not in the loss."""
        return terms if self.solve == "exact" else terms.add_entropy(state.value)
