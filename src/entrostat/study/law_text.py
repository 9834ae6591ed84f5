"""What `entrostat law` found and says of runs: tables and sentences, and the same as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import Any

from .._text import print_whole, say
from ..law import (
    EarlyPrediction,
    EntropyLaw,
    LawInterval,
    LeftOut,
    Pairs,
    Pooled,
    Rival,
    SizeLaw,
    Spent,
    sizes_left_out,
)
from ..logs.run import Run
from .tables import plain_table

_NAME = 6  # columns that a name has at least
_FEW = 4  # runs of which each one's doubts are told
_NONE = "nothing speaks against the law."
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]\d+)?")


@dataclass(frozen=True)
class RunLaw:
    """The law of one run.

    Attributes:
        name: of the run, different from the others'.
        interval: 95% intervals of the coefficients.
        early: the prediction from the first steps; None where there are too few.
        rivals: the law beside lines in H and in the step; none where `early` is None.
        spent: entropy spent and score gained after a twelfth and a third of the steps.
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


def alike(found: Sequence[RunLaw]) -> bool:
    """Whether all runs are fitted to one entropy and one score."""
    return len({(one.pairs.entropy_key, one.pairs.score_key) for one in found}) < 2


def print_laws(laws: Laws) -> None:
    """Tables in the terminal, then what speaks against each fit."""
    from rich.markup import escape

    found, share = laws.found, laws.share
    of_all, of_one = _shared([_basis(one) for one in found])
    for text in of_all:
        say(text)
    columns = ("a", "b", "ceiling", "R²", "RMSE\nin-sample", "RMSE\npredicted", "at end")
    table = _table("R = -a exp(H) + b\nbelow each coefficient its 95% interval", "run", *columns)
    for one in found:
        law, early = one.law, one.early
        span = one.interval
        table.add_row(
            escape(one.name),
            _coefficient(law.a, span.a),
            _coefficient(law.b, span.b),
            _coefficient(law.ceiling, span.ceiling),
            f"{law.r2:.2f}" if isfinite(law.r2) else "-",
            f"{law.rmse:.3f}",
            "-" if early is None else f"{early.rmse:.3f}\n[dim]({early.rmse_stay:.3f})[/]",
            "-" if early is None else f"{early.end_error:+.3f}",
        )
    print_whole(table)
    say(
        "ceiling: b - a, the score at H = 0; intervals: bootstrap of blocks of consecutive\n"
        "steps, seed 0\n"
        "in-sample: error of the fit at the steps that it was fitted to (COV prints none)\n"
        f"predicted: error at the later steps of a law fitted to the first {100 * share:g}% (in\n"
        "brackets: of saying that the score stays); COV's .9% and 1.2% are of this kind\n"
        f"at end: predicted minus seen, {_ends(found)}"
    )
    for one, own in zip(found, of_one, strict=True):
        for text in own:
            say(f"{one.name}: {text}")
    _print_rivals(found, share)
    _print_spent(found)
    if laws.together is not None:
        _print_together(found, laws.together)
    if not alike(found):
        say(
            "The runs are fitted to different scores or entropies; their coefficients cannot be "
            "compared."
        )
    for text in doubts_told([(one.name, one.doubts) for one in found]):
        say(text)
    if laws.sizes is not None:
        _print_sizes(*laws.sizes)
    for name, why in laws.failed.items():
        say(f"{name}: not fitted: {why}")


