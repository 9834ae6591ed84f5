"""What the law of a run's first steps says about its later ones (COV App. B.3, Fig. 10)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log

import numpy as np
from numpy.typing import ArrayLike

from .fitting import EntropyLaw, fit_steps
from .steps import STEPS_LEAST, LawError, checked_steps, is_whole, moves, rms

SHARE = 0.15  # COV's
_FIRST = 8  # steps before the first forecast of a change


@dataclass(frozen=True, eq=False)
class EarlyPrediction:
    """What the law of the first steps says about the later ones, at the entropies they had.

    Attributes:
        law: fitted to the first steps; its ceiling is the forecast of the ceiling.
        share: share of the steps that was asked for.
        steps: steps fitted.
        rest: steps predicted.
        rmse: of the prediction: root of the mean squared error over the steps predicted, in units
            of the score. It is what COV reports (.9% on math, 1.2% on code), and not to be
            compared with the in-sample `EntropyLaw.rmse`.
        rmse_stay: the same for saying that the score stays at its mean over the second half of the
            fitted steps; a law is of use where its `rmse` is below this.
        end_error: predicted minus seen, both averaged over the last `end` steps.
        end: how many.
        reached: share of the range of exp(H) over all steps that the fitted steps span.
    """

    law: EntropyLaw
    share: float
    steps: int
    rest: int
    rmse: float
    rmse_stay: float
    end_error: float
    end: int
    reached: float

    @property
    def ceiling(self) -> float:
        """Score at H = 0 by the law of the first steps."""
        return self.law.ceiling

    @property
    def doubts(self) -> tuple[str, ...]:
        """Sentences: no better than no law, far extrapolation, then those of the early law."""
        found = []
        if self.rmse >= self.rmse_stay:
            found.append(
                f"Predicting early is no better than saying that the score stays as it was "
                f"(RMSE {self.rmse:.3g} against {self.rmse_stay:.3g})."
            )
        if self.reached < 0.5:
            found.append(
                f"The first {self.steps} steps span {self.reached:.0%} of the range of exp(H) that "
                "the run went through; the prediction is an extrapolation."
            )
        return (*found, *(f"Of the first {self.steps} steps: {d}" for d in self.law.doubts))


def early_steps(n: int, share: float = SHARE) -> int:
    """The first `share` of n steps: the fewest that are no less than it.

    So that 0.15 of 236 steps are COV's 36 (App. B.3: "only 15% training steps", "the first 36",
    "the subsequent 200"); 35, the nearest whole number, would be 14.8%.
    """
    return ceil(round(share * n, 9))  # .07 * 100 is 7.000000000000001


def predict_early(
    entropy: ArrayLike, score: ArrayLike, share: float = SHARE, end: int = 1
) -> EarlyPrediction:
    """Fit the law to the first steps and compare it with the rest (COV App. B.3, Fig. 10).

    The later scores are predicted from the later entropies, as in the paper; what the first steps
    alone foretell is the ceiling.

    Args:
        entropy: [n] nats per token, in the order of training.
        score: [n] at the same policies.
        share: share of the n steps to fit, in (0, 1), rounded up to whole steps (`early_steps`);
            the paper's is 0.15, 36 of its 236 steps.
        end: last steps to average in the error at the end; the paper's final step is 1. A score
            that is the mean reward of one batch is too noisy for 1.

    Raises:
        LawError: a ValueError; as `fit`; share leaves fewer than 3 steps to fit, or none to
            predict.
        ValueError: share is not in (0, 1), end is not one of the steps predicted.
    """
    h, r = checked_steps("predict_early", entropy, score)
    n = len(h)
    if not 0 < share < 1:
        raise ValueError(
            f"predict_early: share must be between 0 and 1, got {share!r}; the paper's is 0.15"
        )
    steps = early_steps(n, share)
    if steps < STEPS_LEAST:
        only = "is 1" if steps == 1 else f"are {steps}"
        least = floor(round((STEPS_LEAST - 1) / share, 9)) + 1
        raise LawError(
            "predict_early",
            f"share={share:g} of {n} steps {only}, and a fit needs {STEPS_LEAST}; raise share or "
            f"log {least} steps or more",
            f"the first {100 * share:g}% of {n} steps {only}, and a fit needs {STEPS_LEAST}; it "
            f"takes a run of {least} steps or more",
        )
    if steps == n:
        raise LawError(
            "predict_early",
            f"share={share:g} of {n} steps are all of them; lower share or log more steps",
            f"the first {100 * share:g}% of {n} steps are all of them, so that none is left to "
            "predict",
        )
    if not is_whole(end) or not 1 <= end <= n - steps:
        raise ValueError(
            f"predict_early: end must be a whole number from 1 to the {n - steps} steps that are "
            f"predicted, got {end!r}"
        )
    law = fit_steps("predict_early", h[:steps], r[:steps])
    error = law.predict(h[steps:]) - r[steps:]
    stay = r[steps // 2 : steps].mean()
    return EarlyPrediction(
        law, share, steps, n - steps,
        rmse=rms(error),
        rmse_stay=rms(stay - r[steps:]),
        end_error=float(error[-end:].mean()),
        end=end,
        reached=float(np.ptp(np.exp(h[:steps])) / np.ptp(np.exp(h))),
    )  # fmt: skip


def foretold_changes(entropy: ArrayLike, score: ArrayLike) -> list[float | None]:
    """What the law of the steps so far says that entropy does next.

    The law R = -a exp(H) + b is fitted to the steps before t; H' = log((b - R_t) / a) is the
    entropy that belongs to the score of t, and H' - H_t the change back onto the curve.

    Args:
        entropy: H [n], nats.
        score: R [n].

    Returns:
        n changes, nats; None for the first 8 steps, where a <= 0 (no trade) or R_t >= b.

    Raises:
        LawError: the lists do not fit together, or are shorter than 3.
    """
    h, r = checked_steps("foretold_changes", entropy, score)
    changes: list[float | None] = []
    for t in range(len(h)):
        change = None
        if t >= _FIRST and moves(h[:t]):
            law = fit_steps("foretold_changes", h[:t], r[:t])
            share = (law.b - r[t]) / law.a if law.a > 0 else 0.0
            change = log(share) - float(h[t]) if share > 0 else None
        changes.append(change)
    return changes
