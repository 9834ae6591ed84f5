"""Run trainings as processes of this machine, or as tasks of a Ray cluster (extra `ray`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from .._launch import STARTED_BY_A_STUDY
from .._processors import free_memory, kilobytes, processors
from ..errors import extra
from .plan import Training

_SLACK = 1e-9  # tolerance of shares that add up to 1
_GRACE = 20.0  # seconds for a training to end after SIGTERM
_TRAIN = (sys.executable, "-m", "entrostat.cli", "train")
KILLED = -9  # exit code of a task whose node or worker died


class Local:
    """As many processes as their files' `jobs` and the memory allow.

    A training of a file with `jobs = 2` uses half of the processors, one with `jobs = 1` all of
    them. Trainings of several files run in parallel while their shares add up to one machine. While
    others run, a training starts only if memory suffices for all, assuming that each grows to the
    largest size seen so far.
    """

    def __init__(self) -> None:
        self._running: dict[str, tuple[Training, subprocess.Popen[bytes]]] = {}
        self._most = 0  # largest memory of a training so far, in bytes

    def room(self, training: Training) -> bool:
        if not self._running:
            return True
        taken = sum(each.share for each, _ in self._running.values())
        return taken + training.share <= 1 + _SLACK and self._fits()

    def _fits(self) -> bool:
        """Whether memory suffices for one more training after all running ones have grown."""
        held = [_held(process.pid) for _, process in self._running.values()]
        self._most = max(self._most, *held)
        free = free_memory()
        return free is None or free >= sum(self._most - each for each in held) + self._most

    def start(self, training: Training, words: list[str]) -> None:
        with open(training.log, "ab", opener=no_link) as log:
            process = subprocess.Popen(
                [*_TRAIN, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=environment(threads_of(training)),
            )  # fmt: skip
        self._running[training.address] = (training, process)

    def ended(self) -> list[tuple[str, int]]:
        codes = [(a, p.poll()) for a, (_, p) in self._running.items()]
        ended = [(address, code) for address, code in codes if code is not None]
        for address, _ in ended:
            del self._running[address]
        return ended

    def close(self) -> None:
        for _, process in self._running.values():
            process.terminate()
        for _, process in self._running.values():
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()


def threads_of(training: Training) -> int:
    return max(1, int(processors() * training.share + _SLACK))


def environment(threads: int) -> dict[str, str]:
    """Environment of a training: its threads, and that it ends with its parent."""
    return os.environ | {
        "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1",
        STARTED_BY_A_STUDY: str(os.getpid()),
    }  # fmt: skip


def no_link(name: str, flags: int) -> int:
    """Open a log without following a link that someone else planted."""
    return os.open(name, flags | os.O_NOFOLLOW, 0o666)


def _held(pid: int) -> int:
    """Peak memory of a process in bytes; 0 if the system does not report it."""
    return kilobytes(Path(f"/proc/{pid}/status"), "VmHWM:") or 0


class OnRay:
    """The processors of a cluster; a file's `jobs` sets the share of one machine per training.

    Every node needs entrostat and, under the same path, the study's directory, which trainings
    write to. A training starts in the directory where the study was started, or beside its log if
    the node lacks it. Paths are absolute (`plan.anywhere`).

    `address` is a running cluster ("auto", "HOST:PORT"); "local" starts one on this machine, which
    ends with the study.
    """

    def __init__(self, address: str = "local") -> None:
        with extra("ray", "--ray"):
            import ray
        self._ray = ray
        try:
            ray.init(
                address, log_to_driver=False, logging_level="ERROR", include_dashboard=None,
                configure_logging=False,
            )  # fmt: skip
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ValueError(f"--ray {address}: {error}") from None
        self._task = ray.remote(max_retries=0)(train)
        self._running: dict[str, tuple[Training, Any]] = {}

    def room(self, training: Training) -> bool:
        whole = self._ray.cluster_resources().get("CPU", 0)
        taken = sum(self._threads(each) for each, _ in self._running.values())
        return not self._running or taken + self._threads(training) <= whole

    def start(self, training: Training, words: list[str]) -> None:
        threads = self._threads(training)
        task = self._task.options(num_cpus=threads, name=training.address)
        where = str(training.log.resolve())
        self._running[training.address] = (
            training, task.remote(words, where, os.getcwd(), threads)
        )  # fmt: skip

    def _threads(self, training: Training) -> int:
        """Threads of a training, at most the widest node's, since a task runs on one node."""
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        widest = max((int(has.get("CPU", 0)) for has in alive), default=0)
        return min(threads_of(training), widest or threads_of(training))

    def ended(self) -> list[tuple[str, int]]:
        if not self._running:
            return []
        tasks = {task: address for address, (_, task) in self._running.items()}
        found = []
        for task in self._ray.wait(list(tasks), num_returns=len(tasks), timeout=0)[0]:
            try:
                code = self._ray.get(task)
            except self._ray.exceptions.RayError:
                code = KILLED
            found.append((tasks[task], code))
            del self._running[tasks[task]]
        return found

    def close(self) -> None:
        for _, task in self._running.values():
            self._ray.cancel(task, force=True)
        self._ray.shutdown()


def train(words: list[str], log: str, directory: str, threads: int) -> int:
    """Run one training on a node, in `directory` or beside its log; return its exit code."""
    place = directory if os.path.isdir(directory) else os.path.dirname(log)
    with open(log, "ab", opener=no_link) as file:
        return subprocess.run(
            [*_TRAIN, *words], stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=place,
            env=environment(threads), check=False,
        ).returncode  # fmt: skip