def doubts_told(found: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """What speaks against the fits, a line each; of many runs a line for each kind of doubt.

    Doubts are of one kind where they differ in their numbers alone. The words are those of the
    first run that has it; the JSON has each run's.
    """
    all_told = [(name, text) for name, doubts in found for text in doubts or (_NONE,)]
    if len(found) <= _FEW:
        return [f"{name}: {text}" for name, text in all_told]
    kinds: dict[str, list[tuple[str, str]]] = {}
    for name, text in all_told:
        kinds.setdefault(_NUMBER.sub("#", text), []).append((name, text))
    lines = []
    for some in sorted(kinds.values(), key=len, reverse=True):
        (first, text), others = some[0], [name for name, _ in some[1:]]
        if not others:
            lines.append(f"{first}: {text}")
            continue
        shown = others if len(others) <= _FEW + 1 else others[:_FEW]
        rest = f" and {len(others) - _FEW} more" if shown != others else ""
        also = f"Also {', '.join(shown)}{rest}."
        lines.append(f"{len(some)} of {len(found)} runs, as {first}: {text} {also}")
    return lines


def _table(title: str | None, names: str, *columns: str) -> Any:
    """One of names at the left, which are folded where there is no room, and of numbers."""
    table = plain_table(title)
    table.add_column(names, overflow="fold", min_width=_NAME)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _ends(found: Sequence[RunLaw]) -> str:
    """Over which steps the error at the end was averaged."""
    ends = sorted({one.early.end for one in found if one.early is not None})
    if not ends:
        return "mean of the last steps"
    span = f"{ends[0]}" if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"
    return f"mean of the last {span} steps" if ends != [1] else "at the last step"


def _basis(one: RunLaw) -> list[str]:
    """What the law is fitted to, and why to that."""
    pairs, n = one.pairs, len(one.law.entropy)
    point = pairs.point + "s" * (n != 1)
    steps = f"{n} {point}" + ("" if one.early is None else f", the first {one.early.steps} predict")
    return [f"R: {pairs.score_is}", f"H: {pairs.entropy_is}", f"steps: {steps}", *pairs.notes]


def _shared(texts: Sequence[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Lines that all have, and what else each has."""
    common = [line for line in texts[0] if all(line in other for other in texts)]
    return common, [[line for line in own if line not in common] for own in texts]


def _print_rivals(found: Sequence[RunLaw], share: float) -> None:
    """Root mean squares over the runs of what else may explain the score."""
    known = [one for one in found if one.early is not None]
    if not known:
        return
    columns = ("RMSE\nin-sample", f"from the\nfirst {100 * share:g}%")
    table = _table("what else explains the score", "x", *columns)
    for place, rival in enumerate(known[0].rivals):
        word = f"{rival.of} (the law)" if place == 0 else rival.of
        inside = _over([one.rivals[place].rmse for one in known])
        later = _over([one.rivals[place].rmse_predicted for one in known])
        table.add_row(word, _decimals(inside), _decimals(later))
    stays = _over([one.early.rmse_stay for one in known if one.early is not None])
    table.add_row("it stays", "-", _decimals(stays))
    print_whole(table)


def _print_spent(found: Sequence[RunLaw]) -> None:
    """Medians over the runs that end with less entropy, and over those that end with more score."""
    falls, gains = (
        sum(isfinite(getattr(one.spent[0], what)) for one in found) for what in ("entropy", "score")
    )
    columns = (f"entropy spent\n({_runs(falls)})", f"score gained\n({_runs(gains)})")
    table = _table("how early (COV Fig. 2), medians", "after", *columns)
    for place, each in enumerate(found[0].spent):
        cells = (_median([getattr(one.spent[place], what) for one in found])
                 for what in ("entropy", "score"))  # fmt: skip
        table.add_row(f"{each.share:.0%} of the steps", *cells)
    print_whole(table)


def _runs(count: int) -> str:
    return f"{count} run" + "s" * (count != 1)


def _median(shares: Sequence[float]) -> str:
    """Of a run that ends near where it began a share is anything, and would make the mean."""
    known = [share for share in shares if isfinite(share)]
    return f"{median(known):.0%}" if known else "-"


def _print_together(found: Sequence[RunLaw], one: Pooled) -> None:
    law = one.law
    title = f"one law for {len(found)} runs\nR = {-law.a:.3f} exp(H) {law.b:+.3f}"
    table = _table(title, "each run by", "RMSE")
    for word, value in (
        ("its own law (in-sample)", one.rmse_own),
        ("that of the others of its method", one.rmse_alike),
        ("that of the other methods", one.rmse_others),
        ("one for all (in-sample)", one.rmse_one),
    ):
        if isfinite(value):
            table.add_row(word, _decimals(value))
    print_whole(table)


def _over(values: Sequence[float]) -> float:
    return (sum(value * value for value in values) / len(values)) ** 0.5


def _decimals(value: float) -> str:
    return f"{value:.3f}" if isfinite(value) else "-"


def _print_sizes(known: Sequence[RunLaw], law: SizeLaw, doubts: Sequence[str]) -> None:
    from rich.markup import escape

    say("\ncoefficients against the model's size: intercept + slope ln(parameters)")
    table = _table(None, "", "slope", "intercept", "R²")
    for name, line in (("a", law.a), ("b", law.b)):
        r2 = f"{line.r2:.2f}" if isfinite(line.r2) else "-"
        table.add_row(name, f"{line.slope:+.4f}", f"{line.intercept:.3f}", r2)
    print_whole(table)
    table = _table(None, "run", "parameters", "residual of a", "of b")
    for one, a, b in zip(known, law.a.residuals, law.b.residuals, strict=True):
        size = f"{one.size:.3g}" + ("" if one.counted else " (by name)")
        table.add_row(escape(one.name), size, f"{a:+.3f}", f"{b:+.3f}")
    print_whole(table)
    if out := _left_out(known):
        title = "each size by the lines\nthrough the others"
        table = _table(title, "parameters", "a", "b", "RMSE", "its own law's")
        for one in out:
            numbers = (f"{v:.3f}" for v in (one.a, one.b, one.rmse, one.rmse_own))
            table.add_row(f"{one.size:.3g}", *numbers)
        print_whole(table)
    for doubt in doubts:
        say(f"sizes: {doubt}")


def _left_out(known: Sequence[RunLaw]) -> tuple[LeftOut, ...]:
    """Of runs that are fitted to one quantity; none otherwise, or of two sizes."""
    if not alike(known):
        return ()
    return sizes_left_out([one.size or 0.0 for one in known], [one.law for one in known])


def _coefficient(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.2f}\n[dim]{interval[0]:.2f}..{interval[1]:.2f}[/]"


def laws_json(laws: Laws) -> dict[str, Any]:
    """The same as data for JSON, which has no word for NaN: null in its place."""
    found, together = laws.found, laws.together
    scores, entropies = (
        {one.pairs.score_key for one in found}, {one.pairs.entropy_key for one in found}
    )  # fmt: skip
    all_runs = None
    if together is not None:
        errors = {key: value for key, value in vars(together).items() if key != "law"}
        all_runs = {"a": together.law.a, "b": together.law.b} | errors
    return _finite(
        {
            "law": "R = -a exp(H) + b",
            # of all runs, null where they differ
            "score": scores.pop() if len(scores) == 1 else None,
            "entropy": entropies.pop() if len(entropies) == 1 else None,
            "share": laws.share,
            "runs": [_run_json(one) for one in found],
            "not_fitted": laws.failed,
            "sizes": None if laws.sizes is None else _sizes_json(*laws.sizes),
            "together": all_runs,
        }
    )


def _run_json(one: RunLaw) -> dict[str, Any]:
    law, span, early, pairs = one.law, one.interval, one.early, one.pairs
    coefficients = {
        name: {"value": getattr(law, name), "interval": list(getattr(span, name))}
        for name in ("a", "b", "ceiling")
    }
    return {
        "run": one.name,
        "path": str(one.run.path),
        "methods": one.run.methods,
        "score": pairs.score_key,
        "score_is": pairs.score_is,
        "entropy": pairs.entropy_key,
        "entropy_is": pairs.entropy_is,
        "notes": list(pairs.notes),
        "steps": len(law.entropy),
        **coefficients,
        "level": span.level,
        "block": span.block,
        "rmse": law.rmse,
        "r2": law.r2,
        "early": None if early is None else {
            "steps": early.steps,
            "a": early.law.a,
            "b": early.law.b,
            "ceiling": early.ceiling,
            "rmse": early.rmse,
            "rmse_stay": early.rmse_stay,
            "end_error": early.end_error,
            "end_steps": early.end,
            "reached": early.reached,
        },
        "rivals": [vars(each) for each in one.rivals],
        "spent": [vars(each) for each in one.spent],
        "size": one.size,
        "size_counted_without_embeddings": one.counted,
        "doubts": list(one.doubts),
    }  # fmt: skip


def _sizes_json(known: Sequence[RunLaw], law: SizeLaw, doubts: Sequence[str]) -> dict[str, Any]:
    lines = {
        name: {key: getattr(line, key) for key in ("slope", "intercept", "r2", "residuals")}
        for name, line in (("a", law.a), ("b", law.b))
    }
    return {
        "runs": [one.name for one in known], "sizes": list(law.sizes), **lines,
        "left_out": [vars(one) for one in _left_out(known)],
        "doubts": list(doubts),
    }  # fmt: skip


def _finite(value: Any) -> Any:
    """Data with None for what is no number."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value
