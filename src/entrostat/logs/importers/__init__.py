"""Read runs of other trainers as `Run`: `read("outputs/checkpoint-500")`, `read_all("outputs")`.

`names` maps every trainer's metric names to ours, `source` reads files safely, and `rows` assigns
lines to runs. Each format has one file. The contents of a file decide its format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..run import Run, read_run
from . import places, trl
from .found import Found, detect
from .names import KINDS
from .source import Given, clean, records

__all__ = ["FORMATS", "detect", "read", "read_all"]

FORMATS: dict[str, str] = {
    "entrostat": "a run directory of entrostat",
    "trl": "TRL's or ms-swift's trainer_state.json, logging.jsonl, console, output directory",
    "verl": "veRL's console log, file logger's JSONL, rollout dumps",
    "prime_rl": "prime-rl's token export or annotations, JSONL",
    "slime": "slime's console log, or samples exported to JSONL",
    "tensorboard": "TensorBoard's event files",
    "wandb": "W&B's run-ID.wandb, wandb-history.jsonl",
    "table": "CSV, JSON, Markdown, HTML, a notebook or a console with step, entropy, score",
}


def read(
    path: str | Path, format: str | None = None, columns: Mapping[str, str] | None = None
) -> Run:
    """Read a run of any known trainer; of several, the longest, with a note on the others.

    Args:
        path: a file or a directory.
        format: a key of `FORMATS`; None detects it from the contents.
        columns: for tables, the source's names of "step", "entropy" and "score", any of them.

    Returns:
        the run; `frame()` has its metrics. Exact entropies are `entropy/exact`, sampled ones
        `entropy/nll`, others `entropy/logged`; `entropy_is` names the kind. `notes` and `problems`
        list what is missing or could not be read.

    Raises:
        ValueError: nothing could be read, or an argument is wrong; the message is one line.
    """
    runs, skipped = read_all(path, format, columns)
    run = max(runs, key=lambda each: len(each.metrics))
    others = [each.name for each in runs if each is not run]
    notes = list(run.notes)
    if others:
        notes.append(
            f"Read {run.name}; other runs beside it are not, name their directories: "
            f"{', '.join(others[:5])}{', ...' if others[5:] else ''}."
        )
    return replace(run, notes=(*notes, *skipped))


def read_all(
    path: str | Path, format: str | None = None, columns: Mapping[str, str] | None = None
) -> tuple[list[Run], tuple[str, ...]]:
    """Read every run in a file or a directory; arguments and errors as for `read`.

    Returns:
        the runs, at least one, each under a unique name; a sentence for each run that has no steps
        or cannot be read.
    """
    columns = dict(columns or {})
    if format is not None and format not in FORMATS:
        raise ValueError(f"format {format!r} is unknown; choose from {', '.join(FORMATS)}")
    if wrong := [kind for kind in columns if kind not in KINDS]:
        raise ValueError(f"columns: {wrong[0]!r} is unknown; choose from {', '.join(KINDS)}")
    if columns and format not in (None, "table"):
        raise ValueError(f"columns are for tables; format is {format!r}")
    path, format = Path(path), "table" if columns else format
    given = Given(path, columns)
    try:
        if not path.is_dir() and not path.is_file():
            raise ValueError(f"{str(path)!r} is neither a file nor a directory")
        ours, skipped = _ours(path, format) if format in (None, "entrostat") else ([], [])
        found = Found(path, format, given, [run.path for run in ours])
        # other files of a study describe its runs
        runs, more = ([], []) if ours and places.is_study(path) else found.runs()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(f"{str(path)!r} cannot be read: {reason}") from None
    runs, skipped = [*ours, *runs], [*skipped, *more]
    begun = all((path / name).is_file() for name in ("config.toml", "objective.json"))
    if not runs and begun:
        raise ValueError(
            f"{clean(str(path))!r} has no iteration yet; if it was stopped, "
            "`entrostat train --resume` goes on with it"
        )
    if not runs and len(found.refused) == 1:
        raise ValueError(found.refused[0])
    if not runs:
        wanted = [format] if format else list(FORMATS)
        looked = "; ".join(f"{name}: {FORMATS[name]}" for name in wanted)
        because = f" ({'; '.join(skipped[:3])})" if skipped else ""
        if given.kept and not skipped:
            because = f" (first of {given.count} problems: {given.kept[0]})"
        message = f"{str(path)!r} holds nothing that can be read{because}; looked for {looked}"
        raise ValueError(" ".join(clean(message).split()))
    return runs, tuple(clean(" ".join(text.split())) for text in skipped)


def _ours(path: Path, format: str | None) -> tuple[list[Run], list[str]]:
    """Read entrostat's own runs at or under a path; also return why others cannot be read."""
    one, note = True, tuple[str, ...]()
    if path.is_file():
        own = path.name == "metrics.jsonl" and places.is_run(path.parent)
        first = next((record for _, record in records(path, Given(path))), {}) if own else {}
        own = "iteration" in first and any(key.startswith("entropy/") for key in first)
        folders = [path.parent] if own else []
    elif places.is_run(path):
        folders = [path]
    elif format is None and trl.states(path):
        # EntropyGRPOTrainer may have left one run directory in TRL's output directory
        output = path.resolve()
        output = output.parent if output.name.startswith("checkpoint-") else output
        beside = [p.parent for p in output.glob("*/metrics.jsonl") if places.is_run(p.parent)]
        folders = beside if len(beside) == 1 else []
        has = "which has more than TRL's own log beside it"
        note = tuple(f"Read from {clean(folder.name)}/, {has}." for folder in folders)
    else:
        logs = (file for file in places.walk(path, Given(path)) if file.name == "metrics.jsonl")
        # a study links to its runs, and the walk follows no links
        some = places.runs_in(path) if places.is_study(path) else [file.parent for file in logs]
        folders, one = list(filter(places.is_run, some)), False
    runs, skipped = [], []
    for folder in folders:
        try:
            run = read_run(folder)
            runs.append(replace(run, notes=(*run.notes, *note)))
        except (OSError, ValueError) as error:
            skipped.append(" ".join(str(error).split()))
    if one and skipped:
        raise ValueError(skipped[0])
    return runs, skipped
