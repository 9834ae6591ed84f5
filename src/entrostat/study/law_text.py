"""What `entrostat law` found and says of runs: tables and sentences, and the same as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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

_COEFFICIENTS = ("a", "b", "ceiling")
_NAME = 6  # columns that a name has at least
_FEW = 4  # runs of which each one's doubts are told
_NONE = "nothing speaks against the law."
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]\d+)?")


@dataclass(frozen=True)
class RunLaw:
    """The law of one run."""

    name: str  # of the run, different from the others'
    run: Run
    pairs: Pairs
    law: EntropyLaw
    interval: LawInterval  # 95% intervals of the coefficients
    # the prediction from the first steps; None where there are too few
    early: EarlyPrediction | None
    # the law beside lines in H and in the step; none where `early` is None
    rivals: tuple[Rival, ...]
    # entropy spent and score gained after a twelfth and a third of the steps
    spent: tuple[Spent, ...]
    doubts: tuple[str, ...]
    size: float | None  # parameters of the model; None where the run does not say
    counted: bool  # whether `size` was counted without embeddings; otherwise it is from the name


@dataclass(frozen=True)
class Laws:
    """The laws of several runs."""

    found: Sequence[RunLaw]  # of those that could be fitted
    failed: dict[str, str]  # why not, of the others, by name
    # the runs that have a size, coefficients against it, doubts; None for one size only
    sizes: tuple[list[RunLaw], SizeLaw, tuple[str, ...]] | None
    # one law for all; None for one run, and where runs are fitted to different quantities
    together: Pooled | None
    share: float  # of the steps that predictions are fitted to


def alike(found: Sequence[RunLaw]) -> bool:
    """Whether all runs are fitted to one entropy and one score."""
    return len({(one.pairs.entropy_key, one.pairs.score_key) for one in found}) < 2


def print_laws(laws: Laws) -> None:
    """Tables in the terminal, then what speaks against each fit."""
    found, share = laws.found, laws.share
    of_all, of_one = _shared([_basis(one) for one in found])
    for text in of_all:
        say(text)
    columns = ("a", "b", "ceiling", "R²", "RMSE\nin-sample", "RMSE\npredicted", "at end")
    rows = [
        (
            one.name,
            *(_coefficient(getattr(one.law, k), getattr(one.interval, k)) for k in _COEFFICIENTS),
            _decimals(one.law.r2, 2),
            f"{one.law.rmse:.3f}",
            "-" if early is None else f"{early.rmse:.3f}\n[dim]({early.rmse_stay:.3f})[/]",
            "-" if early is None else f"{early.end_error:+.3f}",
        )
        for one in found
        for early in (one.early,)
    ]
    _print_table("R = -a exp(H) + b\nbelow each coefficient its 95% interval", "run", columns, rows)
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


def _print_table(
    title: str | None, names: str, columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """One of names at the left, which are folded where there is no room, and of numbers."""
    from rich.markup import escape

    table = plain_table(title)
    table.add_column(names, overflow="fold", min_width=_NAME)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, *cells in rows:
        table.add_row(escape(name), *cells)
    print_whole(table)


def _ends(found: Sequence[RunLaw]) -> str:
    ends = sorted({one.early.end for one in found if one.early is not None})
    if not ends:
        return "mean of the last steps"
    span = f"{ends[0]}" if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"
    return f"mean of the last {span} steps" if ends != [1] else "at the last step"


def _basis(one: RunLaw) -> list[str]:
    pairs, n = one.pairs, len(one.law.entropy)
    point = pairs.point + "s" * (n != 1)
    steps = f"{n} {point}" + ("" if one.early is None else f", the first {one.early.steps} predict")
    return [f"R: {pairs.score_is}", f"H: {pairs.entropy_is}", f"steps: {steps}", *pairs.notes]


def _shared(texts: Sequence[list[str]]) -> tuple[list[str], list[list[str]]]:
    common = [line for line in texts[0] if all(line in other for other in texts)]
    return common, [[line for line in own if line not in common] for own in texts]


def _print_rivals(found: Sequence[RunLaw], share: float) -> None:
    """Root mean squares over the runs of what else may explain the score."""
    known = [(one.rivals, one.early.rmse_stay) for one in found if one.early is not None]
    if not known:
        return
    rows = []
    for i, rival in enumerate(known[0][0]):
        inside = _over([rivals[i].rmse for rivals, _ in known])
        later = _over([rivals[i].rmse_predicted for rivals, _ in known])
        word = f"{rival.of} (the law)" if i == 0 else rival.of
        rows.append((word, _decimals(inside), _decimals(later)))
    rows.append(("it stays", "-", _decimals(_over([stay for _, stay in known]))))
    columns = ("RMSE\nin-sample", f"from the\nfirst {100 * share:g}%")
    _print_table("what else explains the score", "x", columns, rows)


def _print_spent(found: Sequence[RunLaw]) -> None:
    """Medians over the runs that end with less entropy, and over those that end with more score."""
    falls, gains = (
        sum(isfinite(getattr(one.spent[0], what)) for one in found) for what in ("entropy", "score")
    )
    columns = (f"entropy spent\n({_runs(falls)})", f"score gained\n({_runs(gains)})")
    rows = [
        (
            f"{each.share:.0%} of the steps",
            _median([one.spent[i].entropy for one in found]),
            _median([one.spent[i].score for one in found]),
        )
        for i, each in enumerate(found[0].spent)
    ]
    _print_table("how early (COV Fig. 2), medians", "after", columns, rows)


def _runs(count: int) -> str:
    return f"{count} run" + "s" * (count != 1)


def _median(shares: Sequence[float]) -> str:
    """Of a run that ends near where it began a share is anything, and would make the mean."""
    known = [share for share in shares if isfinite(share)]
    return f"{median(known):.0%}" if known else "-"


def _print_together(found: Sequence[RunLaw], one: Pooled) -> None:
    law = one.law
    title = f"one law for {len(found)} runs\nR = {-law.a:.3f} exp(H) {law.b:+.3f}"
    rows = (
        ("its own law (in-sample)", one.rmse_own),
        ("that of the others of its method", one.rmse_alike),
        ("that of the other methods", one.rmse_others),
        ("one for all (in-sample)", one.rmse_one),
    )
    shown = [(word, _decimals(value)) for word, value in rows if isfinite(value)]
    _print_table(title, "each run by", ("RMSE",), shown)


def _over(values: Sequence[float]) -> float:
    return (sum(value * value for value in values) / len(values)) ** 0.5


def _decimals(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}" if isfinite(value) else "-"


def _print_sizes(known: Sequence[RunLaw], law: SizeLaw, doubts: Sequence[str]) -> None:
    say("\ncoefficients against the model's size: intercept + slope ln(parameters)")
    rows = [
        (name, f"{line.slope:+.4f}", f"{line.intercept:.3f}", _decimals(line.r2, 2))
        for name, line in (("a", law.a), ("b", law.b))
    ]
    _print_table(None, "", ("slope", "intercept", "R²"), rows)
    rows = [
        (one.name, f"{one.size:.3g}" + " (by name)" * (not one.counted), f"{a:+.3f}", f"{b:+.3f}")
        for one, a, b in zip(known, law.a.residuals, law.b.residuals, strict=True)
    ]
    _print_table(None, "run", ("parameters", "residual of a", "of b"), rows)
    if out := _left_out(known):
        rows = [
            (f"{o.size:.3g}", *(f"{v:.3f}" for v in (o.a, o.b, o.rmse, o.rmse_own))) for o in out
        ]
        title = "each size by the lines\nthrough the others"
        _print_table(title, "parameters", ("a", "b", "RMSE", "its own law's"), rows)
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
        for name in _COEFFICIENTS
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
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value
