"""The entropy law over finished runs: `entrostat law RUN...`.

`law.pairs_of` extracts entropy and score from a run. Two different errors are printed side by side:
the in-sample error, of the fit at the steps that it was fitted to, and the error of predicting
later steps by a fit to the first steps. The terminal shows summaries over runs; the JSON has each
run.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from statistics import median
from typing import Any

from .._text import counted, say
from ..law import (
    SHARE,
    EarlyPrediction,
    EntropyLaw,
    LawError,
    LawInterval,
    LeftOut,
    Pairs,
    Pooled,
    Rival,
    SizeLaw,
    coefficients_by_size,
    early_of,
    fit,
    pairs_of,
    pooled,
    rivals,
    sizes_left_out,
    spent,
)
from ..logs.files import atomic
from ..logs.importers import read_all
from ..logs.run import Run
from ..model_files import find
from ..report.runs import labels
from .tables import print_numbers

_NOMINAL = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([BbMm])(?![A-Za-z0-9])")
_EMBEDDING = re.compile(r"(^|\.)(embed_\w+|wte|wpe|lm_head|word_embeddings\w*|embed_out)\.")
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]\d+)?")
_COEFFICIENTS = ("a", "b", "ceiling")
_FEW = 4  # maximum number of runs whose doubts are listed one by one


@dataclass(frozen=True)
class RunLaw:
    name: str  # unique name of the run
    run: Run
    pairs: Pairs
    law: EntropyLaw
    interval: LawInterval  # 95% intervals of the coefficients
    # the prediction from the first steps; None if they are too few
    early: EarlyPrediction | None
    # the law compared with lines in H and in the step; empty if `early` is None
    rivals: tuple[Rival, ...]
    doubts: list[str]
    size: float | None  # parameters of the model; None if unknown
    counted: bool  # whether `size` was counted without embeddings; otherwise it comes from the name


@dataclass(frozen=True)
class BySize:
    runs: list[RunLaw]  # those with a known size
    law: SizeLaw
    left_out: tuple[LeftOut, ...]  # empty unless all runs are fitted to the same quantities
    doubts: list[str]


def run_law(
    paths: list[str],
    score: str | None = None,
    share: float = SHARE,
    output: str | None = None,
    entropy: str | None = None,
) -> int:
    """Fit R = -a exp(H) + b to each run; print a table and the doubts about each fit.

    Args:
        paths: run directories, or logs of other trainers (`logs.importers`); a directory of
            several, such as a study's, stands for them.
        score: R, as for `law.pairs_of`; None is COV's, the validation score, or the training
            reward if a run has too few evaluations.
        share: share of the steps that the early prediction is fitted to.
        output: file that gets the same as JSON.
        entropy: H, as for `law.pairs_of`; None is COV's, of the training rollouts.

    Returns:
        0, or 1 if one of several runs could not be fitted.
    """
    if not paths:
        raise ValueError("law needs the directory of a run, or of several")
    if not 0 < share < 1:
        raise ValueError(f"--share must be between 0 and 1, got {share!r}; the paper's is 0.15")
    runs = [run for path in paths for run in read_all(path)[0]]
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
    sizes, together = _by_size(found), _together(found)
    _print_runs(found, share)
    _print_beside(found, share, together)
    for text in doubts_told([(one.name, one.doubts) for one in found]):
        say(text)
    if sizes is not None:
        _print_sizes(sizes)
    for name, error in failed.items():
        say(f"{name}: not fitted: {error.why}")
    if output is not None:
        data = _finite(
            {
                "law": "R = -a exp(H) + b",
                # equal in all runs, else null
                "score": _only({one.pairs.score_key for one in found}),
                "entropy": _only({one.pairs.entropy_key for one in found}),
                "share": share,
                "runs": [_run_json(one) for one in found],
                "not_fitted": {name: error.why for name, error in failed.items()},
                "sizes": None if sizes is None else _sizes_json(sizes),
                "together": None if together is None else _together_json(together),
            }
        )
        with atomic(Path(output)) as part:
            part.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        say(f"written: {output}")
    return 1 if failed else 0


def _law_of(run: Run, name: str, pairs: Pairs, share: float) -> RunLaw:
    law = fit(pairs.entropy, pairs.score)
    early, beside, doubts = None, (), list(law.doubts)
    try:
        early, beside = early_of(law, share), rivals(law.entropy, law.score, share)
        # the early law has few steps by design, so its own doubts do not count
        doubts += [d for d in early.doubts if not d.startswith("Of the first")]
    except LawError as error:
        doubts.append(f"No early prediction: {error.why}.")
    return RunLaw(name, run, pairs, law, law.interval(), early, beside, doubts, *_size_of(run))


def _size_of(run: Run) -> tuple[float | None, bool]:
    """Parameters of the run's model, and whether they were counted without embeddings."""
    model = run.config.get("model")
    places = [run.path / "final"]
    if isinstance(model, str) and model:
        with suppress(ValueError):  # the model is not on this machine
            places.append(Path(find(model)))
    for place in places:
        if counted := _count(sorted(place.glob("model*.safetensors"))):
            return float(counted), True
    nominal = _NOMINAL.search(Path(model).name) if isinstance(model, str) else None
    if nominal is None:
        return None, False
    return float(nominal[1]) * {"b": 1e9, "m": 1e6}[nominal[2].lower()], False


