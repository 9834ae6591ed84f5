"""What goes with a movement of entropy, ranked by how plain it is.

Nothing here proves that one thing made another: a log has no experiment in it. A cause is a
quantity that by its paper moves entropy, was large enough to, and was so when entropy moved.
"""

from __future__ import annotations

from ...logs.run import Run
from ..events import Event
from ..verdict import Judged
from .seen import Cause, Seen

__all__ = ["Cause", "causes_of"]

LEAST = 0.1  # of a weight: what is less plain is not spoken of
HELD = ("score", "eos", "zero_advantage")  # checks of what costs a run whose entropy held


def causes_of(run: Run, judged: Judged, events: tuple[Event, ...] = ()) -> tuple[Cause, ...]:
    """Causes of what a run's entropy did, the plainest first.

    Of a run that held, or of which nothing can be said, only what took its score, its length or
    its learning.
    """
    from ..checks import TABLE

    seen, still = Seen(run, judged, events), judged.verdict in ("held", "cannot tell")
    looks = [look for check in TABLE if not still or check.name in HELD for look in check.causes]
    found = [cause for look in looks if (cause := look(seen)) is not None]
    if still:  # of what moves entropy nothing is asked
        found = [cause for cause in found if any(e.name == cause.name for e in events)]
    plain = [cause for cause in found if cause.weight >= LEAST]
    return tuple(sorted(plain, key=lambda cause: -cause.weight))
