"""Prediction of a run's later steps by the law of its first steps (COV App. B.3, Fig. 10).

Two curves that merely drift fit each other. A law of entropy must do better than a straight line in
the step, which does not use entropy, above all at steps outside the fit (`rivals`). `spent` gives
how early entropy is spent and score gained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log

import numpy as np
from numpy.typing import ArrayLike

from ..logs.run import last_ones
from .fitting import EntropyLaw, fit_steps
from .steps import STEPS_LEAST, Array, LawError, checked_steps, is_whole, least_squares, moves, rms

SHARE = 0.15  # COV's
SHARES = (1 / 12, 1 / 3)  # COV's: 200 and 800 of 2,400 gradient steps
_FIRST = 8  # steps before the first forecast of a change


@dataclass(frozen=True, eq=False)
class EarlyPrediction:
    """Prediction of the later steps' scores from their entropies, by the law of the first steps.

    Attributes:
        law: fitted to the first steps; its ceiling is the forecast of the ceiling.
        share: requested share of the steps.
        steps: number of steps fitted.
        rest: number of steps predicted.
        rmse: root mean squared error over the predicted steps, in units of the score. COV reports
            this error (.9% on math, 1.2% on code). Do not compare it with the in-sample
            `EntropyLaw.rmse`.
        rmse_stay: the same for a constant prediction, the mean score of the second half of the
            fitted steps; a law is useful if its `rmse` is below this.
        end_error: predicted minus observed, both averaged over the last `end` steps.
        end: number of these last steps.
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
        """Sentences: no better than a constant, far extrapolation, then those of the early law."""
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
    """The number of steps in the first `share` of n steps, rounded up.

    0.15 of 236 steps is then COV's 36 (App. B.3: "only 15% training steps", "the first 36",
    "the subsequent 200"); 35, the nearest whole number, would be 14.8%.
    """
    return ceil(round(share * n, 9))  # .07 * 100 is 7.000000000000001


def predict_early(
    entropy: ArrayLike, score: ArrayLike, share: float = SHARE, end: int = 1
) -> EarlyPrediction:
    """Fit the law to the first steps and compare it with the rest (COV App. B.3, Fig. 10).

    The later scores are predicted from the later entropies, as in the paper. Only the ceiling is
    predicted from the first steps alone.

    Args:
        entropy: [n] nats per token, in the order of training.
        score: [n] at the same policies.
        share: share of the n steps to fit, in (0, 1), rounded up to whole steps (`early_steps`);
            the paper's is 0.15, 36 of its 236 steps.
        end: number of last steps averaged in the error at the end; 1 in the paper. A score that is
            the mean reward of one batch is too noisy for 1.

    Raises:
        LawError: a ValueError; as in `fit`; or `share` leaves fewer than 3 steps to fit, or none
            to predict.
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


def early_of(law: EntropyLaw, share: float = SHARE) -> EarlyPrediction:
    """`predict_early` on the steps of a law, with the end error over the last fifteenth.

    A single batch's mean score is too noisy; COV evaluates on whole test sets.
    """
    n = len(law.score)
    end = min(last_ones(n), max(1, n - early_steps(n, share)))
    return predict_early(law.entropy, law.score, share, end)


def foretold_changes(entropy: ArrayLike, score: ArrayLike) -> list[float | None]:
    """The next entropy change that the law of the steps so far predicts, at every step.

    The law R = -a exp(H) + b is fitted to the steps before t. H' = log((b - R_t) / a) is its
    entropy at the score of t, and H' - H_t the change back onto the curve.

    Args:
        entropy: H [n], nats.
        score: R [n].

    Returns:
        n changes, nats; None for the first 8 steps, where a <= 0 (no trade) or R_t >= b.

    Raises:
        LawError: the lists differ in length, or are shorter than 3.
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


@dataclass(frozen=True)
class Rival:
    """R = c + d x by least squares.

    Attributes:
        of: x: "exp(H)" (the law itself), "H" (nats per token) or "step" (0, 1, ..).
        rmse: in-sample, over all steps, in units of the score.
        rmse_predicted: at the later steps, of the line fitted to the first ones; NaN if x is
            constant in these.
    """

    of: str
    rmse: float
    rmse_predicted: float


def rivals(entropy: ArrayLike, score: ArrayLike, share: float = SHARE) -> tuple[Rival, ...]:
    """The law and its baselines, lines in H and in the step, each with two coefficients.

    Args:
        entropy: [n] H, nats per token, in the order of training.
        score: [n] R at the same policies.
        share: share of the steps that the prediction is fitted to, as in `predict_early`.

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
            c, d, _, _ = least_squares(x[:first], r[:first])
            later = rms(r[first:] - c - d * x[first:])
        c, d, _, _ = least_squares(x, r)
        found.append(Rival(of, rms(r - c - d * x), later))
    return tuple(found)


@dataclass(frozen=True)
class Spent:
    """Entropy spent and score gained after a share of the run.

    Attributes:
        share: of the steps, 0 to 1.
        entropy: (H_1 - H) / (H_1 - H_end), 1 at the end; NaN if the run does not end lower.
        score: (R - R_1) / (R_end - R_1), likewise; NaN if the run does not end better.
    """

    share: float
    entropy: float
    score: float


def spent(
    entropy: ArrayLike, score: ArrayLike, shares: Sequence[float] = SHARES
) -> tuple[Spent, ...]:
    """Shares of the entropy spent and of the score gained (COV 2.3, Fig. 2).

    Args:
        entropy: [n] H, nats per token, in the order of training.
        score: [n] R at the same policies.
        shares: of the steps, each above 0 and at most 1; interpolated linearly between steps. The
            end is the mean of the last fifteenth.

    Example:
        >>> (half,) = spent([2.0, 1.0, 1.0, 1.0, 1.0], [0.0, 0.1, 0.2, 0.3, 0.4], [0.5])
        >>> half.entropy, half.score
        (1.0, 0.5)
    """
    for share in shares:
        if not 0 < share <= 1:
            raise ValueError(f"spent: a share is above 0 and at most 1, got {share!r}")
    h, r = checked_steps("spent", entropy, score)
    return tuple(Spent(s, _done(h, s, falls=True), _done(r, s, falls=False)) for s in shares)


def _done(values: Array, share: float, falls: bool) -> float:
    n = len(values)
    moved = values - values[0]
    end = float(moved[-last_ones(n) :].mean())
    if (end >= 0) if falls else (end <= 0):
        return float("nan")
    return float(np.interp(share * (n - 1), np.arange(n), moved)) / end
