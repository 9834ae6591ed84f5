"""The entropy law over finished runs: `entrostat law RUN...`.

Score and entropy are of the same policy. A metric of iteration i is of the rollouts of i, as is the
entropy beside it. An evaluation after iteration e brings its own entropy, on its own prompts; where
it does not, that of the rollouts of iteration e + 1, which that same policy samples.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from .._names import unknown
from ..law import (
    EarlyPrediction,
    EntropyLaw,
    LawInterval,
    SizeLaw,
    coefficients_by_size,
    fit,
    predict_early,
)
from ..logs.importers import read
from ..logs.run import Run, number
from ..report.runs import labels

SCORE = "reward/mean"
# one step of a score that is a batch's mean is noise; COV evaluates on whole test sets
END_SHARE = 0.1
_ENTROPIES = {
    "entropy/exact": "exact",
    "entropy/nll": "sampled (mean of -log p)",
    "entropy/logged": "as logged",
}
_NOMINAL = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([BbMm])(?![A-Za-z0-9])")
_EMBEDDING = re.compile(r"(^|\.)(embed_\w+|wte|wpe|lm_head|word_embeddings\w*|embed_out)\.")


@dataclass(frozen=True)
class RunLaw:
    """The law of one run.

    Attributes:
        name: of the run, different from the others'.
        run: what was read.
        entropy: which entropy, in words.
        law: the fit.
        interval: its 95% intervals.
        early: the prediction from the first steps; None where there are too few.
        doubts: sentences.
        size: parameters of the model; None where the run does not say.
        counted: whether `size` was counted without embeddings; otherwise it is from the name.
    """

    name: str
    run: Run
    entropy: str
    law: EntropyLaw
    interval: LawInterval
    early: EarlyPrediction | None
    doubts: tuple[str, ...]
    size: float | None
    counted: bool


def run_law(
    paths: list[str], score: str | None = None, share: float = 0.15, output: str | None = None
) -> int:
    """Fit R = -a exp(H) + b to each run, print a table and what speaks against it.

    Args:
        paths: run directories, or what another trainer left (`logs.importers`).
        score: R: a metric of metrics.jsonl, or a figure of the evaluations such as "avg@k", of
            their first split, or "SPLIT/avg@k". None takes "reward/mean".
        share: share of the steps that the early prediction is fitted to.
        output: file that gets the same as JSON.

    Returns:
        0, or 1 where a run among several could not be fitted.

    Raises:
        ValueError: no run, no such score, a bad share, or nothing could be fitted.
    """
    if not paths:
        raise ValueError("law needs the directory of a run, or of several")
    if not 0 < share < 1:
        raise ValueError(f"--share must be between 0 and 1, got {share!r}; the paper's is 0.15")
    key = SCORE if score is None else score
    runs = [read(path) for path in paths]
    found: list[RunLaw] = []
    failed: dict[str, str] = {}
    for run, name in zip(runs, labels(runs), strict=True):
        steps = _steps_of(run, key)
        try:
            found.append(_law_of(run, name, *steps, share=share))
        except ValueError as error:
            failed[name] = str(error).removeprefix("law.fit: ")
    if not found:
        raise ValueError("; ".join(f"run {name!r}: {why}" for name, why in failed.items()))
    sizes = _size_law(found)
    _print(found, failed, sizes, key, share)
    if output is not None:
        file = Path(output)
        file.parent.mkdir(parents=True, exist_ok=True)
        data = _json(found, failed, sizes, key, share)
        file.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        print(f"written: {file}")
    return 1 if failed else 0


def _steps_of(run: Run, key: str) -> tuple[str, list[float], list[float]]:
    """Which entropy, its values, and the score's of the same policies."""
    entropy_key = next((k for k in _ENTROPIES if run.series(k)[0]), None)
    logged = dict(zip(*run.series(entropy_key), strict=True)) if entropy_key else {}
    where = _ENTROPIES.get(entropy_key or "", "")
    scores = dict(zip(*run.series(key), strict=True))
    rows = [] if scores else _evaluations(run, key)
    own = [number(row.get("entropy")) for row, _ in rows]
    known = [h for h in own if h is not None]
    if rows and len(known) == len(rows):
        return "of the evaluation", known, [value for _, value in rows]
    if not logged:
        raise ValueError(
            f"run {run.name!r} logs no entropy; the law needs one of {', '.join(_ENTROPIES)}"
        )
    if rows:
        # the policy after iteration e is the one that iteration e + 1 samples from
        scores = {row["iteration"] + 1: value for row, value in rows}
        where += ", of the next rollouts"
    both = sorted(scores.keys() & logged.keys())
    return where, [logged[i] for i in both], [scores[i] for i in both]


def _evaluations(run: Run, key: str) -> list[tuple[dict[str, Any], float]]:
    """Rows of one split's evaluations that have the figure, with it, in order."""
    splits = list(dict.fromkeys(str(row.get("split")) for row in run.evaluation))
    split, _, figure = key.rpartition("/")
    if not split and splits:
        split = splits[0]
    rows = [row for row in run.evaluation if str(row.get("split")) == split]
    pairs = [(row, number(row.get(figure))) for row in rows]
    kept = [(row, value) for row, value in pairs if value is not None]
    if kept:
        return kept
    figures = {k for row in run.evaluation for k in row if k.endswith("@k")}
    names = {f"{s}/{f}" for s in splits for f in figures} | figures
    metrics = {
        k for row in run.metrics for k, v in row.items() if "/" in k and number(v) is not None
    }
    if key == SCORE:
        raise ValueError(
            f"run {run.name!r} logs no {SCORE}; name another score with --score: "
            f"{', '.join(sorted(metrics | names))}"
        )
    raise ValueError(f"run {run.name!r}, --score: {unknown('score', key, metrics | names)}")


