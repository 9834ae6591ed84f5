"""What goes with a movement of entropy, each cause with its evidence and how plain it is.

Nothing here proves that one thing made another: a log has no experiment in it. A cause is a
quantity that by its paper moves entropy, was large enough to, and was so when entropy moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps

import numpy as np

from ...logs.run import Run
from ..course import moving_mean
from ..events import Event, sentence
from ..signals import Signal, signal
from ..verdict import Judged

LATE = 0.5  # of the weight is left of what came after the onset


@dataclass(frozen=True)
class Cause:
    name: str  # a word for programs, `truncation` say
    title: str  # for readers
    weight: float  # how plain it is, 0 to 1; causes are ranked by it. It is no probability
    evidence: str  # a sentence with the numbers it was read from
    why: str  # a sentence on what it has to do with entropy
    source: str  # the paper and section that show it


@dataclass(frozen=True)
class Seen:
    """A run, what was said of its entropy, what happened besides, and its signals."""

    run: Run
    judged: Judged
    events: tuple[Event, ...]

    def signal(self, what: str) -> Signal | None:
        """A key of `ALIASES`; None where the run does not log it, or fewer than 5 times."""
        return signal(self.run, what, 5)

    def event(self, name: str) -> str | None:
        """What happened, as a sentence without its end; None where it did not."""
        return next((sentence(each.what) for each in self.events if each.name == name), None)

    @property
    def falling(self) -> bool:
        return bool(self.judged.falling)

    def follows(self, found: Signal) -> bool:
        """Whether a signal rose only after entropy had moved: then it is no cause of that.

        It did where it was half its way up more than a tenth of the run after the onset of a fall,
        or a fiftieth after that of a rise, which by itself makes answers longer and wrong.
        """
        before = found.before(self.onset)
        k = max(1, len(found) // 20)
        means = moving_mean(found.y, k)
        grace = self.span if self.falling else self.span / 5
        half = before + (float(means.max()) - before) / 2
        return int(found.x[k // 2 + int(np.argmax(means >= half))]) > self.onset + grace

    @cached_property
    def onset(self) -> int:
        """The iteration with which it began."""
        onset = self.judged.onset
        return self.run.metrics[0]["iteration"] if onset is None else onset.iteration

    @cached_property
    def span(self) -> int:
        """A tenth of the run, in iterations: what is as near as that is at the same time."""
        return max(1, round((self.run.done - self.run.metrics[0]["iteration"] + 1) / 10))


Look = Callable[[Seen], Cause | None]
Plain = tuple[float, str] | tuple[float, str, dict[str, str]] | None


def cause(title: str, why: str, source: str, *needs: str) -> Callable[[Callable[..., Plain]], Look]:
    """Makes a cause of a function that returns its weight and evidence; of its name the name.

    The function takes what was seen and the signals that it `needs`, and is asked only where the
    run has all of them. A third value that it returns replaces `title` or `why`.
    """

    def named(look: Callable[..., Plain]) -> Look:
        @wraps(look)
        def found(seen: Seen) -> Cause | None:
            if (told := _told(look, seen, needs)) is None:
                return None
            words = {"title": title, "why": why, **(told[2] if len(told) == 3 else {})}
            return Cause(look.__name__, weight=told[0], evidence=told[1], source=source, **words)

        return found

    return named


def plainest(seen: Seen, ways: Mapping[Callable[..., Plain], tuple[str, ...]]) -> Plain:
    """The plainest of several ways to tell a cause, each with the signals that it needs."""
    found = [_told(way, seen, needs) for way, needs in ways.items()]
    return max((told for told in found if told is not None), default=None)


def _told(look: Callable[..., Plain], seen: Seen, needs: Iterable[str]) -> Plain:
    """What a look finds; None where the run lacks a signal that it needs."""
    signals = [seen.signal(what) for what in needs]
    return None if None in signals else look(seen, *signals)


def ramp(value: float, low: float, high: float) -> float:
    """0 at `low`, 1 at `high`, straight between."""
    return min(max((value - low) / (high - low), 0.0), 1.0)


def decades(value: float, low: float, high: float) -> float:
    """The same over logarithms."""
    return ramp(math.log(value), math.log(low), math.log(high)) if value > 0 else 0.0


def short(value: float) -> str:
    return f"{value:.3g}"
