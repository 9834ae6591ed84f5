"""Likely causes of an entropy change, each with its evidence and a weight.

A log contains no experiment, so nothing here proves causation. A cause is a quantity that moves
entropy according to its paper, and that was large enough when entropy moved.
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

LATE = 0.5  # factor on the weight of a signal that rose after the onset


@dataclass(frozen=True)
class Cause:
    name: str  # identifier for programs, such as `truncation`
    title: str  # for readers
    weight: float  # strength of the evidence, 0 to 1; ranks causes; not a probability
    evidence: str  # a sentence with the numbers behind it
    why: str  # a sentence on how it affects entropy
    source: str  # the paper and section that show the effect


@dataclass(frozen=True)
class Seen:
    """A run with its entropy verdict, events and signals."""

    run: Run
    judged: Judged
    events: tuple[Event, ...]

    def signal(self, what: str) -> Signal | None:
        """Signal for a key of `ALIASES`; None if the run logs it fewer than 5 times."""
        return signal(self.run, what, 5)

    def event(self, name: str) -> str | None:
        """Description of an event, without a full stop; None if the event did not happen."""
        return next((sentence(each.what) for each in self.events if each.name == name), None)

    @property
    def falling(self) -> bool:
        return bool(self.judged.falling)

    def follows(self, found: Signal) -> bool:
        """Whether a signal rose only after entropy moved, so that it is not a cause.

        The halfway point of its rise decides: it is late more than a tenth of the run after the
        onset of a fall, or a fiftieth after a rise, which itself makes answers longer and wrong.
        """
        before = found.before(self.onset)
        k = max(1, len(found) // 20)
        means = moving_mean(found.y, k)
        grace = self.span if self.falling else self.span / 5
        half = before + (float(means.max()) - before) / 2
        return int(found.x[k // 2 + int(np.argmax(means >= half))]) > self.onset + grace

    @cached_property
    def onset(self) -> int:
        """Iteration of the movement's onset; the first iteration if there is none."""
        onset = self.judged.onset
        return self.run.metrics[0]["iteration"] if onset is None else onset.iteration

    @cached_property
    def span(self) -> int:
        """A tenth of the run, in iterations: events this close count as simultaneous."""
        return max(1, round((self.run.done - self.run.metrics[0]["iteration"] + 1) / 10))


Look = Callable[[Seen], Cause | None]
Plain = tuple[float, str] | tuple[float, str, dict[str, str]] | None


def cause(title: str, why: str, source: str, *needs: str) -> Callable[[Callable[..., Plain]], Look]:
    """Decorator: turn a function that returns (weight, evidence) into a cause with its name.

    The function takes a `Seen` and the signals listed in `needs`. It is called only if the run has
    all of them. It may return a third value, a dictionary that replaces `title` or `why`.
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
    """The strongest of several pieces of evidence; each function lists the signals it needs."""
    found = [_told(way, seen, needs) for way, needs in ways.items()]
    return max((told for told in found if told is not None), default=None)


def _told(look: Callable[..., Plain], seen: Seen, needs: Iterable[str]) -> Plain:
    """Result of `look`; None if the run lacks a signal that it needs."""
    signals = [seen.signal(what) for what in needs]
    return None if None in signals else look(seen, *signals)


def ramp(value: float, low: float, high: float) -> float:
    """Linear ramp: 0 up to `low`, 1 from `high` on."""
    return min(max((value - low) / (high - low), 0.0), 1.0)


def decades(value: float, low: float, high: float) -> float:
    """`ramp` on a logarithmic scale; 0 for values up to 0."""
    return ramp(math.log(value), math.log(low), math.log(high)) if value > 0 else 0.0


def short(value: float) -> str:
    return f"{value:.3g}"
