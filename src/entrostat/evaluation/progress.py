"""Progress display of an evaluation: a bar per set on a terminal, else lines."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from .._text import console, say

SECONDS = 10.0  # between lines during a set


class Display:
    """A bar per set on a terminal, else lines; silent without a stream."""

    _stream: Any = None
    _progress: Any = None

    def __init__(self, stream: Any = None) -> None:
        self._stream = stream

    def note(self, text: str) -> None:
        if self._stream is not None:
            say(text, self._stream)

    def begin(self, name: str) -> None:
        self._name, self._said, self._sampled = name, 0.0, 0
        if self._stream is None or not self._stream.isatty():
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        self._progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
            Remaining(), TextColumn("{task.fields[sampled]}"), console=console(self._stream),
            transient=True,
        )  # fmt: skip
        self._bar = self._progress.add_task(name, total=None, sampled="")
        self._progress.start()

    def tokens(self, count: int) -> None:
        if self._progress is not None:
            self._sampled += count
            self._progress.update(self._bar, sampled=f"{self._sampled} tokens")

    def problems(self, done: int, count: int) -> None:
        if self._progress is not None:
            self._progress.update(self._bar, completed=done, total=count)
        elif not self._said or time.monotonic() - self._said >= SECONDS:
            self.note(f"{self._name}: {done} of {count} problems")
            self._said = time.monotonic()

    def end(self, name: str, entry: Mapping[str, Any]) -> None:
        """Replace the bar of a finished set by its score."""
        self.close()
        value = entry["metrics"][f"avg@{entry['k']}"]["value"]
        self.note(f"{name}: avg@{entry['k']} {value:.3f} over {entry['n']} problems")

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
