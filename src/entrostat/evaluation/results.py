"""Metrics of an evaluation with confidence intervals.

A line is one problem (`runner.line_of`). Metrics are means over problems, or computed over all
responses. Intervals are bootstrap percentiles over resampled problems. The responses to a problem
stay together, because they are not independent samples of the set.

Shapes: n problems, R resamples.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .metrics import distinct_correct, ngram_diversity, pass_at_k, self_bleu
from .statistics import BINS, MOST, expected_calibration_error, maj_at_k, majorities, weighted_auroc

Line = Mapping[str, Any]
Statistic = Callable[[NDArray[np.float64]], float]  # function of the problems' weights [n]
LEVEL = 0.95
_SPELT = {
    "ngram_diversity": "n-gram diversity", "self_bleu": "Self-BLEU", "logp_gap": "log-prob gap",
    "auroc": "AUROC", "ece": "ECE",
}  # fmt: skip


def figures(
    lines: Sequence[Line], resamples: int = 1000, seed: int = 0, name: str = ""
) -> dict[str, dict[str, float | None]]:
    """All metrics of a set: {name: {"value", "low", "high"}}; None for an undefined number.

    R = `resamples`, seeded by (`seed`, `name`); 0 omits the intervals.
    """
    statistics = _statistics(lines)
    n = len(lines)
    stream = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    rng = np.random.default_rng([seed, stream])
    # a single problem cannot be resampled
    draws = rng.multinomial(n, np.full(n, 1 / n), resamples if n > 1 else 0).astype(float)
    found = {key: _with_interval(statistic, draws, n) for key, statistic in statistics.items()}
    for key, figure in found.items():
        if key.startswith(("avg@", "pass@", "maj@")) or key in ("truncated", "failed"):
            _at_an_end(figure, n)
    return found


def side_by_side(
    entries: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, tuple[str, list[dict[str, float | None] | None]]]:
    """Select the metrics by name ("pass@{k}") that some entry of results.json has a value for.

    Returns for each its label in tables, and its value by entry; None if an entry has none.
    """
    ks = {str(entry["k"]) for entry in entries}
    k = ks.pop() if len(ks) == 1 else "k"
    found = {}
    for name in names:
        figures = [entry["metrics"].get(name.replace("{k}", str(entry["k"]))) for entry in entries]
        known = [one if one is not None and one["value"] is not None else None for one in figures]
        if any(known):
            label = _SPELT.get(name, name.replace("{k}", k).replace("_", " "))
            found[name] = (label, known)
    return found


def shown(ks: int) -> list[int]:
    """The k that a table shows: powers of two, and k itself."""
    return sorted({2**i for i in range(ks.bit_length()) if 2**i <= ks} | {ks})


def of_problem(line: Line) -> dict[str, float | None]:
    """Metrics of one problem, which are averaged over a set.

    `avg@k`, `pass@1` ... `pass@k`, `maj@j` (j in `shown`), `distinct` right answers; diversity of
    words (`metrics.ngram_diversity`, `metrics.self_bleu`) and the number of `clusters`;
    `prompt_entropy` in nats; `length` in tokens; shares `truncated` and `failed`.
    """
    scores, texts, forms, votes = (line[key] for key in ("scores", "responses", "forms", "votes"))
    k, right = len(scores), sum(s >= 1 for s in scores)
    figures: dict[str, float | None] = {f"avg@{k}": sum(scores) / k}
    figures |= {f"pass@{j}": pass_at_k(k, right, j) for j in range(1, k + 1)}
    if k <= MOST:
        found = majorities(votes, scores)
        figures |= {f"maj@{j}": float(found[j - 1]) for j in shown(k)[:-1]}
    figures[f"maj@{k}"] = maj_at_k(votes, scores, k)  # 0 if all abstain
    said = [t if form is None else form for t, form in zip(texts, forms, strict=True)]
    words = any(text.split() for text in texts)
    clusters, prompt = line.get("clusters"), line.get("prompt_entropy")
    return figures | {
        "distinct": distinct_correct(said, scores),
        "ngram_diversity": ngram_diversity(texts) if words else None,
        "self_bleu": self_bleu(texts) if k > 1 else None,
        "clusters": None if clusters is None else len(set(clusters)),
        "prompt_entropy": prompt,
        "base_prompt_entropy": line.get("base_prompt_entropy"),
        "length": sum(line["tokens"]) / k,
        "truncated": line["finished"].count(False) / k,
        "failed": line["failed"] / k,
    }


def _statistics(lines: Sequence[Line]) -> dict[str, Statistic]:
    table = [of_problem(line) for line in lines]
    columns = {
        key: np.array([math.nan if row.get(key) is None else row[key] for row in table], float)
        for key in dict.fromkeys(key for row in table for key in row)
    }
    found: dict[str, Statistic] = {
        key: _mean(column) for key, column in columns.items() if not np.isnan(column).all()
    }
    found |= _entropies(lines, columns)
    found |= _calibration(lines)
    return found


def _entropies(lines: Sequence[Line], columns: Mapping[str, NDArray]) -> dict[str, Statistic]:
    """Response entropy per token, and how prompt entropy relates to accuracy (PAR App. C.3)."""
    found: dict[str, Statistic] = {}
    if all(line.get("entropy") is not None for line in lines):
        tokens = [np.array(line["tokens"], float) for line in lines]
        nats = [t @ np.array(line["entropy"]) for t, line in zip(tokens, lines, strict=True)]
        count = [t.sum() for t in tokens]
        found["entropy"] = _ratio(np.array(nats), np.array(count))
        found["entropy_per_response"] = _mean(
            np.array([sum(line["entropy"]) / len(line["entropy"]) for line in lines])
        )
    own, base = columns["prompt_entropy"], columns["base_prompt_entropy"]
    both = ~(np.isnan(own) | np.isnan(base))
    if both.any():
        found["prompt_entropy_ratio"] = _ratio(np.where(both, own, 0), np.where(both, base, 0))
    known = ~np.isnan(own)
    k = len(lines[0]["scores"])
    if known.sum() > 2:
        found["spearman_prompt_entropy"] = _spearman(own, columns[f"avg@{k}"], known)
    return found


def _calibration(lines: Sequence[Line]) -> dict[str, Statistic]:
    """PAR 5.3: mean log-prob per token of right and wrong responses, AUROC, ECE.

    For the ECE, a response's confidence is exp of that mean: the geometric mean of its tokens'
    probabilities.
    """
    if not all(line.get("logp") is not None for line in lines):
        return {}
    logp = np.minimum(np.concatenate([line["logp"] for line in lines]).astype(float), 0)
    scores = np.concatenate([line["scores"] for line in lines]).astype(float)
    right, owner = scores >= 1, np.repeat(np.arange(len(lines)), [len(x["logp"]) for x in lines])
    auroc, confidence = weighted_auroc(logp, right), np.exp(logp)

    def side(of: NDArray[np.bool_]) -> Statistic:
        own = of.astype(float)
        return _ratio(np.bincount(owner, logp * own), np.bincount(owner, own))

    good, bad = side(right), side(~right)
    return {
        "logp_right": good,
        "logp_wrong": bad,
        "logp_gap": lambda w: good(w) - bad(w),
        "auroc": lambda w: auroc(w[owner]),
        "ece": lambda w: expected_calibration_error(confidence, scores, BINS, w[owner]),
    }


def _mean(column: NDArray[np.float64]) -> Statistic:
    known = ~np.isnan(column)
    return _ratio(np.where(known, column, 0), known.astype(float))


def _ratio(over: NDArray, under: NDArray) -> Statistic:
    def statistic(weights: NDArray[np.float64]) -> float:
        total = weights @ under
        return float(weights @ over / total) if total else math.nan

    return statistic


def _spearman(x: NDArray, y: NDArray, known: NDArray[np.bool_]) -> Statistic:
    def statistic(weights: NDArray[np.float64]) -> float:
        times = np.where(known, weights, 0).astype(int)
        a, b = (_ranks(np.repeat(v, times)) for v in (x, y))
        spread = a.std() * b.std() if len(a) else 0.0
        return float(((a - a.mean()) * (b - b.mean())).mean() / spread) if spread else math.nan

    return statistic


def _ranks(values: NDArray) -> NDArray[np.float64]:
    """Ranks, ties averaged; scipy's function takes seconds to import."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def _at_an_end(figure: dict[str, float | None], n: int) -> None:
    """Widen the interval of a share that is 0, or 1, in all problems.

    Resamples cannot differ then, so the interval is Clopper and Pearson's for n problems.
    """
    if figure["value"] in (0.0, 1.0) and figure["low"] == figure["high"] is not None:
        end = ((1 - LEVEL) / 2) ** (1 / n)
        figure |= {"low": end} if figure["value"] else {"high": 1 - end}


def _with_interval(
    statistic: Statistic, draws: NDArray[np.float64], n: int
) -> dict[str, float | None]:
    value = statistic(np.ones(n))
    found: dict[str, float | None] = {"value": None if math.isnan(value) else value}
    found |= {"low": None, "high": None}
    values = np.array([statistic(weights) for weights in draws])
    values = values[~np.isnan(values)]
    if len(values):
        tail = 100 * (1 - LEVEL) / 2
        low, high = np.percentile(values, [tail, 100 - tail])
        found |= {"low": float(low), "high": float(high)}
    return found
