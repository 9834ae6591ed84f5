"""A program that starts Ray, of which nothing is left at the end: no process, no file."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "ENTROSTAT_TEST_CLUSTER"  # its processes inherit it, and are found by it
_ENVIRONMENT = {
    "VERL_USE_EXTERNAL_MODULES": "ray_cpu,rollout_engine",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # or it writes a token into the home directory
    "RAY_worker_niceness": "0",  # 15 by default: beside other work nothing would come of it
    "RAY_memory_monitor_refresh_ms": "0",  # it ends workers where other programs use memory
}
# what conftest.py says of a single process, and what would join another cluster
_NOT_OURS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RAY_ADDRESS")


@dataclass
class Cluster:
    """The program, and what it prints.

    Attributes:
        process: as it was started.
        place: where it, Ray and its workers put temporary files.
        log: what they print.
    """

    process: subprocess.Popen[bytes]
    place: str
    log: Path

    def wait(self, seconds: float) -> int:
        """The program's exit code.

        Raises:
            AssertionError: it has not ended after so long; with the end of its log.
        """
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        assert self.process.returncode is not None, f"not over after {seconds} s\n{self.tail()}"
        return self.process.returncode

    def wait_until(self, done: Callable[[], bool], seconds: float) -> None:
        """Return when `done`, at most after so long.

        Raises:
            AssertionError: it was not done by then, or the program ended before; as above.
        """
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, f"not done after {seconds} s\n{self.tail()}"
            assert self.process.poll() is None, f"code {self.process.returncode}\n{self.tail()}"
            time.sleep(0.05)

    def tail(self) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace")[-6000:]

    def processes(self) -> list[int]:
        """Ids of the program's processes and their descendants that live."""
        mark, found = f"{MARK}={self.place}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has ended since, or is another user's
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found

    def kill(self, words: str) -> None:
        """`kill -9` the processes that have these words in their command line."""
        for number in self.processes():
            with suppress(OSError):
                line = Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ")
                if words.encode() in line:
                    os.kill(number, signal.SIGKILL)


@contextmanager
def cluster(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Start a program; on leaving, end its processes and remove their temporary files.

    Args:
        command: the program, which runs in the folder of its log.
        log: takes what is printed.
        environment: more variables.
    """
    place = tempfile.mkdtemp(prefix="ray")  # short: sockets lie in it, whose names end at byte 107
    variables = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    variables |= _ENVIRONMENT | {MARK: place, "RAY_TMPDIR": place, "TMPDIR": place}
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=log.parent, env=variables | dict(environment or {}),
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    started = Cluster(process, place, log)
    try:
        yield started
    finally:
        try:
            _end(started)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _end(started: Cluster) -> None:
    for _ in range(300):
        left = started.processes()
        if not left:
            break
        for number in left:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.1)
    else:
        raise AssertionError(f"processes {left} do not end")
    started.process.wait(10)
