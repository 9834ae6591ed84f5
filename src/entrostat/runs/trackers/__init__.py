"""Experiment trackers beside metrics.jsonl: W&B, trackio, TensorBoard, MLflow (`--log`).

Each has a process of its own, for a tracker must never cost the run: it may raise, hang, print or
take its time, and the loop only puts a line into a pipe. A tracker that fails is warned of once and
dropped; what it missed it is given when the run is resumed.

`services.py` has the trackers, a class each, and their process.

A run's directory has under `trackers/`: NAME.json (the tracker's id of the run, the last iteration
that it was given), NAME.log (what it printed), and the files of TensorBoard and of W&B.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import tomllib
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...logs.lines import JsonLines
from .services import TITLES, check_installed, install, name_of, open_folder

if TYPE_CHECKING:  # the trackers' processes need not load it
    from ...config import TrainConfig

PATIENCE = 60.0  # seconds without an answer, then a tracker is dropped
AT_START = 300.0  # the same until it has begun: MLflow makes a database, W&B asks its server
_IMPORT = 120.0  # seconds that its package may take to import, before the run goes on without
_BOOT = (
    "import json, sys; path, arguments = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from entrostat.runs.trackers.services import main; main(*arguments)"
)


class Trackers:
    """The trackers of a run; without any, all of this does nothing."""

    def __init__(self, config: TrainConfig, note: Callable[[str], None]) -> None:
        check_installed(config.log.to)
        self._config, self._note = config, note
        self._all: list[_Tracker] = []

    def begin(self, path: Path, start: int, resume: bool) -> None:
        config, folder = self._config, open_folder(self._config, path, resume)
        told = {
            "folder": str(folder.absolute()), "project": config.log.project,
            "run": name_of(config, path), "config": tomllib.loads(config.to_toml()),
        }  # fmt: skip
        try:
            for name in config.log.to:
                self._all.append(_Tracker(name, folder, told))
            for tracker in self._all:
                tracker.imported()
        except BaseException:
            self._end()
            raise
        for iteration, figures in _logged(path, start):  # they leave out what they had before
            self.log(iteration, figures)

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for tracker in self._all:
            tracker.send({"finish": kind is None})
        self._look(until_done=True)
        self._end()

    def log(self, iteration: int, figures: Mapping[str, Any]) -> None:
        if not self._all or not figures:
            return
        numbers = {
            key: value
            for key, value in figures.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and key != "iteration"
        }
        for tracker in self._all:
            tracker.send({"iteration": iteration, "figures": numbers})
        self._look()

    def alert(self, words: str) -> None:
        for tracker in self._all:
            tracker.send({"alert": words})

    def _look(self, until_done: bool = False) -> None:
        """Take in what they answer; those that failed, or do not answer, are dropped."""
        while self._all:
            for tracker in list(self._all):
                reason = tracker.look()
                if reason is not None:
                    self._all.remove(tracker)
                    tracker.end()
                    warnings.warn(
                        f"{TITLES[tracker.name]} {reason}. The run goes on without it: all figures "
                        "are in metrics.jsonl, and a resumed run gives it what it missed. Its log: "
                        f"{tracker.log}",
                        stacklevel=4,
                    )
                    continue
                if tracker.place:
                    self._note(f"{TITLES[tracker.name]}: {tracker.place}")
                    tracker.place = ""
                if tracker.finished:
                    self._all.remove(tracker)
                    tracker.end()
            if not until_done:
                return
            select.select([tracker.answers for tracker in self._all], [], [], 0.2)

    def _end(self) -> None:
        for tracker in self._all:
            tracker.end()
        self._all = []


def _logged(path: Path, last: int) -> list[tuple[int, dict[str, Any]]]:
    """What a run's logs have of iterations up to `last`, in their order."""
    figures: dict[int, dict[str, Any]] = defaultdict(dict)
    for row in JsonLines(path / "metrics.jsonl").read() if last else []:
        figures[row["iteration"]] |= row
    for row in JsonLines(path / "evaluation.jsonl").read() if last else []:
        figures[row["iteration"]] |= evaluated([row])
    return sorted((i, found) for i, found in figures.items() if i <= last)


def evaluated(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Rows of evaluation.jsonl, one a set, as figures: `eval/SET/avg@k`."""
    return {
        f"eval/{row.get('set', row['split'])}/{key}": value
        for row in rows
        for key, value in row.items()
        if key not in ("iteration", "prompts", "k") and isinstance(value, int | float)
    }


class _Tracker:
    """One tracker's process, and two pipes that never block."""

    def __init__(self, name: str, folder: Path, start: Mapping[str, Any]) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        self.finished, self.place = False, ""
        self._imported, self._begun = False, False
        self._failed: str | None = None  # what went wrong before anybody asked
        self._outgoing, self._incoming = bytearray(), bytearray()
        self._open, self._since = 0, time.monotonic()
        read, self._orders = os.pipe()
        self.answers, write = os.pipe()
        path = [entry or os.getcwd() for entry in sys.path]
        command = [sys.executable, "-I", "-c", _BOOT, json.dumps([path, [name, write]])]
        try:
            with open(self.log, "ab") as file:
                self._process = subprocess.Popen(
                    command, stdin=read, stdout=file, stderr=file, pass_fds=[write],
                    env=os.environ | {"OMP_NUM_THREADS": "1"},
                    start_new_session=True,  # Ctrl-C is for the run; it ends when the run does
                )  # fmt: skip
        except OSError:
            os.close(self._orders)
            os.close(self.answers)
            raise
        finally:
            os.close(read)
            os.close(write)
        os.set_blocking(self._orders, False)
        os.set_blocking(self.answers, False)
        self.send(dict(start))

    def imported(self) -> None:
        end = time.monotonic() + _IMPORT
        while not self._imported and time.monotonic() < end:
            if (reason := self.look()) is not None:
                if self._imported:  # and then failed, both in one breath: that costs no run
                    self._failed = reason
                    return
                raise ValueError(f"log.to {self.name!r}: it {reason}; {install(self.name)}")
            select.select([self.answers], [], [], 0.2)

    def send(self, order: Mapping[str, Any]) -> None:
        if not self._open:
            self._since = time.monotonic()
        self._open += 1
        self._outgoing += json.dumps(order).encode() + b"\n"

    def look(self) -> str | None:
        """Write what waits, read what it answered; in words, why it is no use any more."""
        if self._failed is not None:
            return self._failed
        with suppress(BlockingIOError, BrokenPipeError):
            while self._outgoing:
                del self._outgoing[: os.write(self._orders, self._outgoing[: 1 << 16])]
        ended = False
        with suppress(BlockingIOError):
            while not ended:
                data = os.read(self.answers, 1 << 16)
                self._incoming += data
                ended = not data
        *lines, rest = self._incoming.split(b"\n")
        self._incoming = bytearray(rest)
        for line in lines:
            answer = json.loads(line)
            if "failed" in answer:
                return answer["failed"]
            self._imported, self._since = True, time.monotonic()
            if "begun" in answer:
                self._begun, self.place = True, answer["begun"]
            self.finished |= "finished" in answer
            self._open -= "imported" not in answer
        if ended and not self.finished:
            return "has ended by itself"
        waited = time.monotonic() - self._since
        if self._open and waited > (PATIENCE if self._begun else AT_START):
            return f"has not answered for {waited:.0f} seconds"
        return None

    def end(self) -> None:
        os.close(self._orders)
        os.close(self.answers)
        if self.finished:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
