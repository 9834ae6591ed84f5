"""A log of one JSON object per line."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import replace_text, sync, writing

_BLOCK = 1 << 20  # bytes read at once


@dataclass(frozen=True)
class Mark:
    """A position in a log, and the hash of the content before it."""

    bytes: int
    sha256: str  # of these bytes, in hexadecimal


class JsonLines:
    """A file of one JSON object per line, each flushed as it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hash, self._hashed = hashlib.sha256(), 0

    def read(self) -> list[dict[str, Any]]:
        """Return the lines up to the first one that is damaged."""
        rows = self._rows()
        end = rows.index(None) if None in rows else len(rows)
        return [row for row in rows[:end] if row is not None]

    def readable(self) -> list[dict[str, Any]]:
        """Return every valid line, including those after a damaged one."""
        return [row for row in self._rows() if row is not None]

    def _rows(self) -> list[dict[str, Any] | None]:
        if not self.path.exists():
            return []
        return [_object(line) for line in self.path.read_bytes().split(b"\n")[:-1]]

    def keep_until(self, iteration: int) -> None:
        """Remove lines after `iteration`, and a truncated last line.

        If a line before the last is damaged, raise ValueError and change nothing.
        """
        rows = self._rows()
        for place, row in enumerate(rows, 1):
            if row is None or type(row.get("iteration")) is not int:
                raise ValueError(
                    f"{self.path}: line {place} of {len(rows)} is damaged, and to go on would drop "
                    "it; put the log back from a copy, or write to another directory"
                )
        kept = [row for row in rows if row is not None and row["iteration"] <= iteration]
        replace_text(self.path, "".join(map(_line, kept)))

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append lines; non-finite values are left out."""
        with writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write("".join(map(_line, rows)))

    def mark(self) -> Mark:
        """Sync the log to the disk and return its current position."""
        before = self._hashed
        with writing(self.path), open(self.path, "rb") as file:
            file.seek(before)
            while block := file.read(_BLOCK):
                self._hash.update(block)
                self._hashed += len(block)
            if self._hashed > before or not before:
                os.fsync(file.fileno())
        return Mark(self._hashed, self._hash.hexdigest())

    def damage(self, mark: Mark) -> str | None:
        """Say how the log was damaged since `mark`; None if it is unchanged or only longer."""
        name = self.path.name
        if not self.path.is_file():
            return f"{name} is gone"
        data = self.path.read_bytes()[: mark.bytes]
        left = mark.bytes - len(data)
        if not left and hashlib.sha256(data).hexdigest() == mark.sha256:
            return None
        bad = [place for place, row in enumerate(self._rows(), 1) if row is None]
        if bad:
            return f"line {bad[0]} of {name} is damaged"
        return f"{name} lacks its last {left} bytes" if left else f"{name} is not what was written"

    def rewind(self, mark: Mark) -> int:
        """Cut the log back to `mark`; return the number of lines removed, partial ones included."""
        with writing(self.path), open(self.path, "r+b") as file:
            file.seek(mark.bytes)
            rest = file.read()
            if rest:
                file.truncate(mark.bytes)
                os.fsync(file.fileno())
        return len(rest.splitlines())

    def remove(self) -> None:
        if self.path.exists():
            self.path.unlink()
            sync(self.path.parent)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):  # truncated, not UTF-8, or nested too deeply
        return None
    return row if isinstance(row, dict) else None


def finite(value: Any) -> Any:
    """Remove NaN and infinity from `value`: a dict loses the key, a list gets None."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items() if not _missing(each)}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if _missing(value) else value


def _missing(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _line(row: dict[str, Any]) -> str:
    return json.dumps(finite(row), allow_nan=False) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a file; {} if it cannot be read or is not an object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def number(value: Any) -> float | None:
    """Convert to a finite float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
