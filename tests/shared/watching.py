"""Runs that grow line by line, and a server of their live page within the test's own process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from entrostat.report.live.server import Server
from entrostat.report.live.watcher import State, Watched, Watcher


def line(i: int) -> dict:
    """An iteration's figures, of formulas."""
    return {"iteration": i, "entropy/exact": 2 / (i + 1), "reward/mean": i / (i + 5)}


def log(path: Path, first: int, last: int) -> None:
    """Add iterations to a run's log."""
    path.mkdir(exist_ok=True)
    with open(path / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps(line(i)) + "\n" for i in range(first, last + 1))


def checkpoint(path: Path, last: int) -> None:
    """What TRL saves after step `last`, logged every step, one step an iteration."""
    history = [
        {"step": i, "entropy": 1 / i, "reward": 0.5, "completions/mean_length": 9.0}
        for i in range(1, last + 1)
    ]
    folder = path / f"checkpoint-{last}"
    folder.mkdir(parents=True)
    state = {"global_step": last, "logging_steps": 1, "max_steps": 50, "log_history": history}
    (folder / "trainer_state.json").write_text(json.dumps(state))


@contextmanager
def served(*paths: Path, token: bool = False, every: float = 0.1, **more) -> Iterator[Server]:
    """A server on any port of this machine, of a watcher that has begun."""
    watcher = Watcher(Watched(paths), every, **more)
    server = Server(watcher, "127.0.0.1", 0, token)
    watcher.start()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        watcher.close(60)
        thread.join()


def until(watcher: Watcher, fits: Callable[[State], bool], seconds: float = 60) -> State:
    """The first state that fits.

    Raises:
        AssertionError: none came.
    """
    state, end = watcher.state, time.monotonic() + seconds
    while not fits(state):
        assert time.monotonic() < end, (state.words, state.problem)
        time.sleep(0.02)
        state = watcher.state
    return state
