"""The entropy law over finished runs: `entrostat law RUN...`.

`law.pairs_of` takes entropy and score out of a run. Two errors are printed beside each other, which
are different quantities: in-sample, of the fit at the steps that it was fitted to, and of the
prediction of later steps by a fit to the first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from .._text import console, say
from ..law import (
    SHARE,
    EarlyPrediction,
    EntropyLaw,
    LawError,
    LawInterval,
    Pairs,
    SizeLaw,
    coefficients_by_size,
    early_steps,
    fit,
    pairs_of,
    predict_early,
)
from ..logs.files import atomic
from ..logs.importers import read
from ..logs.run import Run, last_ones
from ..report.runs import labels

_NOMINAL = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([BbMm])(?![A-Za-z0-9])")
_EMBEDDING = re.compile(r"(^|\.)(embed_\w+|wte|wpe|lm_head|word_embeddings\w*|embed_out)\.")


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
    doubts: tuple[str, ...]
    size: float | None
    counted: bool


def run_law(
    paths: list[str],
    score: str | None = None,
    share: float = SHARE,
    output: str | None = None,
    entropy: str | None = None,
) -> int:
    """Fit R = -a exp(H) + b to each run, print a table and what speaks against it.

    Args:
        paths: run directories, or what another trainer left (`logs.importers`).
        score: R, as `law.pairs_of` takes it; None is COV's, the validation score, or the training
            reward where a run has too few evaluations.
        share: share of the steps that the early prediction is fitted to.
        output: file that gets the same as JSON.
        entropy: H, as `law.pairs_of` takes it; None is COV's, of the training rollouts.

    Returns:
        0, or 1 where a run among several could not be fitted.

    Raises:
        ValueError: no run, no such score or entropy, a bad share, or nothing could be fitted.
    """
    if not paths:
        raise ValueError("law needs the directory of a run, or of several")
    if not 0 < share < 1:
        raise ValueError(f"--share must be between 0 and 1, got {share!r}; the paper's is 0.15")
    runs = [read(path) for path in paths]
    found: list[RunLaw] = []
    failed: dict[str, LawError] = {}
    for run, name in zip(runs, labels(runs), strict=True):
        try:
            found.append(_law_of(run, name, pairs_of(run, entropy, score), share))
        except LawError as error:
            failed[name] = error
    if not found:
        texts = (f"run {name!r}: {error.message}" for name, error in failed.items())
        raise ValueError("; ".join(texts))
    why = {name: error.why for name, error in failed.items()}
    sizes = _size_law(found)
    _print(found, why, sizes, share)
    if output is not None:
        data = _json(found, why, sizes, share)
        with atomic(Path(output)) as part:
            part.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        say(f"written: {output}")
    return 1 if failed else 0


def _law_of(run: Run, name: str, pairs: Pairs, share: float) -> RunLaw:
    law = fit(pairs.entropy, pairs.score)
    n, early, doubts = len(pairs.score), None, list(law.doubts)
    # one step of a score that is a batch's mean is noise; COV evaluates on whole test sets
    end = min(last_ones(n), max(1, n - early_steps(n, share)))
    try:
        early = predict_early(law.entropy, law.score, share, end)
    except LawError as error:
        doubts.append(f"No early prediction: {error.why}.")
    else:
        # what the early law doubts of itself is of few steps by design
        doubts += [d for d in early.doubts if not d.startswith("Of the first")]
    size, counted = _size_of(run)
    return RunLaw(name, run, pairs, law, law.interval(), early, tuple(doubts), size, counted)


def _size_of(run: Run) -> tuple[float | None, bool]:
    """Parameters of the run's model, and whether they were counted without embeddings."""
    model = run.config.get("model")
    places = [run.path / "final"]
    if isinstance(model, str) and model and Path(model).is_dir():
        places.append(Path(model))
    for place in places:
        counted = _count(sorted(place.glob("model*.safetensors")))
        if counted:
            return float(counted), True
    nominal = _NOMINAL.search(Path(model).name) if isinstance(model, str) else None
    if nominal is None:
        return None, False
    return float(nominal[1]) * (1e9 if nominal[2] in "Bb" else 1e6), False


def _count(files: Sequence[Path]) -> int:
    """Numbers in the files' tensors but for embeddings and head; 0 where they cannot be read."""
    from math import prod

    from safetensors import SafetensorError, safe_open

    total = 0
    try:
        for path in files:
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118 - the handle is not a mapping
                    if not _EMBEDDING.search(f"{name}."):
                        total += prod(file.get_slice(name).get_shape())
    except (OSError, SafetensorError):
        return 0
    return total


