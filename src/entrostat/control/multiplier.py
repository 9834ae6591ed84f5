"""The thermostat's multiplier: solves for the entropy bonus that the coming updates need.

h is the gradient of the mean entropy on some rollouts, m is AdamW's momentum (bias-corrected). P is
its preconditioner with the expected square of the coming gradient, C the multiplier contained in m.
Before each update:

    A = <h, -P m>     first-order entropy change by an update along the current momentum
    B = <h, P h>      the same per unit of the multiplier, once momentum contains it
    c = C + (d - A) / (W B)                                                              (1)

d is the wanted entropy change of an update. An update takes only a part w = 1 - beta1 of a
gradient. W = w gives the wanted change with the very next update, but enlarges errors of A tenfold
in c. W = 1 is the multiplier for a lasting drift of d, and acts ten updates late. Entropy is to
reach its target in N = 2 iterations (`HORIZON`), or in 4 updates if that is longer. With momentum's
lag this is critically damped for W = N w / 4, N in updates. c is then the coefficient of an entropy
bonus.

h is computed once in an iteration or two, and before every update while momentum settles
(`Hold.due`). In between, A - C B (the drift without the bonus) and B are assumed constant; C is
known at every update.

A Kalman filter supplies d. Its state is the entropy H, its change D since the iteration began, and
two parts of the bias, the change per iteration that first order does not explain. One part decays
within a few iterations; the other persists and removes a constant offset. Its inputs are every
update's predicted change, the rollouts' mean entropy with its standard error, and, at an update,
the measured entropy change on tokens of this iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import ControlState, Observation
from .target import TargetSpec, parse_target

Array = NDArray[np.float64]

HORIZON = 2.0  # iterations in which entropy is to reach its target
DAMPING = 4.0  # critical damping: W = N w / DAMPING
LARGEST = 1.0  # norm of the bonus' gradient, at most, over the norm of the whole gradient
# largest wanted change per iteration, over the first entropy: fast changes of entropy cost score
RISE, FALL = 0.04, 0.05
# standard deviations per iteration, chosen by the likelihood of the entropies of earlier runs
# (docs/thermostat_record.md). Of the entropy's deviation from its prediction:
WANDER = 0.35  # relative to its standard error (with few prompts entropy moves more),
UNSURE = 0.25  # and relative to the predicted change
# of the bias, relative to the first entropy: its decaying and its lasting part
RESTLESS = np.array([0.004, 0.0004])
BIASED = np.array([0.03, 0.004])  # initial standard deviations of the same
FADING = np.array([0.6, 1.0])  # fraction of each that is left after an iteration
POOL = 10  # iterations over which the relative standard error is averaged
SLOW = 0.8  # decay per update of the running averages of gradient norm and clipping


@dataclass(frozen=True)
class Response:
    """Entropy's first-order response to the coming update, from its gradient h on some rollouts."""

    drift: float  # A, nats per update
    gain: float  # B, nats per update and unit of the multiplier
    norm: float  # norm of h


@dataclass(frozen=True)
class Momentum:
    """Weights of an optimizer's momentum after t updates."""

    # w, the weight of its own gradient in the next update: (1 - beta1) / (1 - beta1^(t + 1))
    young: float
    lasting: float  # 1 - beta1
    corrected: float  # 1 - beta1^t
    pace: float = 1.0  # the learning rate over the run's, from 0 to 1

    def lasting_part(self, updates: int) -> float:
        """W of equation (1), for this number of updates per iteration."""
        return min(1.0, max(self.young, HORIZON * updates * self.lasting / DAMPING))


