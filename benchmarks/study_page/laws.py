"""Tables of the entropy law R = -a exp(H) + b (COV 2.4), over settings and over sizes of policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import mean, median

from entrostat.law import (
    EarlyPrediction,
    EntropyLaw,
    Rival,
    Spent,
    coefficients_by_size,
    fit,
    pairs_of,
    pooled,
    predict_early,
    rivals,
    sizes_left_out,
    spent,
)
from entrostat.study.figures import Figure

from .cells import plain, rows_of, said, signed, within
from .record import Record

SIZES = {"tiny-32x4": (32, 4), "tiny": (64, 3), "tiny-96x3": (96, 3), "tiny-128x5": (128, 5)}


@dataclass(frozen=True)
class Fitted:
    """The law of a run, what it foretells from its first part, and what it is set beside."""

    group: str
    law: EntropyLaw
    early: EarlyPrediction
    rivals: tuple[Rival, ...]
    spent: tuple[Spent, ...]


def fitted(record: Record, experiment: str, seeds: Sequence[int]) -> list[Fitted]:
    """The laws of an experiment's runs, setting by setting."""
    found = []
    for group in record.groups[experiment]:
        for seed in seeds:
            pairs = pairs_of(record.run(experiment, group, seed))
            law = fit(pairs.entropy, pairs.score)
            h, r = law.entropy, law.score
            found.append(Fitted(group, law, predict_early(h, r), rivals(h, r), spent(h, r)))
    return found


def over(values: Sequence[float]) -> str:
    """Root mean square over runs."""
    return plain((sum(value**2 for value in values) / len(values)) ** 0.5, 3)


def how_early(found: Sequence[Fitted]) -> str:
    """Shares of a run's entropy fall and score gain after parts of the steps.

    Medians over runs: in a run that ends near where it began, the share may be any number.
    """
    parts = [
        f"{middle([f.spent[i].entropy for f in found])} and "
        f"{middle([f.spent[i].score for f in found])} after {each.share:.0%} of the steps"
        for i, each in enumerate(found[0].spent)
    ]
    return f"Median share of a run's entropy fall and of its score gain: {'; '.join(parts)}."


def middle(shares: Sequence[float]) -> str:
    """The median of those that are."""
    return f"{median(share for share in shares if isfinite(share)):.0%}"


def of_law(record: Record) -> list[str]:
    """What explains the score, in-sample and from the first 15%, and one law for all."""
    seeds = record.shared("law", record.groups["law"])
    found = fitted(record, "law", seeds)
    rows = [
        [
            f"{rival.of}, the law" if not i else {"step": "iteration"}.get(rival.of, rival.of),
            over([each.rivals[i].rmse for each in found]),
            over([each.rivals[i].rmse_predicted for each in found]),
        ]
        for i, rival in enumerate(found[0].rivals)
    ]
    rows.append(["constant score", "", over([each.early.rmse_stay for each in found])])
    one = pooled([each.law for each in found], [each.group for each in found])
    rows += [
        ["law of the same method's other seeds", plain(one.rmse_alike, 3), ""],
        ["law of the other methods", plain(one.rmse_others, 3), ""],
        ["one law for all runs", plain(one.rmse_one, 3), ""],
    ]
    head = ["predictor", "RMSE", "RMSE of later scores, from the first 15%"]
    return [said(seeds), "", *rows_of(head, rows), "", how_early(found)]


def of_sizes(record: Record) -> list[str]:
    """A row a size of policy: where it ends, its law, and the law by the lines of the others."""
    seeds = record.shared("law_sizes", list(SIZES))
    found = fitted(record, "law_sizes", seeds)
    sizes = {name: parameters(*shape) for name, shape in SIZES.items()}
    of_run = [float(sizes[each.group]) for each in found]
    laws = [each.law for each in found]
    left = {each.size: each for each in sizes_left_out(of_run, laws)}
    rows = []
    for name, size in sizes.items():
        mine = [each.law for each in found if each.group == name]
        first = record.sure("law_sizes", name, seeds, Figure("metric", "entropy/exact", "first"))
        last, score = (
            record.mean("law_sizes", name, seeds, figure) for figure in (
                Figure("metric", "entropy/exact", "last"),
                Figure("evaluation", "test/avg@k", "last"),
            )
        )  # fmt: skip
        own = [mean(getattr(law, what) for law in mine) for what in ("a", "b", "ceiling", "r2")]
        rows.append([
            f"{round(size, -3):,}", plain(first, 2), within(last), within(score),
            *(plain(each, 2) for each in own),
            plain(left[size].rmse_own, 3), plain(left[size].rmse, 3),
        ])  # fmt: skip
    by_size = coefficients_by_size(of_run, laws)
    lines = " and ".join(
        f"{name} {signed(line.slope, 2)} (R² {plain(line.r2, 2)})"
        for name, line in (("a", by_size.a), ("b", by_size.b))
    )
    one = pooled(laws, [each.group for each in found])
    head = ["parameters", "entropy, first", "end", "avg@16, end", "a", "b", "ceiling b - a", "R²",
            "RMSE, own law", "RMSE, a and b from the other sizes"]  # fmt: skip
    return [
        said(seeds), "", *rows_of(head, rows), "",
        f"Per factor e in size: {lines}. RMSE of one law for all runs: {plain(one.rmse_one, 3)}. "
        f"RMSE of later scores, from the first 15%: {over([each.early.rmse for each in found])}; "
        f"constant score: {over([each.early.rmse_stay for each in found])}. {how_early(found)}",
    ]  # fmt: skip


def parameters(width: int, layers: int) -> int:
    """Of a tiny policy without its embedding: attention with half as many keys, an MLP of 3.

    >>> parameters(64, 3)
    148288
    """
    return layers * (12 * width**2 + 4 * width) + width
