"""The thermostat by name: one knob that holds a target, and a slow one that relieves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..control import parse_target
from .base import Method, one_of

Knob = Literal[
    "zeta", "zeta_d", "clip_high", "clip_low", "entropy_coef", "pos_weight", "balance", "lambda_min"
]
# the method that has the knob, at rest
KNOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "zeta": ("repo_r", {"zeta": 0.0}),
    "zeta_d": ("repo_d", {"zeta": 0.0}),
    "clip_high": ("clip_bound", {"side": "high"}),
    "clip_low": ("clip_bound", {"side": "low"}),
    "entropy_coef": ("entropy_bonus", {"coef": 0.0}),
    "pos_weight": ("pos_adv", {}),
    "balance": ("opefo", {}),
    "lambda_min": ("steer", {"lambda_min": 1.0}),
}


def knob_of(name: str, coefficient: str) -> str:
    """The knob that a method's coefficient is: "zeta_d" for `repo_d`'s `control/zeta`."""
    own = (knob for knob, (method, _) in KNOBS.items() if method == name)
    return next((knob for knob in own if knob.startswith(coefficient)), coefficient)


@dataclass(frozen=True)
class HeldEntropy(Method):
    """The thermostat (ours): holds entropy at a target with a knob, and learns how on line.

    A bank of Kalman filters learns from each iteration's entropy what the knob does: how strongly,
    how late, and how entropy drifts without it; the knob goes where that says. No gain is set by
    hand. docs/thermostat.md has the equations, what was measured and what it cannot do.

    Parameters:
        target: what to hold: nats per token (0.7), a share of the first iteration's ("0.8x"; None
            is "1x"), a schedule over the run ("linear 1x 0.6x", "cosine 1x 0.6x", "points 0:1x
            0.5:0.8x 1:0.6x"), or any of these of a response's perplexity ("perplexity 0.9x").
        knob: what it moves: "zeta" of bidirectional REPO-R in [-1, 1]; "zeta_d" of REPO-D in
            [0, 10]; "clip_high" in [.02, 3] or "clip_low" in [.02, .95], the surrogate's clip;
            "entropy_coef" in [-.5, .5]; "pos_weight", of positive advantages, in [0, 2];
            "balance", an offset of OPEFO's lam in [-1, 1]; "lambda_min" of STEER in [.001, 1].
        relief: another of these, which slowly takes over what the knob carries in the mean, so that
            this stays free to move both ways; "none" without.
    """

    target: float | str | None = None
    knob: Knob = "zeta"
    relief: str = "none"

    paper: ClassVar[str] = "ours"
    needs: ClassVar[tuple[str, ...]] = ("old_entropy",)
    base: ClassVar[str] = "dapo"

    def __post_init__(self) -> None:
        one_of("thermostat", "knob", self.knob, tuple(KNOBS))
        one_of("thermostat", "relief", self.relief, ("none", *KNOBS))
        if self.relief == self.knob:
            raise ValueError(f"thermostat: relief must be another knob than {self.knob!r}")
        try:
            parse_target(self.target)
        except ValueError as error:
            raise ValueError(f"thermostat: {error}") from None

    def stands_for(self) -> list[tuple[str, dict[str, Any]]]:
        """The method that has the knob, held by a thermostat, and that of the relief."""
        name, given = KNOBS[self.knob]
        target = {"target": "1x" if self.target is None else self.target}
        chain = [(name, given | target | {"controller": "thermostat"})]
        if self.relief != "none":
            name, given = KNOBS[self.relief]
            chain.append((name, given | {"controller": "relief"}))
        return chain