def _count(files: Sequence[Path]) -> int:
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


def _alike(found: Sequence[RunLaw]) -> bool:
    return len({(one.pairs.entropy_key, one.pairs.score_key) for one in found}) < 2


def _by_size(found: Sequence[RunLaw]) -> BySize | None:
    """Fit the coefficients by model size; None for a single size."""
    known = [run for run in found if run.size is not None]
    sizes = [run.size or 0.0 for run in known]
    if len(set(sizes)) < 2:
        return None
    laws = [run.law for run in known]
    law = coefficients_by_size(sizes, laws)
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
    return BySize(known, law, sizes_left_out(sizes, laws) if _alike(known) else (), doubts)


def _together(found: Sequence[RunLaw]) -> Pooled | None:
    """One law for all runs; None for a single run, or runs fitted to different quantities."""
    if len(found) < 2 or not _alike(found):
        return None
    # runs of one kind differ only by their seed, according to the study or the methods' names
    kinds = [one.run.group or one.run.methods or one.name for one in found]
    return pooled([one.law for one in found], kinds)


def _print_runs(found: Sequence[RunLaw], share: float) -> None:
    texts = [_basis(one) for one in found]
    common = [line for line in texts[0] if all(line in other for other in texts)]
    for text in common:
        say(text)
    columns = ("a", "b", "ceiling", "R²", "RMSE\nin-sample", "RMSE\npredicted", "at end")
    rows = []
    for one in found:
        cells = [_coefficient(one, key) for key in _COEFFICIENTS]
        cells += [_decimals(one.law.r2, 2), f"{one.law.rmse:.3f}"]
        if one.early is None:
            cells += ["-", "-"]
        else:
            cells.append(f"{one.early.rmse:.3f}\n[dim]({one.early.rmse_stay:.3f})[/]")
            cells.append(f"{one.early.end_error:+.3f}")
        rows.append((one.name, *cells))
    title = "R = -a exp(H) + b\nbelow each coefficient its 95% interval"
    print_numbers(title, ("run", *columns), rows)
    say(
        "ceiling: b - a, the score at H = 0; intervals: bootstrap of blocks of consecutive\n"
        "steps, seed 0\n"
        "in-sample: error of the fit at the steps that it was fitted to (COV prints none)\n"
        f"predicted: error at the later steps of a law fitted to the first {100 * share:g}% (in\n"
        "brackets: of saying that the score stays); COV's .9% and 1.2% are of this kind\n"
        "at end: predicted minus seen, mean of the last fifteenth of the steps"
    )
    for one, own in zip(found, texts, strict=True):
        for text in own:
            if text not in common:
                say(f"{one.name}: {text}")


def _basis(one: RunLaw) -> list[str]:
    pairs, n = one.pairs, len(one.law.entropy)
    steps = counted(n, pairs.point) + (
        "" if one.early is None else f", the first {one.early.steps} predict"
    )
    return [f"R: {pairs.score_is}", f"H: {pairs.entropy_is}", f"steps: {steps}", *pairs.notes]


def _coefficient(one: RunLaw, key: str) -> str:
    low, high = getattr(one.interval, key)
    return f"{getattr(one.law, key):.2f}\n[dim]{low:.2f}..{high:.2f}[/]"


def _print_beside(found: Sequence[RunLaw], share: float, together: Pooled | None) -> None:
    """Print alternatives to the law, and how early the score is gained."""
    rows = []
    for same in zip(*(one.rivals for one in found if one.rivals), strict=True):
        inside, later = [each.rmse for each in same], [each.rmse_predicted for each in same]
        rows.append((same[0].of, _over(inside), _over(later)))
    if stays := [one.early.rmse_stay for one in found if one.early is not None]:
        rows.append(("it stays", "-", _over(stays)))
    if together is not None:
        rows += [
            ("law of the others of its method", _decimals(together.rmse_alike), "-"),
            ("law of the other methods", _decimals(together.rmse_others), "-"),
            ("one law for all", _decimals(together.rmse_one), "-"),
        ]
    if rows:
        columns = ("R by", "RMSE\nin-sample", f"from the\nfirst {100 * share:g}%")
        print_numbers("what else explains the score", columns, rows)
    if together is not None:
        law = together.law
        say(f"one law for {len(found)} runs: R = {-law.a:.3f} exp(H) {law.b:+.3f}")
    elif not _alike(found):
        say(
            "The runs are fitted to different scores or entropies; their coefficients cannot be "
            "compared."
        )
    for same in zip(*(spent(one.law.entropy, one.law.score) for one in found), strict=True):
        say(
            f"after {same[0].share:.0%} of the steps, medians (COV Fig. 2): "
            f"{_median([each.entropy for each in same])} of the entropy spent, "
            f"{_median([each.score for each in same])} of the score gained"
        )


