"""How an evaluation shows itself: a bar per set on a terminal, else lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from .._text import console, say


class Display:
    """Silent; the base of the one that shows something."""

    def subject(self, spec: str) -> None:
        """A model's turn begins."""

    def note(self, text: str) -> None:
        """Something worth a line."""

    def begin(self, name: str) -> None:
        """A set's turn begins."""

    def tokens(self, count: int) -> None:
        """So many tokens were sampled."""

    def problems(self, done: int, count: int) -> None:
        """So many of a set's problems are done."""

    def end(self, name: str, entry: Mapping[str, Any]) -> None:
        """A set is done."""

    def close(self) -> None:
        """Give the terminal back, also after an error."""


class Shown(Display):
    """On a terminal a bar for each set; else lines, one in `seconds` while a set is at work."""

    seconds = 10.0

    def __init__(self, stream: Any = None) -> None:
        self._stream = stream or sys.stdout
        self._progress: Any = None
        self._name, self._said, self._sampled = "", 0.0, 0

    def subject(self, spec: str) -> None:
        say(spec, self._stream)

    def note(self, text: str) -> None:
        say(text, self._stream)

    def begin(self, name: str) -> None:
        self._name, self._said, self._sampled = name, 0.0, 0
        if not self._stream.isatty():
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
        self._sampled += count
        if self._progress is not None:
            self._progress.update(self._bar, sampled=f"{self._sampled} tokens")

    def problems(self, done: int, count: int) -> None:
        if self._progress is not None:
            self._progress.update(self._bar, completed=done, total=count)
        elif not self._said or time.monotonic() - self._said >= self.seconds:
            say(f"{self._name}: {done} of {count} problems", self._stream)
            self._said = time.monotonic()

    def end(self, name: str, entry: Mapping[str, Any]) -> None:
        self.close()
        value = entry["metrics"][f"avg@{entry['k']}"]["value"]
        say(f"{name}: avg@{entry['k']} {value:.3f} over {entry['n']} problems", self._stream)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