def _size_law(found: Sequence[RunLaw]) -> tuple[list[RunLaw], SizeLaw, tuple[str, ...]] | None:
    """Runs that have a size, their coefficients against it, doubts; None for one size only."""
    known = [run for run in found if run.size is not None]
    sizes = [run.size or 0.0 for run in known]
    if len(set(sizes)) < 2:
        return None
    law = coefficients_by_size(sizes, [run.law for run in known])
    doubts = list(law.doubts)
    if len({run.counted for run in known}) > 1:
        doubts.append(
            "Some sizes are counted without embeddings, others read off the model's name, which "
            "counts all parameters: they are not alike."
        )
    if len(known) < len(found):
        out = [run.name for run in found if run.size is None]
        doubts.append(f"Left out, their model's size is unknown: {', '.join(out)}.")
    if not _alike(known):
        doubts.append("The runs are fitted to different scores or entropies, which moves a and b.")
    if len({run.run.task for run in known}) > 1:
        doubts.append("The runs have different tasks, which move a and b as well.")
    return known, law, tuple(doubts)


def _alike(found: Sequence[RunLaw]) -> bool:
    """Whether all runs are fitted to one entropy and one score."""
    return len({(one.pairs.entropy_key, one.pairs.score_key) for one in found}) < 2


def _print(
    found: Sequence[RunLaw],
    failed: dict[str, str],
    sizes: tuple[list[RunLaw], SizeLaw, tuple[str, ...]] | None,
    share: float,
) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    screen = console()
    of_all, of_one = _shared([_basis(one) for one in found])
    for text in of_all:
        say(text)
    table = Table(
        title="R = -a exp(H) + b\nbelow each coefficient its 95% interval",
        box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    table.add_column("run", overflow="fold")
    for column in ("a", "b", "ceiling", "R²", "RMSE\nin-sample", "RMSE\npredicted", "at end"):
        table.add_column(column, justify="right", no_wrap=True)
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
    screen.print(table)
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
    if not _alike(found):
        say(
            "The runs are fitted to different scores or entropies; their coefficients cannot be "
            "compared."
        )
    for one in found:
        for doubt in one.doubts:
            say(f"{one.name}: {doubt}")
        if not one.doubts:
            say(f"{one.name}: nothing speaks against the law.")
    if sizes is not None:
        _print_sizes(screen, *sizes)
    for name, why in failed.items():
        say(f"{name}: not fitted: {why}")


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


def _print_sizes(screen: Any, known: Sequence[RunLaw], law: SizeLaw, doubts: Sequence[str]) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    say("\ncoefficients against the model's size: intercept + slope ln(parameters)")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for column in ("slope", "intercept", "R²"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, line in (("a", law.a), ("b", law.b)):
        r2 = f"{line.r2:.2f}" if isfinite(line.r2) else "-"
        table.add_row(name, f"{line.slope:+.4f}", f"{line.intercept:.3f}", r2)
    screen.print(table)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("run")
    for column in ("parameters", "residual of a", "of b"):
        table.add_column(column, justify="right", no_wrap=True)
    for one, a, b in zip(known, law.a.residuals, law.b.residuals, strict=True):
        size = f"{one.size:.3g}" + ("" if one.counted else " (by name)")
        table.add_row(escape(one.name), size, f"{a:+.3f}", f"{b:+.3f}")
    screen.print(table)
    for doubt in doubts:
        say(f"sizes: {doubt}")


def _coefficient(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.2f}\n[dim]{interval[0]:.2f}..{interval[1]:.2f}[/]"


def _json(
    found: Sequence[RunLaw],
    failed: dict[str, str],
    sizes: tuple[list[RunLaw], SizeLaw, tuple[str, ...]] | None,
    share: float,
) -> dict[str, Any]:
    scores, entropies = (
        {one.pairs.score_key for one in found}, {one.pairs.entropy_key for one in found}
    )  # fmt: skip
    return {
        "law": "R = -a exp(H) + b",
        # of all runs, null where they differ
        "score": scores.pop() if len(scores) == 1 else None,
        "entropy": entropies.pop() if len(entropies) == 1 else None,
        "share": share,
        "runs": [_run_json(one) for one in found],
        "not_fitted": failed,
        "sizes": None if sizes is None else _sizes_json(*sizes),
    }


def _run_json(one: RunLaw) -> dict[str, Any]:
    law, span, early, pairs = one.law, one.interval, one.early, one.pairs
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
        "a": {"value": law.a, "interval": list(span.a)},
        "b": {"value": law.b, "interval": list(span.b)},
        "ceiling": {"value": law.ceiling, "interval": list(span.ceiling)},
        "level": span.level,
        "block": span.block,
        "rmse": law.rmse,
        "r2": law.r2 if isfinite(law.r2) else None,
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
        "size": one.size,
        "size_counted_without_embeddings": one.counted,
        "doubts": list(one.doubts),
    }  # fmt: skip


def _sizes_json(known: Sequence[RunLaw], law: SizeLaw, doubts: Sequence[str]) -> dict[str, Any]:
    lines = {
        name: {
            "slope": line.slope,
            "intercept": line.intercept,
            "r2": line.r2 if isfinite(line.r2) else None,
            "residuals": list(line.residuals),
        }
        for name, line in (("a", law.a), ("b", law.b))
    }
    return {
        "runs": [one.name for one in known], "sizes": list(law.sizes), **lines,
        "doubts": list(doubts),
    }  # fmt: skip