@dataclass(frozen=True)
class MultiplierState(ControlState):
    """The current multiplier c (`value`) and the filter's state; entropies are in nats."""

    first: float | None = None  # the first entropy seen
    mean: tuple[float, ...] = ()  # [4] of H, D and the two parts of the bias
    covariance: tuple[float, ...] = ()  # [16] of these
    noise: float = 0.0  # standard error of an iteration's entropy over that entropy
    seen: int = 0  # number of iterations
    last: float | None = None  # the last entropy seen
    coming: float = 0.0  # predicted entropy change of the coming update
    foretold: float = 0.0  # the same, sum over this iteration's updates so far
    promised: float = 0.0  # the same, sum over the last iteration's updates
    realised: float = 0.0  # observed change: the last entropy minus the one before it
    inside: float = 0.0  # the multiplier in AdamW's momentum, before bias correction
    drift: float = 0.0  # A - C B per update: entropy change without the multiplier
    gain: float = 0.0  # B, nats per update and unit of the multiplier
    slope: float = 0.0  # norm of h
    clipping: float = 1.0  # factor of gradient clipping, from 0 to 1
    norm: float = 0.0  # norm of the gradient
    share: float = 0.0  # norm of the bonus' gradient over that of the whole, in the last update
    bound: bool = False  # whether that share was at its limit

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MultiplierState:
        read: dict[str, Any] = {key: tuple(data[key]) for key in ("mean", "covariance")}
        return cls(**{**data, **read})

    @property
    def scale(self) -> float:
        return max(self.first or 0.0, 1e-3)

    @property
    def stderr(self) -> float:
        """Standard error of an iteration's entropy, nats.

        Based on the predicted entropy: a high observation must not get less weight than a low one.
        """
        level = self.mean[0] if self.mean else self.last or 0.0
        return max(self.noise * level, 1e-3 * self.scale)

    @property
    def bias(self) -> float:
        """Change per iteration that first order does not explain, nats."""
        return sum(self.mean[2:])

    def _filtered(self, mean: Array, covariance: Array, **others: Any) -> MultiplierState:
        return replace(
            self, mean=tuple(mean.tolist()), covariance=tuple(covariance.ravel().tolist()), **others
        )

    def _known(self) -> tuple[Array, Array]:
        return np.array(self.mean), np.array(self.covariance).reshape(4, 4)

    def measured(self, place: int, value: float, variance: float) -> MultiplierState:
        """The filter after a measurement (nats, variance in nats^2) of H (`place` 0) or D (1).

        D is measured on some of the iteration's tokens: their current mean entropy minus that
        before its updates.
        """
        x, P = self._known()
        gain = P[place] / (P[place, place] + variance)
        return self._filtered(x + gain * (value - x[place]), P - np.outer(gain, P[place]))


