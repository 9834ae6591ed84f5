"""When entropy will leave a band, if it goes on as it does: a warning before it is too late."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from .target import Level, plain_target
from .trend import Array, Trend

AHEAD = 60  # iterations
RAISED, ROW = 0.5, 3  # an alarm: this probability, so many iterations in a row
FIRST = 5  # iterations before anything is said
UNDER, OVER = 0.75, 1.25  # of a target: the band is at least so wide
QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Forecast:
    """When entropy will leave its band."""

    low: float  # the band's lower end, nats
    high: float  # its upper end; infinity where it is open
    probability: float  # that entropy is outside at some time in the next 60 iterations
    left: int | None  # iterations until then, the median; None beyond 200
    early: int | None  # where an 80% interval of `left` begins
    late: int | None  # where it ends

    def __str__(self) -> str:
        band = f"[{self.low:.3g}, {self.high:.3g}]"
        text = f"entropy leaves {band} within {AHEAD} iterations with probability "
        text += f"{self.probability:.2f}"
        if self.left is None:
            return text
        late = "more than 200" if self.late is None else str(self.late)
        return f"{text}, in {self.left} (median; 80% interval {self.early} to {late})"


@dataclass(frozen=True)
class Alarm:
    """Watches the entropy of a run, iteration by iteration; a new one with each (`seen`).

    The alarm is raised while entropy leaves its band within 60 iterations with a probability of a
    half or more, in three iterations in a row. A controller is trusted for as long as it has half
    of the way from its target to the band's end left: on the way to a target entropy moves fast,
    and no filter that does not know the controller can tell that it will stop.

    Attributes:
        low: where the band begins: nats, or "0.5x" of the first entropy.
        high: where it ends, likewise. A target widens the band to at least a quarter about it.
        trend: what was learnt.
        target: what a controller is to hold now, nats; None without one.
        recent: the last three entropies, nats.
        row: iterations in a row in which the forecast was bad.

    Raises:
        ValueError: an end of the band cannot be read, or is a schedule; low is not below high.

    Example:
        >>> alarm = Alarm()
        >>> for step in range(30):
        ...     alarm = alarm.seen(0.9 * 0.98**step)
        >>> alarm.raised, alarm.forecast().left
        (True, 6)
    """

    low: float | str = "0.5x"
    high: float | str = "1.5x"
    trend: Trend = field(default_factory=Trend)
    target: float | None = None
    recent: tuple[float, ...] = ()
    row: int = 0

    def __post_init__(self) -> None:
        low, high = _end("low", self.low), _end("high", self.high)
        # nats and a share are compared by the first entropy only
        if low.relative == high.relative and not low.value < high.value:
            raise ValueError(
                f"alarm: low must be below high, got low = {self.low!r} and high = {self.high!r}"
            )

    def seen(self, entropy: float, target: float | None = None) -> Alarm:
        """The alarm after one more iteration.

        An entropy that is not finite, or below 0, teaches nothing. `target` is what a controller is
        to hold, nats.
        """
        if not math.isfinite(entropy) or entropy < 0:
            return self
        recent = (*self.recent, entropy)[-3:]
        new = replace(self, trend=self.trend.seen(entropy), target=target, recent=recent)
        if new.trend.count < FIRST:
            return new
        bad = new._outside()[AHEAD] >= RAISED and not new.trusted
        return replace(new, row=self.row + 1 if bad else 0)

    @property
    def raised(self) -> bool:
        return self.row >= ROW

    @property
    def band(self) -> tuple[float, float]:
        first, target = self.trend.first, self.target
        low, high = (_end(name, getattr(self, name)).of(first) for name in ("low", "high"))
        if target is None:
            return low, high
        return min(low, UNDER * target), max(high, OVER * target)

    def forecast(self) -> Forecast | None:
        """When entropy will leave the band; None of fewer than five iterations."""
        if self.trend.count < FIRST:
            return None
        outside = self._outside()
        early, left, late = (_when(outside, q) for q in QUANTILES)
        return Forecast(*self.band, float(outside[AHEAD]), left, early, late)

    def figures(self) -> dict[str, float]:
        """To log: `alarm/probability`, `alarm/raised` (0 or 1), and `alarm/left` where known."""
        found = self.forecast()
        if found is None:
            return {}
        figures = {"alarm/probability": found.probability, "alarm/raised": float(self.raised)}
        return figures | ({} if found.left is None else {"alarm/left": float(found.left)})

    def _outside(self) -> Array:
        return self.trend.outside(*self.band)

    @property
    def trusted(self) -> bool:
        """Whether a controller has half of its margin left, or is still on its way."""
        if self.target is None:
            return False
        (low, high), level = self.band, float(np.mean(self.recent))
        first, target = self.trend.first, self.target
        coming = target <= level <= first or first <= level <= target
        return coming or (low + target) / 2 <= level <= (min(high, 1e6) + target) / 2


def _end(name: str, spec: float | str) -> Level:
    return plain_target(spec, f"alarm: {name}").levels[0]


def _when(outside: Array, quantile: float) -> int | None:
    places = np.flatnonzero(outside >= quantile)
    return int(places[0]) if len(places) else None