def _law_of(
    run: Run, name: str, which: str, entropy: list[float], score: list[float], share: float
) -> RunLaw:
    law = fit(entropy, score)
    early, doubts = None, list(law.doubts)
    try:
        end = max(1, int(END_SHARE * len(entropy)))
        early = predict_early(entropy, score, share, end)
    except ValueError as error:
        doubts.append(f"No early prediction: {str(error).removeprefix('predict_early: ')}.")
    else:
        # what the early law doubts of itself is of few steps by design
        doubts += [d for d in early.doubts if not d.startswith("Of the first")]
    size, counted = _size_of(run)
    return RunLaw(name, run, which, law, law.interval(), early, tuple(doubts), size, counted)


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
    if len({run.run.task for run in known}) > 1:
        doubts.append("The runs have different tasks, which move a and b as well.")
    return known, law, tuple(doubts)


def _print(
    found: Sequence[RunLaw],
    failed: dict[str, str],
    sizes: tuple[list[RunLaw], SizeLaw, tuple[str, ...]] | None,
    key: str,
    share: float,
) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table(
        title=f"R = -a exp(H) + b   R: {escape(key)}, H: nats a token\n"
        "below each coefficient its 95% interval",
        box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    table.add_column("run", overflow="fold")
    for column in ("a", "b", "ceiling", "RMSE", "R²", f"first {share:.0%}", "at end"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in found:
        law, early = one.law, one.early
        span = one.interval
        table.add_row(
            escape(one.name),
            _coefficient(law.a, span.a),
            _coefficient(law.b, span.b),
            _coefficient(law.ceiling, span.ceiling),
            f"{law.rmse:.3f}",
            f"{law.r2:.2f}" if isfinite(law.r2) else "-",
            "-" if early is None else f"{early.rmse:.3f}\n[dim]({early.rmse_stay:.3f})[/]",
            "-" if early is None else f"{early.end_error:+.3f}",
        )
    console.print(table)
    print(
        "ceiling: b - a, the score at H = 0\n"
        f"first {share:.0%}: RMSE on the later steps of a law fitted to those (in brackets: of\n"
        "saying that the score stays); at end: predicted minus seen, mean of the last tenth\n"
        "intervals: bootstrap of blocks of consecutive steps, seed 0"
    )
    data = {one.name: f"entropy: {one.entropy}; {len(one.law.entropy)} steps" for one in found}
    for text in dict.fromkeys(data.values()):
        names = [name for name, other in data.items() if other == text]
        print(text if len(names) == len(found) else f"{text}: {', '.join(names)}")
    for one in found:
        for doubt in one.doubts:
            print(f"{one.name}: {doubt}")
        if not one.doubts:
            print(f"{one.name}: nothing speaks against the law.")
    if sizes is not None:
        _print_sizes(console, *sizes)
    for name, why in failed.items():
        print(f"{name}: not fitted: {why}")


def _print_sizes(
    console: Any, known: Sequence[RunLaw], law: SizeLaw, doubts: Sequence[str]
) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    print("\ncoefficients against the model's size: intercept + slope ln(parameters)")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for column in ("slope", "intercept", "R²"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, line in (("a", law.a), ("b", law.b)):
        r2 = f"{line.r2:.2f}" if isfinite(line.r2) else "-"
        table.add_row(name, f"{line.slope:+.4f}", f"{line.intercept:.3f}", r2)
    console.print(table)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("run")
    for column in ("parameters", "residual of a", "of b"):
        table.add_column(column, justify="right", no_wrap=True)
    for one, a, b in zip(known, law.a.residuals, law.b.residuals, strict=True):
        size = f"{one.size:.3g}" + ("" if one.counted else " (by name)")
        table.add_row(escape(one.name), size, f"{a:+.3f}", f"{b:+.3f}")
    console.print(table)
    for doubt in doubts:
        print(f"sizes: {doubt}")


def _coefficient(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.2f}\n[dim]{interval[0]:.2f}..{interval[1]:.2f}[/]"


def _json(
    found: Sequence[RunLaw],
    failed: dict[str, str],
    sizes: tuple[list[RunLaw], SizeLaw, tuple[str, ...]] | None,
    key: str,
    share: float,
) -> dict[str, Any]:
    return {
        "law": "R = -a exp(H) + b",
        "score": key,
        "share": share,
        "runs": [_run_json(one) for one in found],
        "not_fitted": failed,
        "sizes": None if sizes is None else _sizes_json(*sizes),
    }


def _run_json(one: RunLaw) -> dict[str, Any]:
    law, span, early = one.law, one.interval, one.early
    return {
        "run": one.name,
        "path": str(one.run.path),
        "methods": one.run.methods,
        "entropy": one.entropy,
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
