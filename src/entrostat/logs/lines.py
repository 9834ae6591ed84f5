"""A log of one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .files import replacing, writing


class JsonLines:
    """A file of one JSON object a line, each flushed as it is written.

    `keep_until(n)` drops the lines after iteration n, and a last line that was cut short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        """The whole lines; reading stops at the first that is not one."""
        rows: list[dict[str, Any]] = []
        if not self.path.exists():
            return rows
        for line in self.path.read_text(encoding="utf-8").split("\n")[:-1]:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):  # cut short, or made to break a reader
                break
            rows.append(row)
        return rows

    def keep_until(self, iteration: int) -> None:
        """Forget what came after `iteration`."""
        rows = [row for row in self.read() if row["iteration"] <= iteration]
        with replacing(self.path) as part:
            part.write_text("".join(map(_line, rows)), encoding="utf-8")

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add lines."""
        with writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write("".join(map(_line, rows)))


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"