@dataclass(frozen=True)
class Multiplier:
    """Solves for the multiplier that brings entropy to its target and keeps it there.

    Parameters:
        target: entropy to hold (`entrostat.control.target`); None takes the first entropy.
        side: "both", or "below" for a multiplier that is never negative.
    """

    target: TargetSpec = None
    side: str = "both"

    def __post_init__(self) -> None:
        parse_target(self.target)

    def init(self) -> MultiplierState:
        return MultiplierState(0.0, parse_target(self.target).fixed)

    def observe(self, state: MultiplierState, seen: Observation) -> MultiplierState:
        first = seen.entropy if state.first is None else state.first
        target = parse_target(self.target).at(seen.progress, first)
        state = replace(state, target=target, first=first)
        n, noise = min(state.seen, POOL), state.noise
        if seen.stderr is not None and seen.entropy > 0:
            relative = seen.stderr / seen.entropy
            noise = math.sqrt((n * noise**2 + relative**2) / (n + 1))
        state = replace(
            state, noise=noise, seen=state.seen + 1, last=seen.entropy, foretold=0.0,
            promised=state.foretold,
            realised=0.0 if state.last is None else seen.entropy - state.last,
        )  # fmt: skip
        if state.seen <= 2:  # the first iteration's changes had no prediction
            state = replace(state, mean=(seen.entropy, 0.0, 0.0, 0.0))
            prior = np.diag([state.stderr, 0.0, *(BIASED * state.scale)]) ** 2
            return state._filtered(np.array(state.mean), prior)
        x, P = state.measured(0, seen.entropy, state.stderr**2)._known()
        F = np.diag([1.0, 0.0, *FADING])  # an iteration begins: D is 0
        Q = np.diag([0.0, 0.0, *(RESTLESS * state.scale)]) ** 2
        return state._filtered(F @ x, F @ P @ F + Q)

    def responds(
        self, state: MultiplierState, response: Response, momentum: Momentum
    ) -> MultiplierState:
        """The state with a new gradient of the mean entropy, before the coming update."""
        drift = response.drift - state.inside / momentum.corrected * response.gain
        return replace(state, drift=drift, gain=response.gain, slope=response.norm)

    def decide(self, state: MultiplierState, momentum: Momentum, updates: int) -> MultiplierState:
        """The state after `responds`, with the multiplier of the coming update by equation (1)."""
        inside = state.inside / momentum.corrected
        drift = state.drift + inside * state.gain
        taken = max(momentum.lasting_part(updates) * state.gain, 1e-30)
        low, high = self.ends(state, state.slope)

        def multiplier(wanted: float) -> float:
            c = (inside + (wanted - drift) / taken) / state.clipping
            return min(max(c, low), high)

        bounded = self.slow(multiplier, state, updates, momentum.pace)
        more = momentum.young * (state.clipping * bounded - inside) * state.gain
        return self.decided(state, bounded, drift + more, state.slope)

    def lack(self, state: MultiplierState, updates: int, pace: float) -> float:
        """d: the wanted entropy change of an update, nats.

        It scales with the learning rate (`pace`) during warmup and decay: otherwise a small
        learning rate would need a large multiplier.
        """
        assert state.target is not None
        H = state.mean[0]
        horizon = max(HORIZON, DAMPING / updates)  # at the least W, critically damped
        # any speed up to the first entropy, where the policy has been; above it at most RISE
        fastest = max(RISE * state.scale, (state.scale - H) / horizon)
        wanted = min((state.target - H) / horizon, fastest) - state.bias
        return pace * wanted / updates

    def slow(
        self, multiplier: Callable[[float], float], state: MultiplierState, updates: int,
        pace: float,
    ) -> float:  # fmt: skip
        """The multiplier for the wanted change, or for a slower fall.

        Pushing entropy down fast costs score: a multiplier below 0 may stop a rise or lower entropy
        by at most `FALL` per iteration. `multiplier` maps an update's entropy change (nats) to its
        multiplier.
        """
        wanted, slowest = self.lack(state, updates, pace), -FALL * state.scale / updates
        c = multiplier(wanted)
        return c if c >= 0 or wanted >= slowest else min(0.0, multiplier(slowest))

    def ends(self, state: MultiplierState, norm: float) -> tuple[float, float]:
        # without a gradient (all tokens masked) no multiplier has an effect, and none is chosen
        largest = LARGEST * state.norm / norm if norm else 0.0
        return (0.0 if self.side == "below" else -largest), largest

    def decided(
        self, state: MultiplierState, c: float, change: float, norm: float
    ) -> MultiplierState:
        """The state with the multiplier c for the coming update.

        `change` is the update's predicted entropy change, nats; `norm` the norm of the entropy's
        gradient.
        """
        share = abs(c) * norm / max(state.norm, 1e-30)
        bound = c != 0 and c in self.ends(state, norm)
        return replace(state, value=c, coming=change, share=share, bound=bound)

    def foretell(self, state: MultiplierState, change: float, updates: int) -> MultiplierState:
        """The filter after an update with a predicted entropy change of `change` nats."""
        x, P = state._known()
        F = np.eye(4)
        F[:2, 2:] = 1 / updates
        x = F @ x + np.array([change, change, 0, 0])
        P = F @ P @ F.T
        P[:2, :2] += (WANDER * state.stderr) ** 2 / updates + (UNSURE * change) ** 2
        return state._filtered(x, P, foretold=state.foretold + change)

    def stepped(
        self, state: MultiplierState, norm: float, clip: float, lasting: float, updates: int
    ) -> MultiplierState:
        """The state after the decided update.

        `norm` is the gradient's norm before clipping, not finite if the update was skipped; `clip`
        the largest norm after clipping; `lasting` 1 - beta1.
        """
        if not math.isfinite(norm):
            return state
        state = self.foretell(state, state.coming, updates)
        left = min(1.0, clip / (norm + 1e-6))
        slow = SLOW if state.norm else 0.0
        return replace(
            state,
            inside=state.inside + lasting * (left * state.value - state.inside),
            clipping=left + slow * (state.clipping - left),
            norm=norm + slow * (state.norm - norm),
        )

    def figures(self, state: MultiplierState) -> dict[str, float]:
        """Metrics at the start of an iteration, as `thermostat/...` (docs/metrics.md)."""
        if not state.mean:
            return {}
        return {
            "foretold": state.promised, "realised": state.realised, "bias": state.bias,
            "level": state.mean[0], "stderr": state.stderr, "share": state.share,
            "bound": float(state.bound),
        }  # fmt: skip
