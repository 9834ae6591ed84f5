"""Terms added to the loss: entropy bonus, adaptive entropy coefficient, KL to a reference.

They act on all sampled tokens of a minibatch, including those of zero-advantage groups, which have
no part in the policy term.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ..control import (
    Additive,
    ControlState,
    Multiplicative,
    Observation,
    ProportionalIntegral,
    Range,
    Thermostat,
)
from ..core.batch import Terms, TokenBatch
from .base import Default, Method, Rng, in_range, unread, within
from .controlled import Controlled, Law, Signal, control_figures

REACH = 0.5  # end of the bonus' range under the thermostat
# parameters of the bonus that each controller ignores
_UNREAD = {
    "none": ("target", "coef_min", "coef_max", "rate", "signal"),
    "dual": ("coef", "coef_min"),
    "doubling": ("rate",),
    "thermostat": ("rate", "signal"),
}


@dataclass(frozen=True)
class EntropyBonus(Controlled):
    """Entropy bonus in the loss, with a fixed or a controlled coefficient.

    loss - coef * (masked mean of H), H the exact entropy with its gradient. The mean is over all
    sampled tokens of the minibatch, whatever the aggregation of the policy loss. With controller
    "doubling" it is REPO's baseline: the coefficient is doubled while the iteration's entropy is
    below the target and halved while above, like REPO-D's (REPO 4). Also COV App. E and PAR 3.1.
    "dual" is dual ascent on the constraint H >= target, as for SAC's temperature: once per
    iteration coef <- clip(coef + rate (target - H) / target, 0, coef_max), from 0.

    Parameters:
        coef: coefficient; the start value under a controller.
        controller: "none"; "doubling"; "dual"; "thermostat" (ours), which pushes both ways.
        coef_min, coef_max: the range of "doubling". The thermostat's default range is [-.5, .5]; a
            given coef_max makes it [-coef_max, coef_max], a given coef_min sets its lower end.
        target: entropy to hold, nats per token; None takes that of the first iteration, "0.8x" a
            share of it; the thermostat also takes schedules (docs/thermostat.md).
        rate: step of "dual": change of the coefficient for an error as large as the target.
        signal: the entropy that is compared with the target: "exact", the mean over tokens, or
            "response_mean", the mean over a response's tokens, then over responses, as in REPO.
    """

    coef: float = 1e-3
    controller: Literal["none", "doubling", "dual", "thermostat"] = "none"
    coef_min: float = Default(1e-3)
    coef_max: float = Default(10.0)
    target: float | str | None = None
    rate: float = 0.1
    signal: Signal = "exact"

    paper: ClassVar[str] = "REPO 4, COV App. E, PAR 3.1"
    needs: ClassVar[tuple[str, ...]] = ("entropy",)
    reads_current: ClassVar[bool] = False
    penalises: ClassVar[bool] = True
    actuator: ClassVar[tuple[str, str | None]] = ("entropy_coef", "coef_max")
    coefficient: ClassVar[str] = "the entropy coefficient"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.controller == "none":  # a negative bonus lowers entropy (PAR 3.1)
            in_range("entropy_bonus", "coef", self.coef, -1e6, 1e6)
        unread(self, f"controller={self.controller!r}", _UNREAD[self.controller])
        if self.controller == "thermostat":
            self.settle("coef_max", REACH)
            self.settle("coef_min", -self.coef_max)
        self.check_law("coef")

    def law(self) -> Law | None:
        if self.controller == "none":
            return None
        if self.controller == "doubling":
            return Multiplicative(self.coef, self.coef_min, self.coef_max, self.target)
        if self.controller == "dual":
            return ProportionalIntegral(0.0, self.coef_max, self.target, kp=0.0, ki=self.rate)
        return Thermostat(self.coef, Range(self.coef_min, self.coef_max), self.target)

    def at_first(self) -> ControlState:
        return ControlState(self.coef, None)

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        return terms.add_entropy(state.value)


@dataclass(frozen=True)
class Delayed(ControlState):
    """The state of a coefficient that an iteration's entropy moves for the next one."""

    coming: float = 0.0
    opens: bool = False


