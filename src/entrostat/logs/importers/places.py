"""Where runs lie: what a path that a user names stands for."""

from __future__ import annotations

from pathlib import Path

from . import several
from .trl import states


def is_one(path: Path) -> bool:
    """Whether a directory is one run: ours, or what a Hugging Face trainer writes to."""
    return (path / "metrics.jsonl").exists() or any(states(path))


def runs_in(path: Path) -> list[Path]:
    """The runs within a study's or a tracker's directory; a run, or what is neither, as it is."""
    if not path.is_dir() or is_one(path):
        return [path]
    runs = sorted(each for each in path.iterdir() if each.is_dir() and is_one(each))
    return runs or several(path) or [path]
