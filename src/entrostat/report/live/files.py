"""Whether what a run has written has changed: names, sizes and times, by asking.

File systems that tell of changes do so for this machine's own alone; a cluster's runs lie on a
network's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ...logs.importers import BINARY, MAX_DEPTH, MAX_FILES

Stamp = tuple[str, int, int]
"""A file's name, its size in bytes, the time of its last change in nanoseconds."""


def stamps(paths: Sequence[Path]) -> tuple[Stamp, ...]:
    """A stamp for each file that a page is made of; other values than before are a change.

    Weights and pages are left out: they say nothing that a page shows. Of a directory at most as
    many files are looked at, and as deep, as the importers read.
    """
    return tuple(stamp for path in paths for stamp in _under(path))


def newest(found: Sequence[Stamp]) -> float | None:
    """Time of the last change of all, in seconds since 1970; None without a file."""
    return max((ns for _, _, ns in found), default=0) / 1e9 or None


def _under(path: Path) -> Iterator[Stamp]:
    if not path.is_dir():
        yield from _stamp(path)
        return
    count = 0
    for folder, names, files in os.walk(path):
        deep = len(Path(folder).relative_to(path).parts) >= MAX_DEPTH
        names[:] = [] if deep else sorted(n for n in names if not n.startswith("."))
        dumps = os.path.basename(folder) == "rollouts"
        for name in sorted(files):
            if name.startswith(".") or name.endswith((".html", ".htm")):
                continue
            if name.endswith(BINARY) and not dumps:
                continue
            count += 1
            if count > MAX_FILES:
                return
            yield from _stamp(Path(folder, name))


def _stamp(path: Path) -> Iterator[Stamp]:
    with suppress(OSError):  # it was removed, or cannot be reached for now
        there = path.stat()
        yield str(path), there.st_size, there.st_mtime_ns
