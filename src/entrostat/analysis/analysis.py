"""What one iteration's updates did to entropy, token by token (`train --analyze every=N`).

Before the updates: what each token's gradient will do to the batch's entropy (influence), by one
backward and one forward-mode pass. After them: what became of every token's entropy (the truth),
what the closed-form estimators had said, and what the parameters' real change says to first order.
Around each update (`watched`): the same for that update alone, with the ratio and the clip of it.

It reads the policy and the optimizer and changes neither; its random stream is its own. It computes
in float32 whatever the precision of training. In memory: three more copies of what is trained.

Shapes: B rollouts of the iteration, T completion tokens at most; R rollouts trained on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.batch import Terms, TokenBatch, masked_mean
from ..dynamics import (
    ESTIMATORS,
    agreement,
    clipped_sides,
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
from ..models.policy_evaluator import PolicyEvaluator
from ..models.rollout import Sequences
from .influence import InfluenceInput, influences
from .responses import by_difficulty, of_responses
from .update_probe import UpdateProbe, ratio_of

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
POSITIONS = 16  # bins at most
TOKENS = 30  # decoded tokens listed
CLOUD = 600  # points


@dataclass
class Analysis:
    """An analysis begun; `finish` ends it.

    Attributes:
        before: statistics [B, T] at the start: logp, entropy, moments, outcome advantages, rewards.
        trained: the rows trained on, prepared, with moments; [R, T].
        kept: [R] row numbers.
        terms: what the methods planned for all of `trained`.
        start: the trained parameters as they were.
        influence: [B, T] nats; 0 where not trained.
        watch: what each update did.
        line: figures so far.
        seconds: spent so far, but for those of `watch`.
    """

    meter: PolicyEvaluator
    sequences: Sequences
    before: TokenBatch
    trained: TokenBatch
    kept: Tensor
    terms: Terms
    start: dict[str, Tensor]
    influence: Tensor
    watch: UpdateProbe
    line: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def finish(self, iteration: int) -> tuple[dict[str, Any], Tensor]:
        """After the updates: the line of analysis.jsonl, and the change of entropy [B, T], nats."""
        began = time.perf_counter()
        after = self.meter.measure(self.sequences)
        assert self.before.entropy is not None
        truth = torch.where(self.before.mask, after.entropy - self.before.entropy, 0)
        end = {name: p.detach() for name, p in self.meter.policy.trained().items()}
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
        first, simpson = [], []
        with forward_mode(model := self.meter.policy.model):
            for rows in self.meter.pieces(self.sequences):
                fn = functional(model, self._entropy_of(rows))
                _, one, three = along(fn, self.start, direction)
                first.append(one)
                simpson.append(three)
        return torch.cat(first), torch.cat(simpson)

    def _entropy_of(self, rows: Tensor) -> Callable[[], Tensor]:
        part = self.sequences[rows]
        return lambda: self.meter.stats(part).entropy

    def _tables(self, truth: Tensor, first: Tensor, simpson: Tensor, after: Tensor) -> None:
        before, trained, kept = self.before, self.trained, self.kept
        assert before.rewards is not None
        assert before.entropy is not None
        assert before.advantages is not None
        assert trained.advantages is not None
        mask, H = before.mask, before.entropy
        influence = self.influence

        A = torch.zeros_like(H)
        A[kept] = trained.advantages.to(A.dtype)
        used = torch.zeros_like(mask)
        used[kept] = mask[kept]
        cov = torch.zeros_like(H)
        cov[kept] = covariance(trained.logp, A[kept], trained.mask)
        guesses = {}
        for name in ESTIMATORS:
            guesses[name] = torch.zeros_like(H)
            guesses[name][kept] = estimate(name, trained)

        watched = self.watch.estimators()
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
            "quantiles": {
                f"{q:g}": float(x)
                for q, x in zip(
                    QUANTILES,
                    torch.quantile(H[mask].double(), H.new_tensor(QUANTILES).double()),
                    strict=True,
                )
            },
        }

        def table(members: dict[str, Tensor]) -> dict[str, dict[str, Any]]:
            found = parts(members, mask, H, truth, influence)
            return {name: asdict(part) for name, part in found.items()}

        right = (before.rewards >= 1)[:, None] & mask
        by_reward = table({"right": right, "wrong": mask & ~right})
        by_sign = table({"positive": (A > 0) & mask, "negative": (A < 0) & mask})
        terms, beyond = self.terms, {}
        for side, rows in clipped_sides(
            ratio_of(trained.replace(logp=after[kept]), terms), terms.advantage, trained.mask,
            1 - terms.ratio_min, terms.ratio_max - 1,
        ).items():  # fmt: skip
            beyond[side] = torch.zeros_like(mask)
            beyond[side][kept] = rows
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
            "cloud": self._cloud(before.advantages, used)
            | _points(
                {"entropy": (H, truth), "omega": (guesses["omega"], truth), "cov": (cov, truth)},
                used,
            ),
        } | of_responses(before, self.sequences.completions)

    def _positions(
        self, table: Callable[[dict[str, Tensor]], dict[str, dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        B, T = self.before.mask.shape
        width = math.ceil(T / POSITIONS)
        place = torch.arange(T, device=self.before.mask.device).expand(B, T)
        bins = {
            str(i): (place >= i) & (place < i + width) & self.before.mask
            for i in range(0, T, width)
        }
        counts = {name: int(member.sum()) for name, member in bins.items()}
        rows = table({name: member for name, member in bins.items() if counts[name]})
        return [
            {"from": int(i), "to": int(i) + width, "tokens": counts[i]}
            | {key: row[key] for key in ("influence", "change", "entropy")}
            for i, row in rows.items()
        ]

    def _by_token(self, truth: Tensor) -> list[dict[str, Any]]:
        """The decoded tokens whose influences add up to most, either way."""
        mask = self.before.mask
        assert self.before.entropy is not None
        ids, place = torch.unique(self.sequences.completions[mask], return_inverse=True)
        count = torch.bincount(place, minlength=len(ids))
        sums = {
            name: torch.zeros(len(ids), dtype=torch.float64, device=mask.device).index_add_(
                0, place, values[mask].double()
            )
            for name, values in (
                ("influence", self.influence), ("change", truth), ("entropy", self.before.entropy)
            )
        }  # fmt: skip
        largest = sums["influence"].abs().argsort(descending=True, stable=True)[:TOKENS]
        texts = token_pieces(self.meter.policy.tokenizer, ids[largest])
        return [
            {
                "text": texts[int(ids[i])],
                "count": int(count[i]),
                "influence": float(sums["influence"][i]),
                "change": float(sums["change"][i]) / int(mask.sum()),
                "entropy": float(sums["entropy"][i]) / int(count[i]),
            }
            for i in largest.tolist()
        ]

    def _cloud(self, outcome: Tensor, used: Tensor) -> dict[str, list[list[float]]]:
        """(A, log p) of some tokens, before and after the methods' edits and weights."""
        edited = torch.zeros_like(self.before.logp)
        edited[self.kept] = (self.terms.advantage * self.terms.weight).to(edited.dtype)
        plain = outcome[:, None].expand_as(edited)
        sets = {"before": (plain, self.before.logp), "after": (edited, self.before.logp)}
        return _points(sets, used)


