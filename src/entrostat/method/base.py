"""What a method is: a frozen dataclass of hyperparameters whose hooks edit data, never a trainer.

Every hook is a pure function of its arguments; state is handed in and handed back, so an objective
can save it, restore it and show it. A method overrides only the hooks it needs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import torch

from ..batch import Terms, TokenBatch
from ..control import ControlState

HOSTS = ("lab",)  # "trl" and "verl" are to follow


@dataclass(frozen=True)
class Method:
    """Base of every surrogate and intervention; each hook here does nothing.

    Class attributes:
        kind: "surrogate" (says which ratio and clip bounds are meant; one an objective) or
            "intervention" (edits advantages or terms; any number).
        paper: short name of the source, with its section.
        needs: the `TokenBatch` fields that it reads beyond logp, old_logp, mask and advantages.
        hosts: where it can run.
        base: the recipe whose advantage and surrogate a bare intervention sits on.
    """

    kind: ClassVar[Literal["surrogate", "intervention"]] = "intervention"
    paper: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    hosts: ClassVar[tuple[str, ...]] = HOSTS
    base: ClassVar[str] = "grpo"

    def required(self) -> tuple[str, ...]:
        """The fields these hyperparameters really need; `needs` unless a parameter changes it."""
        return self.needs

    def init(self) -> ControlState | None:
        """State before the first iteration; None for a method without any."""
        return None

    def observe(self, state: Any, entropy: float) -> Any:
        """State after seeing an iteration's entropy (nats), before that iteration's updates."""
        return state

    def prepare(self, batch: TokenBatch, state: Any) -> TokenBatch:
        """Once a rollout batch: edit the per-token advantages [B, T]."""
        return batch

    def plan(
        self, batch: TokenBatch, terms: Terms, state: Any, generator: torch.Generator | None
    ) -> Terms:
        """At every update: edit the terms, from detached statistics of the whole minibatch."""
        return terms

    def metrics(self, state: Any) -> dict[str, float]:
        """Figures of the state to log, as `group/name`."""
        return {}

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        """Parameter names with their defaults, in order."""
        return {f.name: f.default for f in fields(cls)}