@dataclass(frozen=True)
class AdaptiveEntropy(Method):
    """Adaptive entropy coefficient: a bonus applied only while entropy is at most the target.

    Once per iteration c <- clip(c + delta if entropy < target else c - delta, coef_min, coef_max);
    then loss - c * (masked mean of H), applied only in iterations with entropy <= target
    (Skywork-OR1, arXiv 2505.22312; PAR 3.2).

    Parameters:
        target: entropy to stay above, nats per token; PAR uses .2 and the entropy before training.
            None takes that of the first iteration, "0.8x" a share of it.
        delta: step of the coefficient.
        coef: coefficient at first.
        coef_min, coef_max: its range; PAR's text gives none.
        signal: "exact" compares the mean entropy, "nll" the mean of -lp0, as in the public
            Skywork-OR1 code.
        delayed: an iteration's entropy moves the coefficient of the next one, as in TRL, whose
            first step has no bonus.

    The defaults are those of Skywork-OR1's training scripts. PAR follows them at target .2; its
    delta, start and range are missing in our copy of the paper.

    Deviation: unless `delayed`, the coefficient moves on the iteration's entropy before its
    updates, which already use the new value.
    """

    target: float | str | None = 0.2
    delta: float = 1e-4
    coef: float = 0.0
    coef_min: float = 0.0
    coef_max: float = 5e-3
    signal: Literal["exact", "nll"] = "exact"
    delayed: bool = False

    paper: ClassVar[str] = "PAR 3.2"
    needs: ClassVar[tuple[str, ...]] = ("entropy",)
    reads_current: ClassVar[bool] = False
    penalises: ClassVar[bool] = True
    actuator: ClassVar[tuple[str, str | None]] = ("entropy_coef", "coef_max")

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            self._additive()
        except ValueError as error:
            raise ValueError(f"adaptive_entropy: coef's {error}") from None

    def _additive(self) -> Additive:
        return Additive(self.coef, self.coef_min, self.coef_max, self.delta, self.target)

    def controls(self) -> str:
        return "the entropy coefficient"

    def init(self) -> ControlState:
        """The coefficient at its start value; not applied until an entropy is seen."""
        start = replace(self._additive().init(), applies=False)
        return Delayed(start.value, start.target, False, start.value) if self.delayed else start

    def observe(self, state: ControlState, seen: Observation) -> ControlState:
        entropy = seen.entropy
        if self.signal == "nll":
            entropy = seen.need("nll", "adaptive_entropy with signal='nll'")
        last = replace(state, value=state.coming) if isinstance(state, Delayed) else state
        moved = self._additive().update(last, entropy)
        assert moved.target is not None
        opens = entropy <= moved.target
        if isinstance(state, Delayed):
            return Delayed(state.coming, moved.target, state.opens, moved.value, opens)
        return replace(moved, applies=opens)

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        return terms.add_entropy(state.value if state.applies else 0.0)

    def metrics(self, state: ControlState) -> dict[str, float]:
        return control_figures(state, entropy_coef=state.value if state.applies else 0.0)


@dataclass(frozen=True)
class KlRef(Method):
    """KL penalty that keeps the policy near a frozen reference.

    loss + coef * KL, aggregated as the policy loss but over all sampled tokens. With d = lp_ref -
    lp of the sampled token, the estimators (Schulman 2020) are k1 = -d, k2 = d^2/2, k3 = exp(d) - d
    - 1. Each estimates KL(pi || ref), k2 to second order; as in TRL and veRL the estimator itself
    is differentiated. On tokens sampled from the current policy, the expected gradient is

        k1  0
        k2  that of KL(pi || ref), the KL of COV App. E: its rows in recipes/papers use k2
        k3  that of KL(ref || pi)

    Parameters:
        coef: coefficient.
        form: "k1", "k2" or "k3"; the default is veRL's low_var_kl and TRL's.
        unbiased: multiply by the importance ratio, with its gradient: under k3 the gradient is then
            the reverse KL's without bias (DeepSeek-V3.2, arXiv 2512.02556; TRL's
            use_bias_correction_kl).
    """

    coef: float = within(1e-3, 0)
    form: Literal["k1", "k2", "k3"] = "k3"
    unbiased: bool = False

    paper: ClassVar[str] = "COV App. E"
    needs: ClassVar[tuple[str, ...]] = ("ref_logp",)
    reads_current: ClassVar[bool] = False
    penalises: ClassVar[bool] = True

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        return terms.add_ref_kl(self.coef, self.form, self.unbiased)
