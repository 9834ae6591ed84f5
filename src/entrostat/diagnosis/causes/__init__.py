"""What goes with a movement of entropy, ranked by how plain it is.

Nothing here proves that one thing made another: a log has no experiment in it. A cause is a
quantity that by its paper moves entropy, was large enough to, and was so when entropy moved.
"""

from __future__ import annotations

from collections.abc import Callable

from ...logs.run import Run
from ..verdict import Judged
from .batches import no_signal, reward_saturated, score_lost, truncation
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
)  # fmt: skip


def causes_of(run: Run, judged: Judged) -> tuple[Cause, ...]:
    """Causes of what a run's entropy did, the plainest first.

    Args:
        run: the run.
        judged: what became of its entropy; of one of which nothing can be said there is none, and
            of one that held only what took its score.
    """
    if judged.verdict == "cannot tell":
        return ()
    seen = Seen(run, judged)
    looks = (score_lost,) if judged.verdict == "held" else CAUSES
    found = [cause for look in looks if (cause := look(seen)) is not None]
    plain = [cause for cause in found if cause.weight >= LEAST]
    return tuple(sorted(plain, key=lambda cause: -cause.weight))
