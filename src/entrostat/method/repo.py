"""REPO: entropy-preserving reinforcement learning (arXiv 2603.11682): REPO-R, REPO-D, ADAPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from ..control import ControlState, Flip, Multiplicative, ProportionalIntegral, Range, Thermostat
from ..core.batch import Terms, TokenBatch, at_least_float32
from .base import Default, Rng, unread, within
from .controlled import Controlled, Law, Signal
from .surrogates import clip_bounds

Center = Literal["state", "batch"]


def centred_logp(batch: TokenBatch, center: Center) -> Tensor:
    """L of REPO's Thm 1, [B, T] float32 or better, detached.

    "state": lp0 + H0, the paper's log pi(a|s) - E[log pi(.|s)], since E[log pi] = -H at each state.
    "batch": lp0 minus its masked mean, for trainers that supply no entropy; a deviation.
    """
    logp = at_least_float32(batch.old_logp.detach())
    if center == "state":
        who = "repo: center='state' (center='batch' does without)"
        return logp + at_least_float32(batch.need("old_entropy", who).detach())
    return logp - batch.whole.mean(logp)[0]


def entropy_change(advantage: Tensor, L: Tensor, logp: Tensor) -> Tensor:
    """Entropy change dH = -A L p of each token (REPO Cor. 1), up to the step size; all [B, T]."""
    return -advantage * L * logp.exp()


def repo_r(advantage: Tensor, L: Tensor, zeta: float) -> Tensor:
    """A - zeta max(A, 0) L, all [B, T]: rescales positive advantages by 1 - zeta L (REPO 3)."""
    return advantage - zeta * advantage.clamp(min=0) * L


def repo_d(advantage: Tensor, L: Tensor, beta: Tensor) -> Tensor:
    """A - beta L, beta [] or [B, T]: reduces the correlation with the log-prob (REPO 3)."""
    return advantage - beta * L


# parameters that each controller ignores
_UNREAD = {
    "doubling": (),
    "pi": ("zeta",),
    "thermostat": ("signal",),
    "none": ("zeta_min", "zeta_max", "target", "signal"),
}


@dataclass(frozen=True)
class _Repo(Controlled):
    """Shared base of both variants: zeta, its controller, and the centre of L."""

    zeta: float = 1e-3
    zeta_min: float = Default(1e-5)
    zeta_max: float = Default(1e-1)
    target: float | str | None = None
    center: Center = "state"
    controller: Literal["doubling", "pi", "thermostat", "none"] = "doubling"
    signal: Signal = "exact"

    paper: ClassVar[str] = "REPO 3, App. B"
    needs: ClassVar[tuple[str, ...]] = ("old_entropy",)
    base: ClassVar[str] = "dapo"
    actuator: ClassVar[tuple[str, str | None]] = ("zeta", "zeta_max")
    coefficient: ClassVar[str] = "zeta"
    _reach: ClassVar[float] = 1.0  # end of the thermostat's range

    def __post_init__(self) -> None:
        super().__post_init__()
        unread(self, f"controller={self.controller!r}", _UNREAD[self.controller])
        if self.controller in ("pi", "thermostat"):
            self.settle("zeta_max", self._reach)
            self.settle("zeta_min", self._lowest())
        self.check_law("zeta")

    def _doubling(self) -> Multiplicative:
        return Multiplicative(self.zeta, self.zeta_min, self.zeta_max, self.target)

    def _lowest(self) -> float:
        return 0.0

    def law(self) -> Law | None:
        if self.controller == "none":
            return None
        if self.controller == "doubling":
            return self._doubling()
        reach = Range(self.zeta_min, self.zeta_max)
        if self.controller == "pi":
            return ProportionalIntegral(reach.low, reach.high, self.target)
        return Thermostat(self.zeta, reach, self.target)

    def at_first(self) -> ControlState:
        return self._doubling().init()

    def required(self) -> tuple[str, ...]:
        """`old_entropy` only with the exact centre ("state")."""
        return self.needs if self.center == "state" else ()


@dataclass(frozen=True)
class RepoR(_Repo):
    """REPO-R: tokens with A > 0 gain advantage if unlikely and lose it if likely.

    A <- A - zeta max(A, 0) L once per rollout batch, L the centred log-prob (REPO 3). zeta follows
    the doubling controller: x2 while the iteration's entropy is below `target`, /2 while above,
    kept in [zeta_min, zeta_max]. `bidirectional` lets zeta change sign, to lower entropy that is
    above the target (REPO App. B). zeta is doubled if its sign is right (+ below the target, -
    above); otherwise it is halved and

        flip="immediate"  changes its sign at once
        flip="gradual"    changes its sign when it would fall below zeta_min, to that magnitude

    Parameters:
        zeta: coefficient at first; the controller's range applies from its first move.
        zeta_min, zeta_max: range of zeta (of its magnitude when bidirectional). The default
            zeta_max, .1, is the paper's and may be too small to hold a target on a small policy;
            the demo has .5. The thermostat's default range is [-1, 1]; a given zeta_max makes it
            [-zeta_max, zeta_max], a given zeta_min sets its lower end.
        target: entropy to hold, nats per token; None takes that of the first iteration, "0.8x" a
            share of it; the thermostat also takes schedules (docs/thermostat.md).
        center: "state" is the paper's L = log pi - E[log pi] = lp0 + H0; "batch" is lp0 minus its
            mean over the batch.
        controller: "doubling"; "thermostat" (ours); "pi", a proportional-integral law over the
            thermostat's range, with gains tuned by hand on one language model; or "none" for a
            constant zeta.
        signal: the entropy that is compared with the target: "exact", the mean over tokens, or
            "response_mean", the mean over a response's tokens, then over responses (REPO).
        bidirectional: let doubling push both ways.
        flip: "gradual" or "immediate" (with `bidirectional`).

    Deviations: "batch" centres by one mean for all states, if no entropies are available. The
    paper's sign "flips when the entropy exceeds the target value", which is "immediate"; it does
    not define the magnitude at a flip; here it is halved, as above. "gradual" is ours: it does not
    jump between full strengths, and takes 28 iterations from .1 to -.1.
    """

    bidirectional: bool = False
    flip: Flip = "gradual"

    def __post_init__(self) -> None:
        super().__post_init__()
        other = self.controller != "doubling"
        if self.controller == "pi":
            unread(self, "controller='pi'", ("bidirectional",))
        if other or not self.bidirectional:
            why = f"controller={self.controller!r}" if other else "bidirectional=False"
            unread(self, why, ("flip",))

    def _doubling(self) -> Multiplicative:
        return Multiplicative(
            self.zeta, self.zeta_min, self.zeta_max, self.target,
            bidirectional=self.bidirectional, flip=self.flip,
        )  # fmt: skip

    def _lowest(self) -> float:
        return -self.zeta_max

    def prepare(self, batch: TokenBatch, state: ControlState) -> TokenBatch:
        L = centred_logp(batch, self.center)
        return batch.replace(advantages=repo_r(batch.need("advantages"), L, state.value))


@dataclass(frozen=True)
class RepoD(_Repo):
    """REPO-D: reduces the correlation of the advantages with the log-prob.

    A <- A - beta L once per rollout batch, beta = -zeta dH, dH = -(masked mean of A L p0), the
    entropy change that Cor. 1 estimates (REPO 3): beta > 0 if entropy is about to fall. zeta
    follows the doubling controller: x2 while the iteration's entropy is below `target`, /2 while
    above, kept in [zeta_min, zeta_max].

    Parameters:
        zeta: coefficient at first; the controller's range applies from its first move.
        zeta_min, zeta_max: range of zeta; the thermostat's is [0, 10], except for given ends.
        target: entropy to hold, nats per token; None takes that of the first iteration, "0.8x" a
            share of it; the thermostat also takes schedules (docs/thermostat.md).
        center: "state" is the paper's L = log pi - E[log pi] = lp0 + H0; "batch" is lp0 minus its
            mean over the batch.
        controller: "doubling"; "thermostat" (ours); "pi", with the gains that were tuned for the
            zeta of `repo_r`; or "none" for a constant zeta.
        signal: the entropy that is compared with the target: "exact", the mean over tokens, or
            "response_mean", the mean over a response's tokens, then over responses (REPO).
        scope: "batch" takes one dH for the whole batch; "token" each token's own.

    Deviations: the paper's beta counters the change "on a per-token level", at each state; its
    Fig. 10, "a consistent rotation across the space", has one beta for the batch, as the default
    `scope` does. "token" follows the text, with the sampled action instead of Cor. 1's expectation
    over actions. `center` "batch" is for trainers that supply no entropies.
    """

    zeta_min: float = Default(1e-3)
    zeta_max: float = Default(10.0)
    scope: Literal["batch", "token"] = "batch"

    _reach: ClassVar[float] = 10.0

    def prepare(self, batch: TokenBatch, state: ControlState) -> TokenBatch:
        A, L = batch.need("advantages"), centred_logp(batch, self.center)
        change = entropy_change(A, L, at_least_float32(batch.old_logp.detach()))
        if self.scope == "batch":
            change = change.new_tensor(batch.whole.mean(change)[0])
        return batch.replace(advantages=repo_d(A, L, -state.value * change))


@dataclass(frozen=True)
class Adapo(Controlled):
    """ADAPO: PPO's clip whose upper bound opens while entropy is below its target.

    -min(r A, clip(r, 1 - low, 1 + high) A); once per iteration high is multiplied by `factor` if
    entropy < target and divided by it if entropy > target, kept in [high_min, high_max]. ADAPO is a
    surrogate: it replaces `ppo`, or `gspo` if both are listed (`gspo_adapo`).

    Parameters:
        low: lower bound.
        high: upper bound at first.
        high_min, high_max: its range.
        factor: high is multiplied or divided by it.
        target: entropy to hold, nats per token; None takes that of the first iteration, "0.8x" a
            share of it.
        ratio: "token" (PPO's) or "sequence" (GSPO's).
        signal: the entropy that is compared with the target: "exact", the mean over tokens, or
            "response_mean", the mean over a response's tokens, then over responses (REPO).

    Ambiguity: the paper says that the idea fits GSPO and gives no range for it. In `gspo_adapo`
    `low` and the first `high` are GSPO's. The range is `high` times [.2, .3] / .28, as wide in
    proportion as DAPO's.
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
