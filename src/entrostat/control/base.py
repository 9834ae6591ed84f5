"""What every controller shares: what it sees, and its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Observation:
    """What an iteration shows, before any of its updates; None is what the host does not give."""

    entropy: float  # masked mean of the exact entropy over the full rollout batch, nats
    nll: float | None = None  # masked mean of -lp0 over the same tokens, nats
    progress: float | None = None  # 0 at the first iteration of the run, 1 at the last
    stderr: float | None = None  # standard error of `entropy` between prompts, nats
    # mean over responses of the mean entropy of their tokens, nats
    response_mean: float | None = None

    def need(self, name: str, who: str) -> float:
        """The signal `name`; a ValueError that begins with `who` where it was not given."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(
                f"{who} needs `{name}`, which this trainer does not report; "
                f"pass it: observe(entropy=..., {name}=...)"
            )
        return value


@dataclass(frozen=True)
class ControlState:
    """The coefficient now, and the entropy (nats) it steers to; None until the first update.

    `applies` is False while a method holds its coefficient back (adaptive entropy's gate).
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
    """Iterations at a limit, of either sign, if more than half of the second half's are; else None.

    `values` are the coefficient's, one per iteration.
    """
    there = [abs(value) == abs(limit) for value in values]
    half = there[len(there) // 2 :]
    return sum(there) if 2 * sum(half) > len(half) else None
