"""What explains a run's score as well as the law does: entropy itself, or how long it has trained.

Two curves that merely drift fit each other. A law of entropy has to do better than a straight line
in the step, which knows nothing of entropy, above all at steps that it was not fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .early import SHARE, early_steps
from .steps import STEPS_LEAST, LawError, checked_steps, moves, rms, straight_line


@dataclass(frozen=True)
class Rival:
    """R = c + d x by least squares.

    Attributes:
        of: x: "exp(H)" (the law itself), "H" (nats per token) or "step" (0, 1, ..).
        rmse: in-sample, over all steps, in units of the score.
        rmse_predicted: at the later steps, of the line through the first ones; NaN where x does not
            move in these.
    """

    of: str
    rmse: float
    rmse_predicted: float


def rivals(entropy: ArrayLike, score: ArrayLike, share: float = SHARE) -> tuple[Rival, ...]:
    """The law beside lines in H and in the step, each of two coefficients.

    Args:
        entropy: [n] H, nats per token, in the order of training.
        score: [n] R at the same policies.
        share: share of the steps that the prediction is fitted to, as `predict_early` takes it.

    Example:
        >>> [rival.of for rival in rivals([2.0, 1.0, 0.5, 0.2], [0.1, 0.2, 0.3, 0.4], 0.75)]
        ['exp(H)', 'H', 'step']
    """
    h, r = checked_steps("rivals", entropy, score)
    first = early_steps(len(h), share)
    if not STEPS_LEAST <= first < len(h):
        raise LawError(
            "rivals",
            f"share={share:g} of {len(h)} steps are {first}; {STEPS_LEAST} or more are fitted, and "
            "one has to be left to predict",
        )
    found = []
    for of, x in (("exp(H)", np.exp(h)), ("H", h), ("step", np.arange(len(h), dtype=np.float64))):
        if not moves(x):
            raise LawError("rivals", f"entropy is {h[0]:g} at all {len(h)} steps")
        later = float("nan")
        if moves(x[:first]):
            c, d = straight_line(x[:first], r[:first])
            later = rms(r[first:] - c - d * x[first:])
        c, d = straight_line(x, r)
        found.append(Rival(of, rms(r - c - d * x), later))
    return tuple(found)
