"""Forecasts when entropy will leave a band if its trend continues, and raises an alarm."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from .target import Level, plain_target
from .trend import Array, Trend

AHEAD = 60  # iterations
RAISED, ROW = 0.5, 3  # raise the alarm at this probability in so many consecutive iterations
FIRST = 5  # iterations before the first forecast
UNDER, OVER = 0.75, 1.25  # of a target: the band includes at least this range
QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Forecast:
    """A forecast of when entropy leaves its band."""

    low: float  # the band's lower end, nats
    high: float  # its upper end; infinity where it is open
    probability: float  # that entropy is outside at some time in the next 60 iterations
    left: int | None  # median number of iterations until then; None beyond 200
    early: int | None  # lower end of an 80% interval of `left`
    late: int | None  # upper end

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
    """Monitors the entropy of a run; immutable, `seen` returns the next alarm.

    The alarm is raised after three consecutive iterations in which entropy leaves its band within
    60 iterations with a probability of at least a half. It is not raised while a controller is
    `trusted`: entropy moves fast on the way to a target, and a filter that does not know the
    controller cannot tell that it will stop.

    Attributes:
        low: lower end of the band: nats, or "0.5x" of the first entropy.
        high: upper end, likewise. A target widens the band to at least a quarter on either side.
        trend: the filter's state.
        target: the controller's current target, nats; None without a controller.
        recent: the last three entropies, nats.
        row: consecutive iterations with a forecast at or above the threshold, not `trusted`.

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
        # nats and a share cannot be compared before the first entropy
        if low.relative == high.relative and not low.value < high.value:
            raise ValueError(
                f"alarm: low must be below high, got low = {self.low!r} and high = {self.high!r}"
            )

    def seen(self, entropy: float, target: float | None = None) -> Alarm:
        """The alarm after one more iteration.

        An entropy that is not finite, or below 0, is ignored. `target` is the controller's current
        target, nats.
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
        """Forecast when entropy leaves the band; None before the fifth iteration."""
        if self.trend.count < FIRST:
            return None
        outside = self._outside()
        early, left, late = (_when(outside, q) for q in QUANTILES)
        return Forecast(*self.band, float(outside[AHEAD]), left, early, late)

    def figures(self) -> dict[str, float]:
        """Metrics `alarm/probability`, `alarm/raised` (0 or 1), and `alarm/left` if known."""
        found = self.forecast()
        if found is None:
            return {}
        figures = {"alarm/probability": found.probability, "alarm/raised": float(self.raised)}
        return figures | ({} if found.left is None else {"alarm/left": float(found.left)})

    def _outside(self) -> Array:
        return self.trend.outside(*self.band)

    @property
    def trusted(self) -> bool:
        """Whether entropy is on its way to the target, or within half of the margin around it."""
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
