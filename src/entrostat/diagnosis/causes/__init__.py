"""What goes with a movement of entropy, ranked by how plain it is.

Nothing here proves that one thing made another: a log has no experiment in it. A cause is a
quantity that by its paper moves entropy, was large enough to, and was so when entropy moved.
"""

from __future__ import annotations

from collections.abc import Callable

from ...logs.run import Run
from ..events import Event
from ..verdict import Judged
from .batches import (
    length_collapse,
    no_learning_signal,
    no_signal,
    reward_saturated,
    score_lost,
    truncation,
)
from .figures import entropy_definition, sampler_mismatch
from .seen import Cause, Seen
from .updates import (
    bonus,
    clip_always,
    clip_never,
    knob_saturated,
    learning_rate,
    policy_gradient,
    ratio_one,
)

__all__ = ["CAUSES", "Cause", "causes_of"]

LEAST = 0.1  # of a weight: what is less plain is not spoken of

CAUSES: tuple[Callable[[Seen], Cause | None], ...] = (
    reward_saturated, no_signal, truncation, clip_never, clip_always, ratio_one, learning_rate,
    sampler_mismatch, entropy_definition, knob_saturated, bonus, policy_gradient,
    length_collapse, no_learning_signal, score_lost,
)  # fmt: skip
HELD = (score_lost, length_collapse, no_learning_signal)  # what costs a run whose entropy held


def causes_of(run: Run, judged: Judged, events: tuple[Event, ...] = ()) -> tuple[Cause, ...]:
    """Causes of what a run's entropy did, the plainest first.

    Args:
        run: the run.
        judged: what became of its entropy; of one of which nothing can be said there is none, and
            of one that held only what took its score, its length or its learning.
        events: of `events_of`.
    """
    seen = Seen(run, judged, events)
    looks = HELD if judged.verdict in ("held", "cannot tell") else CAUSES
    found = [cause for look in looks if (cause := look(seen)) is not None]
    plain = [cause for cause in found if cause.weight >= LEAST]
    return tuple(sorted(plain, key=lambda cause: -cause.weight))
