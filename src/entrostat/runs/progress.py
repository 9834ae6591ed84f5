"""Progress display of a run: a live panel on a terminal, else one line per iteration."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .._text import console, say
from ..config import TrainConfig
from ..logs.lines import JsonLines


class Progress:
    """A silent display; the base of the visible ones."""

    def begin(self, config: TrainConfig, start: int) -> None:
        """The run starts after iteration `start`."""

    def tokens(self, count: int) -> None:
        """`count` more tokens were sampled."""

    def note(self, text: str) -> None:
        """A slow step begins."""

    def fact(self, text: str) -> None:
        """A finding of the run before it starts, such as the memory it needs."""

    def trained(self, iteration: int, metrics: dict[str, Any]) -> None:
        """An iteration's updates are made; its evaluation and checkpoint follow."""

    def iteration(self, iteration: int, metrics: dict[str, Any]) -> None:
        """An iteration is over and saved."""

    def end(self, path: Path) -> None:
        """The run is over; its files are in `path`."""

    def close(self) -> None:
        """Release the terminal, also after an error."""


@contextmanager
def without_bars() -> Iterator[None]:
    """Hide transformers' progress bars, which would disturb ours or a silent run."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


class RunNotes:
    """Shows and keeps the findings of a run before it starts."""

    def __init__(self, progress: Progress) -> None:
        self.said: list[str] = []
        self._progress = progress

    def __call__(self, text: str) -> None:
        self.said.append(text)
        self._progress.fact(text)


def summary(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    """The displayed metrics of an iteration: (label, figure) pairs."""
    controlled = [key for key in metrics if key.startswith("control/")]
    entropy = metrics.get("entropy/exact", math.nan)  # absent if all rollouts are masked
    return [
        ("entropy", f"{entropy:.3f}"),
        ("reward", f"{metrics['reward/mean']:.3f}"),
        *((key.removeprefix("control/"), f"{metrics[key]:.4g}") for key in controlled),
        ("length", f"{metrics['rollout/length_mean']:.1f}"),
        ("tokens/s", f"{metrics['time/tokens_per_second']:.0f}"),
    ]


def figures(row: dict[str, Any], before: dict[str, Any] | None = None) -> str:
    """An evaluation of a split in one line; `before → after` if an earlier one is given."""
    rows = [row] if before is None else [before, row]
    words = []
    for key, digits in (("avg@k", 2), ("pass@k", 2), ("distinct", 1), ("entropy", 2)):
        values = [one.get(key) for one in rows]
        if None not in values:  # veRL measures no entropy in evaluations
            label = key.replace("@k", f"@{row['k']}")
            words.append(f"{label} {' → '.join(f'{value:.{digits}f}' for value in values)}")
    return "  ".join(words)


def outcome(evaluations: list[dict[str, Any]]) -> list[str]:
    """One line per set: the first logged evaluation against the last."""
    lines, of_set = [], {}
    for row in evaluations:
        of_set.setdefault(row.get("set", row["split"]), []).append(row)
    for name, rows in of_set.items():
        first, last = rows[0], rows[-1]
        if len(rows) == 1:
            lines.append(f"{name}, iteration {last['iteration']}: {figures(last)}")
        else:
            span = f"iteration {first['iteration']} → {last['iteration']}"
            lines.append(f"{name}, {span}: {figures(last, first)}")
    return lines


class Lines(Progress):
    """One line per iteration, for logs and pipes."""

    def __init__(self, stream: Any = None) -> None:
        self.stream = stream or sys.stdout

    def begin(self, config: TrainConfig, start: int) -> None:
        self.total, self.first, self.began = config.iterations, start, time.monotonic()
        names = "+".join(m if isinstance(m, str) else m["name"] for m in config.method)
        after = f", from iteration {start + 1}" if start else ""
        self.fact(f"{names} on {config.task['name']} -> {config.output}{after}")

    def fact(self, text: str) -> None:
        say(text, self.stream)

    note = fact

    def trained(self, iteration: int, metrics: dict[str, Any]) -> None:
        shown = "  ".join(f"{label} {figure}" for label, figure in summary(metrics))
        self.fact(f"[{iteration}/{self.total}] {shown}  left {self._left(iteration)}")

    def end(self, path: Path) -> None:
        for line in outcome(JsonLines(path / "evaluation.jsonl").read()):
            self.fact(line)
        self.fact(f"done: {path}")

    def _left(self, iteration: int) -> str:
        done = iteration - self.first
        seconds = (time.monotonic() - self.began) / max(1, done) * (self.total - iteration)
        return duration(seconds)


def duration(seconds: float) -> str:
    """Format seconds as 45s, 3m05s or 2h10m."""
    s = round(seconds)
    if s < 60:
        return f"{s}s"
    return f"{s // 60}m{s % 60:02d}s" if s < 3600 else f"{s // 3600}h{s % 3600 // 60:02d}m"


class Live(Lines):
    """A progress bar, with metrics beside it and the entropy curve below."""

    def begin(self, config: TrainConfig, start: int) -> None:
        from rich.live import Live as RichLive

        super().begin(config, start)
        self.done, self.sampled, self.status = start, 0, "starting"
        self.curve: list[float] = []
        self.latest: dict[str, Any] = {}
        self.live: Any = RichLive(
            console=console(self.stream), refresh_per_second=4, get_renderable=self._render
        )
        self.live.start()

    def tokens(self, count: int) -> None:
        self.sampled += count
        self.status = f"sampling: {self.sampled} tokens"

    def note(self, text: str) -> None:
        self.status = text

    def trained(self, iteration: int, metrics: dict[str, Any]) -> None:
        self.done, self.latest, self.sampled = iteration, metrics, 0
        if "entropy/exact" in metrics:
            self.curve.append(metrics["entropy/exact"])

    def end(self, path: Path) -> None:
        self.status = "done"
        self.close()
        super().end(path)

    def close(self) -> None:
        if getattr(self, "live", None) is not None:
            self.live.stop()
            self.live = None

    def _render(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        head, figures = Table.grid(padding=(0, 2)), Table.grid(padding=(0, 2))
        head.add_row(
            Text(f"{self.done}/{self.total}", style="bold"),
            ProgressBar(total=self.total, completed=self.done, width=40),
            f"left {self._left(self.done)}" if self.done > self.first else "",
            Text(self.status, style="dim"),
        )
        if self.latest:
            shown = summary(self.latest)
            figures.add_row(*(Text.assemble((f"{k} ", "dim"), (v, "bold")) for k, v in shown))
        return Group(head, figures, Text(f"entropy {sparkline(self.curve)}", style="cyan"))


def sparkline(values: list[float], width: int = 60) -> str:
    """A curve in one line of block characters; the whole history, averaged into `width` places."""
    if not values:
        return ""
    n = min(width, len(values))
    bins = [values[i * len(values) // n : (i + 1) * len(values) // n] for i in range(n)]
    means = [sum(b) / len(b) for b in bins]
    low, high = min(means), max(means)
    step = (high - low) or 1.0
    return "".join("▁▂▃▄▅▆▇█"[min(7, int((m - low) / step * 8))] for m in means) + (
        f"  {values[0]:.2f} → {values[-1]:.2f}"
    )


def for_stream(stream: Any = None) -> Progress:
    stream = stream or sys.stdout
    return Live(stream) if stream.isatty() else Lines(stream)
