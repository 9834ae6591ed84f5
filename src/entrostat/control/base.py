"""Shared types of controllers: the observation and the state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Observation:
    """An iteration's signals before its updates; None for those the trainer does not supply."""

    entropy: float  # masked mean of the exact entropy over the full rollout batch, nats
    nll: float | None = None  # masked mean of -lp0 over the same tokens, nats
    progress: float | None = None  # 0 at the first iteration of the run, 1 at the last
    stderr: float | None = None  # standard error of `entropy` between prompts, nats
    # mean over responses of the mean entropy of their tokens, nats
    response_mean: float | None = None

    def need(self, name: str, who: str) -> float:
        """The signal `name`; a ValueError that begins with `who` if it is None."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(
                f"{who} needs `{name}`, which this trainer does not report; "
                f"pass it: observe(entropy=..., {name}=...)"
            )
        return value


@dataclass(frozen=True)
class ControlState:
    """The current coefficient and its target entropy (nats); target None until the first update.

    `applies` is False while a method does not apply its coefficient (adaptive entropy's gate).
    """

    value: float
    target: float | None
    applies: bool = True

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ControlState:
        return cls(**data)


def at_limit(values: Sequence[float], limit: float) -> int | None:
    """Count the iterations at a limit (either sign) if most of the second half is; else None.

    `values` is the coefficient in each iteration.
    """
    there = [abs(value) == abs(limit) for value in values]
    half = there[len(there) // 2 :]
    return sum(there) if 2 * sum(half) > len(half) else None
