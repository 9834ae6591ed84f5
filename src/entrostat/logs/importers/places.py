"""Where runs lie: what a path that a user names stands for."""

from __future__ import annotations

from pathlib import Path

from ..run import INDEX
from . import several
from .trl import states


def is_one(path: Path) -> bool:
    """Whether a directory is one run: ours, or what a Hugging Face trainer writes to."""
    return (path / "metrics.jsonl").exists() or any(states(path))


def runs_in(path: Path) -> list[Path]:
    """The runs within a study's, several studies' or a tracker's directory.

    A run, or what is none of these, as it is.
    """
    if not path.is_dir() or is_one(path):
        return [path]
    studies = (each for each in _directories(path) if (each / INDEX).is_file())
    runs = _runs(path) or [run for study in studies for run in _runs(study)]
    return runs or several(path) or [path]


def _directories(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.is_dir())


def _runs(path: Path) -> list[Path]:
    return [each for each in _directories(path) if is_one(each)]
