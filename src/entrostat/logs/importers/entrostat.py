"""Our own run directories."""

from __future__ import annotations

from pathlib import Path

from ..run import Run, read_run
from .source import Given, lines


def is_run(directory: Path) -> bool:
    """Whether a directory has metrics.jsonl with an iteration in its first line."""
    path = directory / "metrics.jsonl"
    if not path.is_file():
        return False
    first = next((text for _, text, _ in lines(path, Given(directory)) if text.strip()), "")
    return '"iteration"' in first[:100_000]


def is_begun(directory: Path) -> bool:
    """Whether it is a run of ours that may as yet have no iteration: it has settings."""
    return all((directory / name).is_file() for name in ("config.toml", "objective.json"))


def under(output: Path) -> Path | None:
    """The run directory that EntropyGRPOTrainer left in TRL's output directory.

    None where there is none, or several.
    """
    if output.name.startswith("checkpoint-"):
        output = output.parent
    found = [each.parent for each in output.glob("*/metrics.jsonl") if is_run(each.parent)]
    return found[0] if len(found) == 1 else None


def read(directory: Path) -> Run:
    """`read_run`.

    Raises:
        ValueError: it cannot be read, in one line.
    """
    try:
        return read_run(directory)
    except (OSError, RecursionError, ValueError) as error:
        reason = "JSON nested too deeply" if isinstance(error, RecursionError) else str(error)
        reason = " ".join(reason.split())
        raise ValueError(reason) from None
