"""A run that stops in the middle, as abruptly as a signal would stop it."""

from __future__ import annotations

from typing import Any

from entrostat.runs.progress import Progress


class Stop(BaseException):
    """As abrupt as a signal: nothing in a host's loop catches it."""


class StopAfter(Progress):
    """Raises `Stop` after an iteration."""

    def __init__(self, iteration: int) -> None:
        self.last = iteration

    def iteration(self, iteration: int, metrics: dict[str, Any]) -> None:
        if iteration == self.last:
            raise Stop
