"""Trainings as tasks of a Ray cluster (extra `ray`): on this machine, or on several.

Every node needs entrostat and, under the same path, the directory of the study: a training writes
there, whoever does it, and starts there where the node has not the directory that the study was
started in; paths are absolute (`plan.anywhere`). A task takes as many of the cluster's processors
as a training has threads, at most as many as one node has.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from ..errors import extra
from .local import environment, no_link, threads_of
from .plan import Training

KILLED = -9  # of a task whose node or worker went away


class OnRay:
    """The processors of a cluster; `jobs` of a file says what part of one machine a training takes.

    `address` is that of a cluster that runs ("auto", "HOST:PORT"); "local" starts one on this
    machine, which ends with the study.
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
        """Of a training; no more than the widest node has, as a task is never spread over two."""
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
    """On a node: one training as a process of its own; returns its exit code.

    It starts in `directory`, whose modules it may import, or beside its log where that is not here.
    """
    command = [sys.executable, "-m", "entrostat.cli", "train", *words]
    place = directory if os.path.isdir(directory) else os.path.dirname(log)
    with open(log, "ab", opener=no_link) as file:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=place,
            env=environment(threads), check=False,
        ).returncode  # fmt: skip
