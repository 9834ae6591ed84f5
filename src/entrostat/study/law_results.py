"""What `entrostat law` found about a run, and about several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..law import (
    EarlyPrediction,
    EntropyLaw,
    LawInterval,
    Pairs,
    Pooled,
    Rival,
    SizeLaw,
    Spent,
)
from ..logs.run import Run


@dataclass(frozen=True)
class RunLaw:
    """The law of one run.

    Attributes:
        name: of the run, different from the others'.
        run: what was read.
        pairs: which entropy, which score.
        law: the fit.
        interval: its 95% intervals.
        early: the prediction from the first steps; None where there are too few.
        rivals: the law beside lines in H and in the step; none where `early` is None.
        spent: entropy spent and score gained after a twelfth and a third of the steps.
        doubts: sentences.
        size: parameters of the model; None where the run does not say.
        counted: whether `size` was counted without embeddings; otherwise it is from the name.
    """

    name: str
    run: Run
    pairs: Pairs
    law: EntropyLaw
    interval: LawInterval
    early: EarlyPrediction | None
    rivals: tuple[Rival, ...]
    spent: tuple[Spent, ...]
    doubts: tuple[str, ...]
    size: float | None
    counted: bool


@dataclass(frozen=True)
class Laws:
    """The laws of several runs.

    Attributes:
        found: of those that could be fitted.
        failed: why not, of the others, by name.
        sizes: the runs that have a size, coefficients against it, doubts; None for one size only.
        together: one law for all; None for one run, and where runs are fitted to different
            quantities.
        share: of the steps that predictions are fitted to.
    """

    found: Sequence[RunLaw]
    failed: dict[str, str]
    sizes: tuple[list[RunLaw], SizeLaw, tuple[str, ...]] | None
    together: Pooled | None
    share: float