def _points(sets: dict[str, tuple[Tensor, Tensor]], used: Tensor) -> dict[str, list[list[float]]]:
    """The two values, to four digits, of at most `CLOUD` of the used tokens."""
    n = int(used.sum())
    some = torch.arange(0, n, max(1, math.ceil(n / CLOUD)), device=used.device)
    return {
        name: [[float(f"{v:.4g}") for v in pair] for pair in zip(*(
            x[used][some].tolist() for x in xy), strict=True)]
        for name, xy in sets.items()
    }  # fmt: skip


def analyse(subject: InfluenceInput) -> Analysis:
    """Before an iteration's updates: the tokens' influences on the batch's mean entropy."""
    began = time.perf_counter()
    meter, sequences, kept = subject.meter, subject.sequences, subject.kept
    now = meter.statistics(sequences)
    before = subject.graded.replace(**now, old_logp=now["logp"], old_entropy=now["entropy"])
    trained = subject.trained.replace(
        **{name: values[kept] for name, values in now.items()},
        old_logp=now["logp"][kept], old_entropy=now["entropy"][kept],
    )  # fmt: skip
    terms = subject.objective.plan(trained, subject.generator)
    influence, predicted = influences(subject, trained, terms)
    line = {
        "pieces": len(meter.pieces(sequences)),
        "influence/sum": float(influence.double().sum()),
        "influence/predicted": predicted,
    }
    return Analysis(
        meter, sequences, before, trained, kept, terms,
        {name: p.detach().clone() for name, p in meter.policy.trained().items()}, influence,
        UpdateProbe(meter, subject.objective, trained, sequences[kept], subject.generator), line,
        time.perf_counter() - began,
    )  # fmt: skip


@contextmanager
def watched(analysis: Analysis | None, rows: Tensor, lr: float) -> Iterator[None]:
    """Around one update of the minibatch `rows` [n], at rate `lr`; nothing if not analysed."""
    if analysis is None:
        yield
        return
    before = analysis.watch.before(rows)
    yield
    analysis.watch.after(rows, before, lr)


def finite(value: Any) -> Any:
    """Plain data without what JSON has no word for: NaN and infinities become None."""
    if isinstance(value, dict):
        return {key: finite(v) for key, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def numbers(line: dict[str, Any]) -> dict[str, float]:
    """The flat figures of a line, for the metrics of the iteration."""
    return {k: v for k, v in line.items() if "/" in k and v is not None}
