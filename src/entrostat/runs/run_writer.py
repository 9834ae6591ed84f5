"""Writes a trainer's logs into its run directory, and times its iterations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..config import TrainConfig
from ..control import Alarm
from ..logs.files import sync, writing
from ..logs.lines import JsonLines, Mark, finite
from .best_checkpoint import BestCheckpoint
from .entropy_monitor import EntropyMonitor
from .progress import Progress
from .run_directory import RunDirectory


class RunWriter:
    def __init__(
        self, run: RunDirectory, config: TrainConfig, progress: Progress,
        alert: Callable[[str], None] = lambda words: None,
    ) -> None:  # fmt: skip
        self.run, self.progress = run, progress
        self.metrics, self.evaluations = JsonLines(run.metrics), JsonLines(run.evaluations)
        self.answers, self.analysis = JsonLines(run.answers), JsonLines(run.analysis)
        self.best = BestCheckpoint(run.path, config.save.best)

        def tell(words: str) -> None:
            progress.note(words)
            alert(words)

        alarm = Alarm(config.alarm.low, config.alarm.high)
        self._monitor = EntropyMonitor(alarm, tell, self.metrics.read())
        self._durable: set[str] = set()

    def line(self, iteration: int, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Write the finite metrics of an iteration and the alarm's; returns them."""
        metrics = self._monitor.line(finite(dict(figures)))
        self.metrics.append([{"iteration": iteration, **metrics}])
        return metrics

    def evaluated(self, rows: list[dict[str, Any]], save: Callable[[Path], None]) -> None:
        """Write an evaluation's rows; `save` writes the policy if it is the best so far."""
        self.evaluations.append(rows)
        self.best.consider(rows, save)

    def marks(self) -> dict[str, Mark]:
        """Position of each log, for a checkpoint; the logs' names are on disk then."""
        logs: Iterable[JsonLines] = (self.metrics, self.evaluations, self.answers, self.analysis)
        marks = {log.path.name: log.mark() for log in logs if log.path.exists()}
        if marks.keys() != self._durable:
            with writing(self.run.path):
                sync(self.run.path)
            self._durable = set(marks)
        return marks


class Timer:
    """Times the laps of an iteration: `time/...` in seconds, and tokens per second."""

    def __init__(self) -> None:
        self._at = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, name: str, without: float = 0.0) -> None:
        """End a lap, or another part of it; `without` are seconds to exclude."""
        now = time.perf_counter()
        self._laps[name] = self._laps.get(name, 0.0) + now - self._at - without
        self._at = now

    def skip(self) -> None:
        """Exclude the time since the last lap."""
        self._at = time.perf_counter()

    def figures(self, tokens: float) -> dict[str, float]:
        """`time/LAP`, their sum `time/iteration`, and tokens per second; 0 if no time passed."""
        seconds = sum(self._laps.values())
        return {f"time/{name}": lap for name, lap in self._laps.items()} | {
            "time/iteration": seconds,
            "time/tokens_per_second": tokens / seconds if seconds > 0 else 0.0,
        }