def _over(values: Sequence[float]) -> str:
    """Root mean square over runs."""
    return _decimals((sum(value * value for value in values) / len(values)) ** 0.5)


def _median(shares: Sequence[float]) -> str:
    """Median, because a run that ends near its start has an arbitrary share."""
    known = [share for share in shares if isfinite(share)]
    return f"{median(known):.0%}" if known else "-"


def _decimals(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}" if isfinite(value) else "-"


def doubts_told(found: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """The doubts about the fits; for many runs, doubts that differ only in numbers appear once."""
    none = ("nothing speaks against the law.",)
    all_told = [(name, text) for name, doubts in found for text in doubts or none]
    if len(found) <= _FEW:
        return [f"{name}: {text}" for name, text in all_told]
    kinds: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, text in all_told:
        kinds[_NUMBER.sub("#", text)].append((name, text))
    lines = []
    for (first, text), *rest in sorted(kinds.values(), key=len, reverse=True):
        also = [name for name, _ in rest]
        if len(also) > _FEW + 1:
            also = [*also[: _FEW - 1], f"{also[_FEW - 1]} and {len(also) - _FEW} more"]
        some = f"{len(rest) + 1} of {len(found)} runs, as " * bool(rest)
        lines.append(f"{some}{first}: {text}" + f" Also {', '.join(also)}." * bool(rest))
    return lines


def _print_sizes(sizes: BySize) -> None:
    say("\ncoefficients against the model's size: intercept + slope ln(parameters)")
    for name, line in (("a", sizes.law.a), ("b", sizes.law.b)):
        fit = f"intercept {line.intercept:.3f}, R² {_decimals(line.r2, 2)}"
        say(f"{name}: slope {line.slope:+.4f}, {fit}")
    for out in sizes.left_out:
        say(
            f"{out.size:.3g} parameters, by the lines through the other sizes: a {out.a:.3f}, "
            f"b {out.b:.3f}, RMSE {out.rmse:.3f} (its own law's {out.rmse_own:.3f})"
        )
    for doubt in sizes.doubts:
        say(f"sizes: {doubt}")


def _run_json(one: RunLaw) -> dict[str, Any]:
    law, span, early, pairs = one.law, one.interval, one.early, one.pairs
    keys = ("steps", "ceiling", "rmse", "rmse_stay", "end_error", "reached")
    return {
        "run": one.name, "path": str(one.run.path), "methods": one.run.methods,
        "score": pairs.score_key, "score_is": pairs.score_is,
        "entropy": pairs.entropy_key, "entropy_is": pairs.entropy_is, "notes": pairs.notes,
        "steps": len(law.entropy),
        **{k: {"value": getattr(law, k), "interval": getattr(span, k)} for k in _COEFFICIENTS},
        "level": span.level, "block": span.block, "rmse": law.rmse, "r2": law.r2,
        "early": None if early is None else {
            "a": early.law.a, "b": early.law.b, "end_steps": early.end,
            **{key: getattr(early, key) for key in keys},
        },
        "rivals": [vars(each) for each in one.rivals],
        "spent": [vars(each) for each in spent(law.entropy, law.score)],
        "size": one.size, "size_counted_without_embeddings": one.counted, "doubts": one.doubts,
    }  # fmt: skip


def _sizes_json(sizes: BySize) -> dict[str, Any]:
    return {
        "runs": [one.name for one in sizes.runs], "sizes": sizes.law.sizes,
        "a": vars(sizes.law.a), "b": vars(sizes.law.b),
        "left_out": [vars(each) for each in sizes.left_out], "doubts": sizes.doubts,
    }  # fmt: skip


def _together_json(one: Pooled) -> dict[str, float]:
    errors = {key: value for key, value in vars(one).items() if key != "law"}
    return {"a": one.law.a, "b": one.law.b} | errors


def _only(keys: set[str]) -> str | None:
    return next(iter(keys)) if len(keys) == 1 else None


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by null, since JSON has neither."""
    return json.loads(json.dumps(value), parse_constant=lambda word: None)
