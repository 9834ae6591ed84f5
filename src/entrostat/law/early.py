"""What the law of a run's first steps says about its later ones (COV App. B.3, Fig. 10)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .fitting import EntropyLaw, fit_steps
from .steps import checked_steps, is_whole, rms


@dataclass(frozen=True, eq=False)
class EarlyPrediction:
    """What the law of the first steps says about the later ones, at the entropies they had.

    Attributes:
        law: fitted to the first steps; its ceiling is the forecast of the ceiling.
        share: share of the steps that was asked for.
        steps: steps fitted.
        rest: steps predicted.
        rmse: root of the mean squared error over the steps predicted, in units of the score.
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


def predict_early(
    entropy: ArrayLike, score: ArrayLike, share: float = 0.15, end: int = 1
) -> EarlyPrediction:
    """Fit the law to the first steps and compare it with the rest (COV App. B.3, Fig. 10).

    The later scores are predicted from the later entropies, as in the paper; what the first steps
    alone foretell is the ceiling.

    Args:
        entropy: [n] nats a token, in the order of training.
        score: [n] at the same policies.
        share: share of the n steps to fit, in (0, 1), rounded to whole steps; the paper's 36 of
            236 steps are 0.15.
        end: last steps to average in the error at the end; the paper's final step is 1. A score
            that is the mean reward of one batch is too noisy for 1.

    Raises:
        ValueError: as `fit`; share leaves fewer than 3 steps to fit or fewer than `end` to predict.
    """
    h, r = checked_steps("predict_early", entropy, score)
    n = len(h)
    if not 0 < share < 1:
        raise ValueError(
            f"predict_early: share must be between 0 and 1, got {share!r}; the paper's is 0.15"
        )
    steps = int(share * n + 0.5)
    if steps < 3:
        raise ValueError(
            f"predict_early: share={share:g} of {n} steps are {steps}, and a fit needs 3; raise "
            "share or log more steps"
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
