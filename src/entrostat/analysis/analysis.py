"""Per-token effect of an iteration's updates on entropy (`train --analyze.every N`).

Before the updates: the effect of each token's gradient on the batch's entropy (influence), by one
backward and one forward-mode pass. After them: the true change of every token's entropy, the
closed-form estimates, and the first-order change along the parameters' real change. Around each
update (`watched`): the same for that update alone, with its ratio and clip.

It reads the policy and the optimizer and changes neither; it has its own random stream. It computes
in float32 whatever the precision of training, and needs three more copies of the trained weights.

Shapes: B rollouts of the iteration, T completion tokens at most; R rollouts trained on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ..core.batch import masked_mean
from ..dynamics import (
    ESTIMATORS,
    agreement,
    concentration,
    covariance_table,
    estimate,
    flow,
    forward_mode,
    functional,
    parts,
    quadrants,
)
from ..dynamics.derivatives import along
from ..method.cov import covariance
from ..models.policy import token_pieces
from ..models.rollout import Sequences
from .influence import InfluenceInput, influences
from .responses import by_difficulty, of_responses
from .update_probe import UpdateProbe, sides_of

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
POSITIONS = 16  # bins at most
TOKENS = 30  # decoded tokens listed
CLOUD = 600  # points


class Analysis:
    """An analysis, started before an iteration's updates; `finish` ends it."""

    def __init__(self, subject: InfluenceInput) -> None:
        began = time.perf_counter()
        meter, sequences, kept = subject.meter, subject.sequences, subject.kept
        self.subject, now = subject, meter.statistics(sequences)
        # [B, T] at the start: logp, entropy, moments, outcome advantages, rewards
        self.before = subject.graded.replace(
            **now, old_logp=now["logp"], old_entropy=now["entropy"]
        )
        # [R, T] the rows trained on, prepared, with moments, and the methods' plan for them
        self.trained = subject.trained.replace(
            **{name: values[kept] for name, values in now.items()},
            old_logp=now["logp"][kept], old_entropy=now["entropy"][kept],
        )  # fmt: skip
        self.terms = subject.objective.plan(self.trained, subject.generator)
        # [B, T] nats; 0 where not trained
        self.influence, predicted = influences(subject, self.trained, self.terms)
        self.line: dict[str, Any] = {
            "pieces": len(meter.pieces(sequences)),
            "influence/sum": float(self.influence.double().sum()),
            "influence/predicted": predicted,
        }
        self.start = {name: p.detach().clone() for name, p in meter.policy.trained().items()}
        self.watch = UpdateProbe(
            meter, subject.objective, self.trained, sequences[kept], subject.generator
        )
        self.seconds = time.perf_counter() - began  # spent so far, without those of `watch`

    def finish(self, iteration: int) -> tuple[dict[str, Any], Tensor]:
        """After the updates: the line of analysis.jsonl, and the entropy change [B, T], nats."""
        began = time.perf_counter()
        meter = self.subject.meter
        after = meter.measure(self.subject.sequences)
        truth = torch.where(self.before.mask, after.entropy - self.before.need("entropy"), 0)
        end = {name: p.detach() for name, p in meter.policy.trained().items()}
        direction = {name: end[name] - self.start[name] for name in end}
        first, simpson = self._along(direction)
        self.line = {
            "iteration": iteration,
            "change/mean": float(masked_mean(truth, self.before.mask)),
            "change/first_order": float(masked_mean(first, self.before.mask)),
            "change/simpson": float(masked_mean(simpson, self.before.mask)),
        } | self.line
        self._tables(truth, first, simpson, after.logp)
        self.seconds += time.perf_counter() - began
        self.line["time/analysis"] = self.seconds + self.watch.seconds
        return finite(self.line), truth

    def _along(self, direction: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Change [B, T] of first and third order along the updates' whole parameter change."""
        meter, sequences = self.subject.meter, self.subject.sequences
        first, simpson = [], []
        with forward_mode(model := meter.policy.model):
            for rows in meter.pieces(sequences):

                def entropy(part: Sequences = sequences[rows]) -> Tensor:
                    return meter.stats(part).entropy

                _, one, three = along(functional(model, entropy), self.start, direction)
                first.append(one)
                simpson.append(three)
        return torch.cat(first), torch.cat(simpson)

    def _whole(self, values: Tensor) -> Tensor:
        """[R, T] -> [B, T]: 0 in rollouts that are not trained on."""
        like = self.before.mask if values.dtype == torch.bool else self.before.logp
        out = torch.zeros_like(like)
        out[self.subject.kept] = values.to(out.dtype)
        return out

    def _tables(self, truth: Tensor, first: Tensor, simpson: Tensor, after: Tensor) -> None:
        before, trained, influence = self.before, self.trained, self.influence
        mask, H = before.mask, before.need("entropy")
        A = self._whole(trained.need("advantages"))
        used = self._whole(trained.mask)
        cov = self._whole(covariance(trained.logp, trained.need("advantages"), trained.mask))
        guesses = {name: self._whole(estimate(name, trained)) for name in ESTIMATORS}
        watched = self.watch.estimators()
        quantiles = H[mask].double().quantile(H.new_tensor(QUANTILES).double()).tolist()
        self.line |= {
            "influence/top_1": concentration(influence, used, 0.01),
            "influence/top_10": concentration(influence, used, 0.1),
            "cov/mean": float(masked_mean(cov, used)),
            "cov/pg_mean": -float(masked_mean(guesses["cov_pg"], used)),
            "clip/higher_cov": self.watch.clip_higher(),
            "weight/mean": float(masked_mean(self.terms.weight.double(), trained.mask)),
            "estimators": {
                name: {
                    "where": asdict(agreement(guess, truth, used)),
                    "which": asdict(agreement(guess, influence, used)),
                    "update": watched.get(name),
                }
                for name, guess in guesses.items()
            }
            | {
                name: {"where": asdict(agreement(change, truth, used))}
                for name, change in (("first_order", first), ("simpson", simpson))
            },
            "flow": {
                "influence": asdict(flow(influence, used)),
                "opefo": asdict(flow(guesses["opefo"], used)),
                "change": asdict(flow(truth, mask)),
            },
            "covariance": {f"{s:g}": x for s, x in covariance_table(cov, used).items()},
            "quantiles": {f"{q:g}": x for q, x in zip(QUANTILES, quantiles, strict=True)},
        }

        def table(members: dict[str, Tensor]) -> dict[str, dict[str, Any]]:
            found = parts(members, mask, H, truth, influence)
            return {name: asdict(part) for name, part in found.items()}

        right = (before.need("rewards") >= 1)[:, None] & mask
        by_reward = table({"right": right, "wrong": mask & ~right})
        by_sign = table({"positive": (A > 0) & mask, "negative": (A < 0) & mask})
        kept = self.subject.kept
        sides = sides_of(trained.replace(logp=after[kept]), self.terms)
        beyond = {side: self._whole(tokens) for side, tokens in sides.items()}
        clipped, in_updates = table(beyond), self.watch.clipped()
        self.line |= {
            "entropy": {k: v["entropy"] for k, v in (by_reward | by_sign).items() if v["share"]},
            "quadrants": table(quadrants(A, before.logp, mask)),
            "correct": by_reward,
            "clipped": {
                k: {"share": v["share"], "change": v["change"]} | in_updates[k]
                for k, v in clipped.items()
            },
            "updates": self.watch.updates,
            "clipped_by_probability": self.watch.clipped_by_probability(),
            "position": self._positions(table),
            "tokens": self._by_token(truth),
            "prompt_covariance": by_difficulty(before[kept]),
            "cloud": {
                name: _points(x, y, used)
                for name, x, y in (
                    ("before", before.need("advantages")[:, None].expand_as(H), before.logp),
                    ("after", self._whole(self.terms.advantage * self.terms.weight), before.logp),
                    ("entropy", H, truth),
                    ("omega", guesses["omega"], truth),
                    ("cov", cov, truth),
                )
            },
        } | of_responses(before, self.subject.sequences.completions)

    def _positions(
        self, table: Callable[[dict[str, Tensor]], dict[str, dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        mask, T = self.before.mask, self.before.mask.shape[1]
        width = math.ceil(T / POSITIONS)
        bins = torch.arange(T, device=mask.device) // width
        members = {str(i): (bins == i) & mask for i in range(math.ceil(T / width))}
        rows = table({i: member for i, member in members.items() if member.any()})
        return [
            {"from": int(i) * width, "to": (int(i) + 1) * width, "tokens": int(members[i].sum())}
            | {key: row[key] for key in ("influence", "change", "entropy")}
            for i, row in rows.items()
        ]

    def _by_token(self, truth: Tensor) -> list[dict[str, Any]]:
        """The decoded tokens with the largest summed influences, positive or negative."""
        mask, N = self.before.mask, int(self.before.mask.sum())
        ids, place, count = torch.unique(
            self.subject.sequences.completions[mask], return_inverse=True, return_counts=True
        )
        influence, change, entropy = (
            torch.zeros(len(ids), dtype=torch.float64, device=mask.device).index_add_(
                0, place, values[mask].double()
            )
            for values in (self.influence, truth, self.before.need("entropy"))
        )
        largest = influence.abs().argsort(descending=True, stable=True)[:TOKENS]
        texts = token_pieces(self.subject.meter.policy.tokenizer, ids[largest])
        return [
            {
                "text": texts[int(ids[i])],
                "count": int(count[i]),
                "influence": float(influence[i]),
                "change": float(change[i]) / N,
                "entropy": float(entropy[i]) / int(count[i]),
            }
            for i in largest.tolist()
        ]


def _points(x: Tensor, y: Tensor, used: Tensor) -> list[list[float]]:
    """(x, y), to four digits, of at most `CLOUD` of the used tokens."""
    n = int(used.sum())
    some = torch.arange(0, n, max(1, math.ceil(n / CLOUD)), device=used.device)
    pairs = zip(x[used][some].tolist(), y[used][some].tolist(), strict=True)
    return [[float(f"{value:.4g}") for value in pair] for pair in pairs]


@contextmanager
def watched(analysis: Analysis | None, rows: Tensor, lr: float) -> Iterator[None]:
    """Context of one update of the minibatch `rows` [n], at rate `lr`; no-op if not analysed."""
    if analysis is None:
        yield
        return
    before = analysis.watch.before(rows)
    yield
    analysis.watch.after(rows, before, lr)


def finite(value: Any) -> Any:
    """Plain data valid in JSON: NaN and infinities become None."""
    if isinstance(value, dict):
        return {key: finite(v) for key, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def numbers(line: dict[str, Any]) -> dict[str, float]:
    """The numbers of a line, flat, for the metrics of the iteration."""
    return {k: v for k, v in line.items() if "/" in k and v is not None}
