"""Ranks that are threads of one process: to use several processors, or to test several ranks.

Results of `entrostat.core.distributed` do not depend on the number of ranks. torch and numpy
release the interpreter lock while they compute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from .distributed import Array, Communicator

_WAIT = 60.0  # seconds for the other ranks to make the same call


class Threads:
    """Ranks that are threads: `run(f)` calls f(ranks) once per rank and returns the results.

    Args:
        world: number of ranks.
        wait: seconds to wait for the other ranks to make the same call; None waits forever.
    """

    def __init__(self, world: int, wait: float | None = _WAIT) -> None:
        self.world, self._wait, self._slots = world, wait, [None] * world
        self._barrier = threading.Barrier(world)

    def run(self, work: Callable[[Communicator], Any]) -> list[Any]:
        """The result of each rank; re-raises the exception of the first rank to fail.

        BrokenBarrierError: the ranks did not make the same calls.
        """
        found: list[Any] = [None] * self.world
        failed: list[BaseException] = []

        def body(rank: int) -> None:
            try:
                found[rank] = work(_Thread(rank, self))
            except BaseException as error:
                failed.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=body, args=(rank,)) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        own = [error for error in failed if not isinstance(error, threading.BrokenBarrierError)]
        for error in own or failed:
            raise error
        return found

    def shared(self, rank: int, value: Any) -> list[Any]:
        """All-gather of one value per rank."""
        self._slots[rank] = value
        self._barrier.wait(self._wait)
        got = list(self._slots)
        self._barrier.wait(self._wait)
        return got


class _Thread(Communicator):
    def __init__(self, rank: int, threads: Threads) -> None:
        self.rank, self.world, self._threads = rank, threads.world, threads

    def sum(self, numbers: Array) -> Array:
        return np.sum(self._threads.shared(self.rank, numbers), axis=0)

    def max(self, numbers: Array) -> Array:
        return np.max(self._threads.shared(self.rank, numbers), axis=0)

    def gather(self, rows: Array) -> Array:
        return np.concatenate(self._threads.shared(self.rank, rows))

    def exchange(self, parts: Sequence[Tensor], sizes: Sequence[int]) -> Sequence[Tensor]:
        got = [theirs[self.rank] for theirs in self._threads.shared(self.rank, parts)]
        assert [len(part) for part in got] == list(sizes)
        return got
