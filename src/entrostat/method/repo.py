"""REPO: entropy-preserving reinforcement learning (arXiv 2603.11682)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from ..batch import TokenBatch, at_least_float32, masked_mean
from ..control import ControlState, Multiplicative
from .base import Method

Center = Literal["state", "batch"]


def centred_logp(batch: TokenBatch, center: Center) -> Tensor:
    """L of REPO's Thm 1, [B, T] float32 or better, detached.

    "state": lp0 + H0, exact because E[log pi] = -H. "batch": lp0 minus its masked mean, for hosts
    that give no entropy.
    """
    logp = at_least_float32(batch.old_logp.detach())
    if center == "state":
        if batch.old_entropy is None:
            raise ValueError(
                "repo: center='state' needs old_entropy in the batch; pass it, or use "
                "center='batch', which centres by the batch mean"
            )
        return logp + at_least_float32(batch.old_entropy.detach())
    return logp - masked_mean(logp, batch.mask)


def repo_r(advantage: Tensor, L: Tensor, zeta: float) -> Tensor:
    """A - zeta max(A, 0) L, all [B, T]: rescales positive advantages by 1 - zeta L (REPO 3)."""
    return advantage - zeta * advantage.clamp(min=0) * L


@dataclass(frozen=True)
class RepoR(Method):
    """REPO-R: right but rare tokens gain advantage, right and common ones lose it.

    A <- A - zeta max(A, 0) L once a rollout batch, L the centred log-prob (REPO 3). zeta follows
    the doubling controller: x2 while the iteration's entropy is below `target`, /2 while above,
    kept in [zeta_min, zeta_max]. `bidirectional` lets zeta change sign, which lowers entropy where
    it is above the target (REPO App. B).

    Parameters:
        zeta: coefficient at first; the controller's range applies from its first move.
        zeta_min, zeta_max: range of zeta (of its magnitude when bidirectional).
        target: entropy to hold, nats a token; None takes that of the first iteration.
        bidirectional: push both ways.
        center: "state" (L = lp0 + H0, exact) or "batch" (lp0 minus its mean).
        controller: "doubling", or "none" to keep zeta as it is.

    Deviation: the paper centres by a minibatch mean; "state" is the expectation it stands for.
    """

    zeta: float = 1e-3
    zeta_min: float = 1e-5
    zeta_max: float = 1e-1
    target: float | None = None
    bidirectional: bool = False
    center: Center = "state"
    controller: Literal["doubling", "none"] = "doubling"

    paper: ClassVar[str] = "REPO 3, App. B"
    needs: ClassVar[tuple[str, ...]] = ("old_entropy",)
    base: ClassVar[str] = "dapo"

    def __post_init__(self) -> None:
        if self.center not in ("state", "batch"):
            raise ValueError(f"repo_r: center must be 'state' or 'batch', got {self.center!r}")
        if self.controller not in ("doubling", "none"):
            raise ValueError(
                f"repo_r: controller must be 'doubling' or 'none', got {self.controller!r}"
            )
        try:
            self._doubling()
        except ValueError as error:
            raise ValueError(f"repo_r: zeta's {error}") from None

    def _doubling(self) -> Multiplicative:
        return Multiplicative(
            self.zeta, self.zeta_min, self.zeta_max, self.target, bidirectional=self.bidirectional
        )

    def required(self) -> tuple[str, ...]:
        """`old_entropy` only where the exact centre is asked for."""
        return self.needs if self.center == "state" else ()

    def init(self) -> ControlState:
        """Zeta at its start value."""
        return self._doubling().init()

    def observe(self, state: ControlState, entropy: float) -> ControlState:
        """Zeta moves, unless it is fixed."""
        return state if self.controller == "none" else self._doubling().update(state, entropy)

    def prepare(self, batch: TokenBatch, state: ControlState) -> TokenBatch:
        """Rescale the positive advantages."""
        assert batch.advantages is not None
        L = centred_logp(batch, self.center)
        return batch.replace(advantages=repo_r(batch.advantages, L, state.value))

    def metrics(self, state: ControlState) -> dict[str, float]:
        """`control/zeta` and `control/target`."""
        out = {"control/zeta": state.value}
        return out if state.target is None else out | {"control/target": state.target}
