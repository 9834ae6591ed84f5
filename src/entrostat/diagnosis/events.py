"""Events of a run: of its entropy, score, length and learning signal, and non-finite metrics.

Thresholds are relative to the recorded range. Severity `broken` makes the run useless from there
on, `bad` is a collapsed length, or an entropy change whose score fell or gained nothing, and
`watch` is a change that may become either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..logs.run import DECISIVE, ENTROPIES, Run
from .signals import signal
from .verdict import DIED, HURT, ROSE, Judged, Score

Severity = Literal["broken", "bad", "watch", "unknown", "fine"]
WORST: tuple[Severity, ...] = ("broken", "bad", "watch", "unknown", "fine")

SILENT = 0.95  # share of zero-advantage groups, mean over the run
SHORT = 0.2  # of the longest mean response: a collapsed length is at most this
LOW = 0.5  # nats: a risen entropy below this is still low


def sentence(clause: str) -> str:
    return clause[:1].upper() + clause[1:]


@dataclass(frozen=True)
class Event:
    name: str  # identifier for programs, such as `score_lost`
    word: str  # name for readers, used in headlines
    severity: Severity
    what: str  # clause that describes it, with its numbers
    since: int | None = None  # first iteration of the event; None for the run's first


def score_of(run: Run) -> Score | None:
    """Summary of a run's score; None with fewer than five values."""
    found = signal(run, "score", 5)
    return None if found is None else Score(found.y)


def events_of(run: Run, judged: Judged) -> tuple[Event, ...]:
    """Events of a run, the worst first; always includes the entropy event."""
    found = [look(run) for look in (_no_signal, _score_lost, _length, _broken, _not_computed)]
    some = [event for event in (*found, _entropy(run, judged)) if event is not None]
    return tuple(sorted(some, key=lambda event: WORST.index(event.severity)))


def _no_signal(run: Run) -> Event | None:
    """No group with both right and wrong answers, or a constant score and no gradient."""
    score, groups = signal(run, "score", 5), signal(run, "no_signal")
    share = 0.0 if groups is None or len(groups) < 5 else float(groups.y.mean())
    said = []
    if score is not None and float(np.ptp(score.y)) == 0:
        said.append(f"the reward is {score.late:.3g} in all {_steps(len(score))}")
    if groups is not None and share >= SILENT:
        said.append(f"{share:.0%} of the groups have equal rewards ({groups.name})")
    still = [f for what in ("gradient", "loss") if (f := signal(run, what)) and not f.y.any()]
    if not said or (len(said) == 1 and not still and groups is None):
        return None
    said += [f"{found.name} is 0 throughout" for found in still]
    cut = signal(run, "truncated")
    if cut is not None and cut.late >= SILENT:
        length = signal(run, "length")
        at = "" if length is None else f" at {length.late:.3g} tokens"
        said.append(f"every completion is cut{at}" if cut.late == 1 else f"{cut.late:.0%} are cut")
    return Event("no_learning_signal", "No learning signal", "broken", ", ".join(said))


def _score_lost(run: Run) -> Event | None:
    found, score = signal(run, "score"), score_of(run)
    if found is None or score is None or not score.died:
        return None
    first = found.x[_stays(found.y < score.floor + DIED * (score.best - score.floor))]
    below = (
        "below half of the best" if score.floor == 0 else "more than half of the way to its lowest"
    )
    return Event(
        "score_lost", "Score lost", "broken",
        f"the mean reward went from {score.best:.3g} at its best to {score.late:.3g} at "
        f"the end, {below} for good in iteration {int(first)}",
        int(first),
    )  # fmt: skip


def _length(run: Run) -> Event | None:
    length, score = signal(run, "length", 10), score_of(run)
    if length is None:
        return None
    best = max(float(length.smooth.max()), float(length.y[:3].mean()))
    if length.late > SHORT * best or (score is not None and score.gained > ROSE and not score.died):
        return None
    since = int(length.x[_stays(length.y < best / 2)])
    return Event(
        "length_collapse", "Length collapse", "broken" if length.late < 10 else "bad",
        f"the mean response shrank from {best:.3g} to {length.late:.3g} tokens, "
        f"below half for good in iteration {since}",
        since,
    )  # fmt: skip


def _stays(below: NDArray[np.bool_]) -> int:
    """Index from which a condition holds to the end."""
    outside = np.flatnonzero(~below)
    return min(len(below) - 1, int(outside[-1]) + 1) if len(outside) else 0


def _broken(run: Run) -> Event | None:
    name = next((name for name in DECISIVE if name in run.broken), None)
    if name is None:
        return None
    at, who = run.broken[name], "entropy" if name in ENTROPIES else "the reward"
    what = f"from iteration {at} on {who} is no finite number"
    return Event("not_finite", f"NaN in {who}", "broken", what, at)


def _not_computed(run: Run) -> Event | None:
    entropy = signal(run, "entropy", 5)
    if entropy is None or entropy.y.max() > 0:
        return None
    if entropy.y.any():
        what = f"its negative is logged: it is at most 0 in all {_steps(len(entropy))}"
        return Event("not_computed", "Entropy has the wrong sign", "unknown", what)
    what = f"it is logged as 0 in all {_steps(len(entropy))}, which no policy that samples has"
    return Event("not_computed", "Entropy was not computed", "unknown", what)


def _entropy(run: Run, judged: Judged) -> Event:
    """The entropy event; the score decides its severity."""
    verdict, score, word = judged.verdict, score_of(run), judged.verdict.capitalize()
    since = None if judged.onset is None else judged.onset.iteration
    if verdict in ("cannot tell", "held"):
        told = "" if score is None or score.died else score.words
        return Event(verdict, word, "unknown" if verdict == "cannot tell" else "fine", told, since)
    if score is None:
        return Event(verdict, word, "watch", "no score is logged", since)
    low = verdict == "explosion" and judged.last < LOW
    if score.lost > HURT or not (score.gained > ROSE or low or verdict == "drift"):
        return Event(verdict, word, "bad", score.words, since)
    return Event(verdict, "Explosion at a low level" if low else word, "watch", score.words, since)


def _steps(count: int) -> str:
    return f"{count} iteration{'s' if count != 1 else ''}"
