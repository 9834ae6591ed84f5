"""Metrics of a run, found under the names that each trainer logs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..logs.importers.names import ALIASES, folded
from ..logs.run import ENTROPIES, Run
from .course import Array, moving_mean

HUGE = 1e12  # larger numbers in a log are ignored
TENTH = 10


@dataclass(frozen=True)
class Signal:
    name: str  # name in the log
    x: Array  # [n] iterations
    y: Array  # [n] values, finite

    def __len__(self) -> int:
        return len(self.y)

    @property
    def smooth(self) -> Array:
        return moving_mean(self.y, self._tenth)

    @property
    def early(self) -> float:
        return float(self.y[: self._tenth].mean())

    @property
    def late(self) -> float:
        return float(self.y[-self._tenth :].mean())

    @property
    def _tenth(self) -> int:
        return max(1, len(self.y) // TENTH)

    def before(self, iteration: float) -> float:
        """Mean of up to a tenth of the run before an iteration; at the start, `early`."""
        some = self.y[self.x < iteration][-self._tenth :]
        return float(some.mean()) if len(some) else self.early


def signal(run: Run, what: str, least: int = 1) -> Signal | None:
    """The signal for a key of `ALIASES`; None if it is logged fewer times than `least`.

    The clipped share and the zero-advantage share are computed from their parts if needed.
    """
    names = folded(run.names)
    known = ENTROPIES if what == "entropy" else [names[n] for n in ALIASES[what] if n in names]
    found = next((each for name in known if (each := of(run, name)) is not None), None)
    if found is None and what == "clip":
        found = _clipped(run)
    if found is None and what == "no_signal":
        found = _idle(run)
    return found if found is not None and len(found) >= least else None


def of(run: Run, name: str) -> Signal | None:
    x, y = run.series(name)
    pairs = [(i, v) for i, v in zip(x, y, strict=True) if abs(v) < HUGE]
    if not pairs:
        return None
    places, values = zip(*pairs, strict=True)
    return Signal(name, np.array(places, dtype=float), np.array(values))


def shared(a: Signal, b: Signal) -> tuple[Array, Array]:
    """Values of two signals at the iterations that both have."""
    _, first, second = np.intersect1d(a.x, b.x, return_indices=True)
    return a.y[first], b.y[second]


def _clipped(run: Run) -> Signal | None:
    low, high = of(run, "clip/low"), of(run, "clip/high")
    if low is None or high is None or len(low) != len(high):
        return low if high is None else high
    return Signal("clip/low + clip/high", low.x, low.y + high.y)


def _idle(run: Run) -> Signal | None:
    idle, groups = of(run, "rollout/zero_advantage_groups"), of(run, "rollout/groups")
    if idle is None:
        return None
    if groups is not None and len(groups) == len(idle):
        count: Array | float = groups.y
    else:
        asked = run.setting("sampling", "prompts")
        if type(asked) is not int or asked < 1:
            return None
        count = float(asked)
    return Signal("rollout/zero_advantage_groups", idle.x, idle.y / np.maximum(count, 1))
