"""How an evaluation shows itself: a bar per set on a terminal, else lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from .._text import console, say


class Display:
    """Silent; the base of those that show something."""

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


class Lines(Display):
    """Lines, for logs and pipes: at most one in `seconds` while a set is at work."""

    seconds = 10.0

    def __init__(self, stream: Any = None) -> None:
        self.stream = stream or sys.stdout
        self._name, self._said = "", 0.0

    def subject(self, spec: str) -> None:
        say(spec, self.stream)

    def note(self, text: str) -> None:
        say(text, self.stream)

    def begin(self, name: str) -> None:
        """Nothing yet: `problems` says how many."""
        self._name, self._said = name, 0.0

    def problems(self, done: int, count: int) -> None:
        """At the start, and now and then."""
        if not self._said or time.monotonic() - self._said >= self.seconds:
            say(f"{self._name}: {done} of {count} problems", self.stream)
            self._said = time.monotonic()

    def end(self, name: str, entry: Mapping[str, Any]) -> None:
        value = entry["metrics"][f"avg@{entry['k']}"]["value"]
        say(f"{name}: avg@{entry['k']} {value:.3f} over {entry['n']} problems", self.stream)


class Bars(Lines):
    """A bar for each set, the tokens beside it."""

    def __init__(self, stream: Any = None) -> None:
        super().__init__(stream)
        self._progress: Any = None
        self._sampled = 0

    def begin(self, name: str) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._name, self._sampled = name, 0
        self._progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
            TimeRemainingColumn(), TextColumn("{task.fields[sampled]}"),
            console=console(self.stream), transient=True,
        )  # fmt: skip
        self._bar = self._progress.add_task(name, total=None, sampled="")
        self._progress.start()

    def tokens(self, count: int) -> None:
        self._sampled += count
        self._progress.update(self._bar, sampled=f"{self._sampled} tokens")

    def problems(self, done: int, count: int) -> None:
        self._progress.update(self._bar, completed=done, total=count)

    def end(self, name: str, entry: Mapping[str, Any]) -> None:
        """The score in its place."""
        self.close()
        super().end(name, entry)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def for_stream(stream: Any = None) -> Display:
    """The display that suits a stream."""
    stream = stream or sys.stdout
    return Bars(stream) if stream.isatty() else Lines(stream)
