"""The entropy law R = -a exp(H) + b: fit, intervals, early prediction, coefficients against size.

COV (arXiv 2505.22617) 2.4, Eq. 6: over a run without entropy intervention, validation score R and
policy entropy H (nats per token) lie on one curve of two coefficients; a is the rate at which the
policy turns entropy into score (dR/dH = -a exp(H)), and b - a is the score at H = 0, the ceiling.
The law is empirical. `doubts` lists where a run does not follow it. Two curves that both merely
drift have a high R^2 too, so R^2 alone is no proof.

n steps are n pairs (H, R) in the order of training, not necessarily of consecutive iterations.
`pairs_of` extracts them from a run: by default COV's, R the validation score and H the entropy of
the training rollouts.
"""

from .early import (
    SHARE,
    SHARES,
    EarlyPrediction,
    Rival,
    Spent,
    early_of,
    early_steps,
    foretold_changes,
    predict_early,
    rivals,
    spent,
)
from .fitting import (
    EntropyLaw,
    LawInterval,
    fit,
)
from .pairs import EVALUATIONS_FEW, Pairs, pairs_of
from .several import (
    LeftOut,
    LogLinear,
    Pooled,
    SizeLaw,
    coefficients_by_size,
    pooled,
    sizes_left_out,
)
from .steps import LawError

__all__ = [
    "EVALUATIONS_FEW", "SHARE", "SHARES", "EarlyPrediction", "EntropyLaw", "LawError",
    "LawInterval", "LeftOut", "LogLinear", "Pairs", "Pooled", "Rival", "SizeLaw", "Spent",
    "coefficients_by_size", "early_of", "early_steps", "fit", "foretold_changes", "pairs_of",
    "pooled", "predict_early", "rivals", "sizes_left_out", "spent",
]  # fmt: skip
