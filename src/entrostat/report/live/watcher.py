"""One thread that checks files, reads runs and draws the page; servers return its last page.

Drawing takes seconds of a processor that may be training. So a page is made only after a change, at
most once in `every` seconds, with a rest after each one. Changes are detected by polling names,
sizes and times: file system notifications miss writes of other machines, and a cluster's runs are
on a network file system.
"""

from __future__ import annotations

import gc
import gzip
import itertools
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ..._text import printable
from ...errors import in_one_line
from ...logs.importers import read_all
from ...logs.importers.places import BINARY, runs_in, walk
from ...logs.importers.source import Given
from ...logs.run import Run
from ..page import comparison_of, page_of, waiting_page
from ..scripts import Live, live_part

LOOK = 1.0  # minimum seconds between two polls
SHARE = 0.1  # maximum share of the time spent polling
Stamp = tuple[str, int, int]  # a file's name, its bytes, its last change (nanoseconds since 1970)


@dataclass(frozen=True)
class Watched:
    paths: tuple[Path, ...]  # runs, logs, or directories that hold or will hold runs; at least one
    format: str | None = None  # format, columns: as for `logs.importers.read`
    columns: Mapping[str, str] | None = None

    @property
    def title(self) -> str:
        return self.paths[0].resolve().name if len(self.paths) == 1 else "Comparison"


@dataclass(frozen=True)
class Reading:
    runs: tuple[Run, ...]  # the readable runs; at least one
    alone: bool  # whether the page is a run's; else it compares, if only one run for now
    left_out: tuple[str, ...] = ()  # a sentence for each run that could not be read

    @property
    def words(self) -> str:
        if len(self.runs) == 1:
            return f"iteration {self.runs[0].progress}"
        done = {run.done for run in self.runs}
        span = " to ".join(map(str, sorted({min(done), max(done)})))
        return f"{len(self.runs)} runs, iteration {span}"


def read_watched(watched: Watched) -> Reading:
    """Read every run; with several, unreadable ones are left out."""
    places = [place for path in watched.paths for place in runs_in(path)]
    runs: list[Run] = []
    problems: list[str] = []
    for place in places:
        try:
            found, skipped = read_all(place, watched.format, watched.columns)
        except ValueError as error:
            found, skipped = [], (" ".join(str(error).split()),)
        runs += found
        problems += map(printable, skipped)
    if not runs:
        raise ValueError(problems[0])
    alone = len(runs) == 1 and places == list(watched.paths)[:1]
    return Reading(tuple(runs), alone, tuple(problems))


def html_of(reading: Reading, title: str, live: Live) -> str:
    if reading.alone:
        return page_of(reading.runs[0], live)
    return comparison_of(reading.runs, title, live=live)


def as_paths(words: Sequence[str]) -> tuple[Path, ...]:
    """Convert typed paths; raise on a path whose parent directory does not exist."""
    for path in map(Path, words):
        if not path.exists() and not path.absolute().parent.is_dir():
            raise ValueError(
                f"watch: {str(path)!r} is not there, nor the directory it would lie in; name a "
                "run, a log, or a directory in which runs appear"
            )
    return tuple(map(Path, words))


@dataclass(frozen=True)
class State:
    version: str  # identifies the page
    page: bytes
    words: str  # progress of the runs
    problem: str  # why the last reading failed, or what it left out; empty if nothing is wrong
    changed: float | None  # time of the files' last change, seconds since 1970; None without files
    waits: bool = False  # whether no run has a page yet

    @cached_property
    def packed(self) -> bytes:
        return gzip.compress(self.page, 3, mtime=0)

    def message(self, now: float) -> str:
        """State for the page, as JSON; `age` is the time since the last change, in seconds."""
        age = None if self.changed is None else max(0.0, now - self.changed)
        told = {"version": self.version, "words": self.words, "problem": self.problem}
        return json.dumps(told | {"waits": self.waits, "age": age})


class Watcher:
    """Keeps the watched page current; readings begin at least `every` seconds apart."""

    def __init__(
        self,
        watched: Watched,
        every: float = 5.0,
        draw: Callable[[Reading, str, Live], str] = html_of,
    ) -> None:
        self.watched, self.every, self._draw = watched, every, draw
        server = secrets.token_hex(4)  # a restarted server must not reuse page versions
        self._versions = (f"{server}-{i}" for i in itertools.count(1))
        self._ended = threading.Event()
        self.state = self._waiting("")
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float = 2.0) -> None:
        """Stop the thread; a page being drawn is waited for at most `seconds`."""
        self._ended.set()
        self._thread.join(seconds)

    def _follow(self) -> None:
        seen: tuple[Stamp, ...] | None = None
        pause = 0.0
        while not self._ended.wait(pause):
            begin = time.monotonic()
            found = stamps(self.watched.paths)
            took = time.monotonic() - begin
            pause = max(min(LOOK, self.every), took / SHARE)
            if found == seen:
                continue
            # later changes are seen at the next poll; a failed reading is repeated
            seen = found if self._read(newest(found)) else None
            took = time.monotonic() - begin
            pause = max(pause, self.every - took, min(took, self.every))

    def _read(self, changed: float | None) -> bool:
        try:
            reading = read_watched(self.watched)
            live = live_part(next(self._versions), self.every)
            page = self._draw(reading, self.watched.title, live).encode("utf-8", "replace")
        except Exception as error:  # a damaged file may raise anything, and the page must stay up
            known = isinstance(error, ValueError)
            words = " ".join(str(error).split()) if known else in_one_line(error)
            self._failed(printable(words), changed)
            return False
        problem = " ".join(f"Left out: {each}" for each in reading.left_out)
        self.state = State(live.version, page, reading.words, problem, changed)
        del page, reading
        gc.collect()  # a figure is a reference cycle of tens of thousands of objects
        return True

    def _failed(self, problem: str, changed: float | None) -> None:
        old = self.state
        if old.waits and old.problem != problem:
            old = self._waiting(problem)
        self.state = replace(old, problem=problem, changed=changed)

    def _waiting(self, problem: str) -> State:
        live = live_part(next(self._versions), self.every, problem)
        page = waiting_page(self.watched.title, live).encode("utf-8", "replace")
        words = "waiting for a run" if problem else "reading"
        return State(live.version, page, words, problem, None, waits=True)


def stamps(paths: Sequence[Path]) -> tuple[Stamp, ...]:
    """A stamp for each file that the page is made from; different values mean a change.

    Weights and pages are skipped, since the page shows nothing of them. The importers' limits of
    files and depth per directory apply.
    """
    return tuple(stamp for path in paths for file in _files(path) for stamp in _stamp(file))


def newest(found: Sequence[Stamp]) -> float | None:
    """Time of the most recent change, in seconds since 1970; None without files."""
    return max((ns for _, _, ns in found), default=0) / 1e9 or None


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    links: list[Path] = []
    with suppress(OSError):  # a directory may have disappeared
        links = [place for place in runs_in(path) if place.is_symlink()]  # of a study
    for file in (file for root in (path, *links) for file in walk(root, Given(root))):
        dumped = file.parent.name == "rollouts"
        if file.suffix not in (".html", ".htm") and (dumped or not file.name.endswith(BINARY)):
            yield file


def _stamp(path: Path) -> Iterator[Stamp]:
    with suppress(OSError):  # removed, or temporarily unreachable
        there = path.stat()
        yield str(path), there.st_size, there.st_mtime_ns
