"""Per-update analysis of an iteration: estimates at each update and the update's true change.

STEER's Table 1 and OPEFO's Fig. 2(c) are of one update. From the second update on, ratios differ
from 1 and tokens are clipped; an estimate before the first update includes neither.

It reads the policy and changes nothing; it uses the analysis' random stream.

Shapes: R rollouts trained on, n of them in an update's minibatch; T completion tokens at most, N
tokens at mask 1.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.batch import Terms, TokenBatch, masked_mean
from ..core.loss import clip_sides, clipped, importance_ratio
from ..core.objective import Objective
from ..dynamics import ESTIMATORS, agreement, estimate, flow
from ..method.cov import covariance
from ..models.policy_evaluator import PolicyEvaluator
from ..models.rollout import Sequences

SIDES = ("high", "low")
TENTHS = 10  # bins of the old probability


def sides_of(batch: TokenBatch, terms: Terms) -> dict[str, Tensor]:
    """The tokens [B, T] bool that are clipped on each side, at the terms' own ratio."""
    clip = clip_sides(terms, ratio_of(batch, terms))
    return {"high": clip.high & batch.mask, "low": clip.low & batch.mask}


def ratio_of(batch: TokenBatch, terms: Terms) -> Tensor:
    """[B, T]: the ratio that the terms' bounds apply to (a sequence's under GSPO); 1 if none.

    As in `loss.importance_ratio`.
    """
    ratio = importance_ratio(batch, terms)
    return torch.ones_like(batch.logp) if ratio is None else ratio


@dataclass
class UpdateProbe:
    """Measures each update of one iteration on the update's own minibatch."""

    meter: PolicyEvaluator
    objective: Objective
    trained: TokenBatch  # [R, T] the rows trained on, prepared, at the start of the iteration
    sequences: Sequences  # the same rows
    generator: torch.Generator  # for a plan's random selections; not a stream of the training
    updates: list[dict[str, Any]] = field(default_factory=list)  # results, one per update
    # [3, TENTHS] tokens by their old probability: all, above the clip's range, below it
    counts: Tensor = field(default_factory=lambda: torch.zeros(3, TENTHS, dtype=torch.int64))
    seconds: float = 0.0  # spent so far

    def before(self, rows: Tensor) -> TokenBatch:
        """The minibatch `rows` [n] under the policy before the update."""
        began = time.perf_counter()
        batch = self.trained[rows].replace(**self.meter.statistics(self.sequences[rows]))
        self.seconds += time.perf_counter() - began
        return batch

    def after(self, rows: Tensor, batch: TokenBatch, lr: float) -> None:
        """Record the update after it was made. `batch` is the result of `before`."""
        began = time.perf_counter()
        after = self.meter.measure(self.sequences[rows])
        mask, N = batch.mask, int(batch.mask.sum())
        truth = torch.where(mask, after.entropy - batch.need("entropy"), 0)
        terms = self.objective.plan(batch, self.generator)
        held = clipped(batch, terms)
        guesses = {name: estimate(name, batch, clipped=held) for name in ESTIMATORS}
        ratio, sides = ratio_of(batch, terms), sides_of(batch, terms)

        tenth = (batch.old_logp.exp() * TENTHS).long().clamp(max=TENTHS - 1)
        for row, members in zip(self.counts, (mask, sides["high"], sides["low"]), strict=True):
            row += torch.bincount(tenth[members].cpu(), minlength=TENTHS)

        A = batch.need("advantages")
        cov = covariance(batch.logp, A, mask)
        more = mask & (A > 0) & (ratio > 1.2) & (ratio <= 1.28)

        def total(values: Tensor, members: Tensor) -> float:
            return float(values[members].double().sum())

        self.updates.append(
            {
                "update": len(self.updates) + 1,
                "tokens": N,
                "change": float(masked_mean(truth.double(), mask)),
                "ratio": {"min": float(ratio[mask].min()), "max": float(ratio[mask].max())},
                "flow": asdict(flow(guesses["opefo"], mask)),
                "clipped": {
                    side: {
                        "share": int(sides[side].sum()) / N,
                        "opefo": total(guesses["opefo"], sides[side]),
                        "in_update": total(truth, sides[side]),
                    }
                    for side in SIDES
                },
                "clip_higher": {"tokens": int(more.sum()), "covariance": total(cov, more)},
                "estimators": {
                    name: {"mse_eta_l": _mse(lr / N * guess, truth, mask)}
                    | asdict(agreement(guess, truth, mask))
                    for name, guess in guesses.items()
                },
            }
        )
        self.seconds += time.perf_counter() - began

    def estimators(self) -> dict[str, dict[str, float]]:
        """Each estimator's metrics, averaged over the updates that have them."""
        return {
            name: {
                key: _mean([update["estimators"][name][key] for update in self.updates])
                for key in self.updates[0]["estimators"][name]
            }
            for name in (ESTIMATORS if self.updates else ())
        }

    def clipped(self) -> dict[str, dict[str, float]]:
        """OPEFO Fig. 2(c): sums over the updates and the tokens clipped on each side.

        `opefo` is the sum of Eq. 6, `in_update` of the actual change by the update there, nats.
        """
        return {
            side: {
                key: sum(update["clipped"][side][key] for update in self.updates)
                for key in ("opefo", "in_update")
            }
            for side in SIDES
        }

    def clip_higher(self) -> float:
        """COV 4.4: mean covariance (Eq. 8) of tokens inside a bound of 1.28 but outside 1.2.

        Tokens with A > 0 and a ratio between the two, over the updates; NaN without such tokens.
        """
        tokens, cov = (
            sum(update["clip_higher"][key] for update in self.updates)
            for key in ("tokens", "covariance")
        )
        return cov / tokens if tokens else math.nan

    def clipped_by_probability(self) -> list[dict[str, float]]:
        """STEER Fig. 3a: counts of tokens, and of clipped tokens, by their old probability.

        Counts over the updates; bins without tokens are left out.
        """
        table = enumerate(self.counts.T.tolist())
        return [
            {"from": i / TENTHS, "to": (i + 1) / TENTHS, "tokens": n, "high": high, "low": low}
            for i, (n, high, low) in table
            if n
        ]


def _mse(estimate: Tensor, truth: Tensor, mask: Tensor) -> float:
    return float((estimate.double() - truth.double())[mask].square().mean())


def _mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
