"""What is there by now of the runs that are watched, and its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..._text import printable
from ...logs.importers import read_all
from ...logs.importers.places import runs_in
from ...logs.run import Run
from ..page import comparison_of, page_of
from ..scripts import Live


@dataclass(frozen=True)
class Watched:
    """What is to be watched.

    Attributes:
        paths: runs, logs, or directories in which runs lie or will lie; one or more.
        format, columns: as `logs.importers.read` takes them.
    """

    paths: tuple[Path, ...]
    format: str | None = None
    columns: Mapping[str, str] | None = None

    @property
    def title(self) -> str:
        """Heading of a page that compares."""
        return self.paths[0].resolve().name if len(self.paths) == 1 else "Comparison"


@dataclass(frozen=True)
class Reading:
    """What was read at one moment.

    Attributes:
        runs: what could be read; one or more.
        alone: whether the page is that of a run; else it compares, if only one for now.
        left_out: a sentence for each run that could not be read.
    """

    runs: tuple[Run, ...]
    alone: bool
    left_out: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """How far the runs are."""
        if len(self.runs) == 1:
            (run,) = self.runs
            of = "" if run.planned is None else f" of {run.planned}"
            return f"iteration {run.done}{of}"
        done = sorted(run.done for run in self.runs)
        span = f"{done[0]}" if done[0] == done[-1] else f"{done[0]} to {done[-1]}"
        return f"{len(self.runs)} runs, iteration {span}"


def read_watched(watched: Watched) -> Reading:
    """Read all that is there; of several runs, one that cannot be read is left out."""
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
    """Paths as typed; refuses one that can never come to be, as its directory is not there."""
    for path in map(Path, words):
        if not path.exists() and not path.absolute().parent.is_dir():
            raise ValueError(
                f"watch: {str(path)!r} is not there, nor the directory it would lie in; name a "
                "run, a log, or a directory in which runs appear"
            )
    return tuple(map(Path, words))
