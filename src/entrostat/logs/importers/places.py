"""Find runs: what a path given by the user stands for, and the files under it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..run import INDEX
from .source import Given, first_line
from .trl import states

MAX_FILES = 20_000
MAX_DEPTH = 6
BINARY = (
    ".safetensors", ".bin", ".distcp", ".npy", ".npz", ".png", ".jpg", ".pdf", ".so", ".arrow",
)  # fmt: skip


def is_run(directory: Path) -> bool:
    """Whether a directory is an entrostat run: the first line of metrics.jsonl has an iteration."""
    path = directory / "metrics.jsonl"
    return path.is_file() and '"iteration"' in first_line(path)[:100_000]


def is_study(directory: Path) -> bool:
    return (directory / INDEX).is_file()


def runs_in(path: Path) -> list[Path]:
    """The runs in a study's directory, or in a directory of studies; any other path alone."""
    if not path.is_dir() or _is_one(path):
        return [path]
    studies = [each for each in sorted(path.iterdir()) if is_study(each)]
    return _runs(path) or [run for study in studies for run in _runs(study)] or [path]


def _is_one(path: Path) -> bool:
    return (path / "metrics.jsonl").exists() or bool(states(path))


def _runs(folder: Path) -> list[Path]:
    return sorted(filter(_is_one, folder.iterdir()))


def walk(root: Path, given: Given) -> Iterator[Path]:
    """Yield files under a directory without following links to directories."""
    count = 0
    for folder, names, files in os.walk(root):
        depth = len(Path(folder).relative_to(root).parts)
        names[:] = sorted(n for n in names if not n.startswith(".")) if depth < MAX_DEPTH else []
        for name in sorted(files):
            file = Path(folder, name)
            if name.startswith(".") or not os.path.isfile(file):
                continue
            count += 1
            if count > MAX_FILES:
                given.problem(root, None, f"more than {MAX_FILES} files; the rest is not read")
                return
            yield file
