"""The entropy law over finished runs: `entrostat law RUN...`.

`law.pairs_of` takes entropy and score out of a run. Two errors are printed beside each other, which
are different quantities: in-sample, of the fit at the steps that it was fitted to, and of the
prediction of later steps by a fit to the first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .._text import say
from ..law import (
    SHARE,
    LawError,
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
    spent,
)
from ..logs.files import atomic
from ..logs.importers import read_all
from ..logs.run import Run
from ..model_files import find
from ..report.runs import labels
from .law_text import Laws, RunLaw, alike, laws_json, print_laws

_NOMINAL = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([BbMm])(?![A-Za-z0-9])")
_EMBEDDING = re.compile(r"(^|\.)(embed_\w+|wte|wpe|lm_head|word_embeddings\w*|embed_out)\.")


def run_law(
    paths: list[str],
    score: str | None = None,
    share: float = SHARE,
    output: str | None = None,
    entropy: str | None = None,
) -> int:
    """Fit R = -a exp(H) + b to each run, print a table and what speaks against it.

    Args:
        paths: run directories, or what another trainer left (`logs.importers`); a directory of
            several, as of a study, stands for them.
        score: R, as `law.pairs_of` takes it; None is COV's, the validation score, or the training
            reward where a run has too few evaluations.
        share: share of the steps that the early prediction is fitted to.
        output: file that gets the same as JSON.
        entropy: H, as `law.pairs_of` takes it; None is COV's, of the training rollouts.

    Returns:
        0, or 1 where a run among several could not be fitted.
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
    why = {name: error.why for name, error in failed.items()}
    laws = Laws(found, why, _size_law(found), _together(found), share)
    print_laws(laws)
    if output is not None:
        data = laws_json(laws)
        with atomic(Path(output)) as part:
            part.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        say(f"written: {output}")
    return 1 if failed else 0


def _law_of(run: Run, name: str, pairs: Pairs, share: float) -> RunLaw:
    law = fit(pairs.entropy, pairs.score)
    early, doubts = None, list(law.doubts)
    beside: tuple[Rival, ...] = ()
    try:
        early = early_of(law, share)
    except LawError as error:
        doubts.append(f"No early prediction: {error.why}.")
    else:
        # what the early law doubts of itself is of few steps by design
        doubts += [d for d in early.doubts if not d.startswith("Of the first")]
        beside = rivals(law.entropy, law.score, share)
    size, counted = _size_of(run)
    return RunLaw(
        name, run, pairs, law, law.interval(), early, beside, spent(law.entropy, law.score),
        tuple(doubts), size, counted,
    )  # fmt: skip


def _size_of(run: Run) -> tuple[float | None, bool]:
    """Parameters of the run's model, and whether they were counted without embeddings."""
    model = run.config.get("model")
    places = [run.path / "final"]
    if isinstance(model, str) and model:
        with suppress(ValueError):  # one of ours that is not on this machine
            places.append(Path(find(model)))
    for place in places:
        counted = _count(sorted(place.glob("model*.safetensors")))
        if counted:
            return float(counted), True
    nominal = _NOMINAL.search(Path(model).name) if isinstance(model, str) else None
    if nominal is None:
        return None, False
    return float(nominal[1]) * (1e9 if nominal[2] in "Bb" else 1e6), False


def _count(files: Sequence[Path]) -> int:
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
    if not alike(known):
        doubts.append("The runs are fitted to different scores or entropies, which moves a and b.")
    if len({run.run.task for run in known}) > 1:
        doubts.append("The runs have different tasks, which move a and b as well.")
    return known, law, tuple(doubts)


def _together(found: Sequence[RunLaw]) -> Pooled | None:
    """One law for all; None for one run, and where runs are fitted to different quantities."""
    if len(found) < 2 or not alike(found):
        return None
    # runs of one kind differ by their seed alone, as a study or the methods' names say
    kinds = [one.run.group or one.run.methods or one.name for one in found]
    return pooled([one.law for one in found], kinds)
