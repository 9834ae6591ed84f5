"""What was asked for, and what could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...run import Problem
from .values import clean

KEPT = 200
"""Problems listed one by one; further ones are counted."""


@dataclass
class Given:
    """What was asked for, and what turned up on the way.

    Attributes:
        root: the path that the user named.
        columns: the user's names for "step", "entropy" and "score".
        notes: sentences for the run.
        count: problems found, kept or not.
    """

    root: Path
    columns: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    kept: list[Problem] = field(default_factory=list)
    count: int = 0

    def problem(self, path: Path, line: int | None, reason: str) -> None:
        """Note something that was left out."""
        self.count += 1
        if len(self.kept) < KEPT:
            name = str(path.relative_to(self.root)) if path != self.root else path.name
            self.kept.append(Problem(clean(name), line, reason))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Those kept, by file and line, and how many more there were."""
        more = self.count - len(self.kept)
        last = [Problem(clean(self.root.name), None, f"{more} more problems, not listed")]
        kept = sorted(self.kept, key=lambda p: (p.file, p.line or 0))
        return (*kept, *(last if more else []))
