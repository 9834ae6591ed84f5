"""Run the trainings of a study file in processes of their own, and compare them.

Runs that are done are skipped, runs that were stopped go on, so a study may be interrupted and
repeated.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._text import console, say
from ..config import TrainConfig, from_dict, load
from ..logs.files import atomic
from ..logs.run import is_line, number
from .file import Study, check_runs, read_study
from .seeds import Group, group_by_seed

if TYPE_CHECKING:
    from ..report import Row

STARTED_BY_A_STUDY = "ENTROSTAT_STUDY"  # set for its trainings, which end when it is killed


def run_study(
    path: str | Path, output: str | None = None, jobs: int | None = None, trusted: bool = False
) -> int:
    """Run a study, print its table and write its report; returns the exit code.

    Args:
        path: the study file.
        output: directory for the runs; None takes runs/NAME of the file.
        jobs: processes at once; None takes the file's.
        trusted: whether the code that it names (MODULE:NAME) may be imported.

    Raises:
        ValueError: the file is wrong, or the directory holds runs with other settings; no run has
            started.
    """
    study = read_study(path, trusted)
    check_runs(study, path)
    directory = Path(output or f"runs/{Path(path).stem}")
    directory.mkdir(parents=True, exist_ok=True)
    paths = {name: directory / name for name in study.runs}
    for name, config in study.runs.items():
        _check_same(paths[name], config)
    from .fairness import confounded  # loads torch; `train` reads this module before it does

    for line in confounded(study.runs):
        say(f"note: {line}", sys.stderr)
    failed = _run_all(study, paths, jobs or study.jobs, trusted)
    done = [p for name, p in paths.items() if name not in failed]
    if done:
        from ..report import comparison_rows, write_comparison

        report = write_comparison(done, directory / "report.html", study.title)
        _print_table(comparison_rows(done))
        _print_groups(group_by_seed(study.runs, {n: p for n, p in paths.items() if p in done}))
        say(f"report: {report}")
    for name, log in failed.items():
        say(f"run {name!r} stopped: {_last_line(log)} (all of it: {log})", sys.stderr)
    return 1 if failed else 0


def _check_same(path: Path, config: TrainConfig) -> None:
    """A directory left by other settings must not pass for this study's result."""
    if not (path / "config.toml").exists():
        return
    there = from_dict(load(path / "config.toml"))
    there.output = config.output
    there.forget_choices(config)
    if there != config:
        raise ValueError(
            f"{path} holds a run with other settings than the study now has; remove it or choose "
            "another --output"
        )


def _run_all(study: Study, paths: dict[str, Path], jobs: int, trusted: bool) -> dict[str, Path]:
    """Keep `jobs` processes busy; returns the logs of the runs that failed."""
    from ..hosts.lab.run_directory import RunDirectory

    waiting = [
        name
        for name, config in study.runs.items()
        if not RunDirectory(paths[name]).complete(config.iterations)
    ]
    working: dict[str, subprocess.Popen[bytes]] = {}
    failed: dict[str, Path] = {}
    show = _Bars(study, paths)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the trainings too
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                name = waiting.pop(0)
                working[name] = _start(study.runs[name], paths[name], jobs, trusted)
            for name, process in list(working.items()):
                if process.poll() is not None:
                    del working[name]
                    if process.returncode:
                        failed[name] = _log(paths[name])
            show.facts(set(working))
            show.update(set(working))
            time.sleep(0.3)
    finally:
        for process in working.values():
            process.terminate()
        signal.signal(signal.SIGTERM, before)
        show.close()
    return failed


def _start(config: TrainConfig, path: Path, jobs: int, trusted: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "entrostat.cli", "train"]
    command += ["--trust-code"] if trusted else []
    if (path / "config.toml").exists():
        command += ["--resume", str(path)]
    else:
        settings = path.with_name(f"{path.name}.toml")
        with atomic(settings) as part:
            part.write_text(config.to_toml(), encoding="utf-8")
        command += ["--config", str(settings), "--output", str(path)]
    threads = max(1, (os.cpu_count() or 1) // jobs)
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1", STARTED_BY_A_STUDY: "1",
    }  # fmt: skip
    with open(_log(path), "ab", opener=_no_link) as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )


def _no_link(name: str, flags: int) -> int:
    """Open a log; a link that someone planted there is not followed."""
    return os.open(name, flags | os.O_NOFOLLOW, 0o666)


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}.log")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    errors = [line for line in lines if line.startswith("entrostat: error: ")]
    return (errors or lines or ["no output"])[-1].removeprefix("entrostat: error: ")


class _Bars:
    """A bar per run on a terminal; elsewhere a line now and then."""

    def __init__(self, study: Study, paths: dict[str, Path]) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        self.paths = paths
        self.console = console()
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining(),
            TextColumn("{task.fields[figures]}"), console=self.console,
            disable=not self.console.is_terminal,
        )  # fmt: skip
        self.bars = {
            name: self.progress.add_task(name, total=config.iterations, figures="")
            for name, config in study.runs.items()
        }
        self.said = time.monotonic()
        self.told: list[str] = []
        self.progress.start()

    def facts(self, working: set[str]) -> None:
        """What the first run to start has found out: precision, memory, disk."""
        for name in () if self.told else working:
            try:
                text = (self.paths[name] / "environment.json").read_text(encoding="utf-8")
                self.told = [str(line) for line in json.loads(text).get("said", [])]
            except (OSError, ValueError, AttributeError):
                continue
            for line in self.told:
                self.console.print(f"{name}: {line}", markup=False, highlight=False)
            return

    def update(self, working: set[str]) -> None:
        """Read each run's last line of metrics."""
        speak = not self.console.is_terminal and time.monotonic() - self.said > 15
        for name, bar in self.bars.items():
            line = _last_metrics(self.paths[name] / "metrics.jsonl")
            if line is None:
                continue
            pairs = (("entropy", "entropy/exact"), ("reward", "reward/mean"))
            known = [(word, number(line.get(key))) for word, key in pairs]
            figures = "  ".join(f"{word} {_figure(value, 3)}" for word, value in known)
            self.progress.update(bar, completed=line["iteration"], figures=figures)
            if speak and name in working:
                say(f"{name}: iteration {line['iteration']}  {figures}")
        if speak:
            self.said = time.monotonic()

    def close(self) -> None:
        """Leave the last picture."""
        self.progress.stop()


def _last_metrics(path: Path) -> dict[str, Any] | None:
    """The last whole line, read from the file's end."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            lines = file.read().split(b"\n")[:-1]
        line = json.loads(lines[-1]) if lines else None
    except (OSError, ValueError, RecursionError):
        return None
    return line if is_line(line) else None


def _print_table(rows: Sequence[Row]) -> None:
    from rich import box
    from rich.table import Table

    # narrow enough for 80 columns
    table = Table(
        title="before → after training; entropy in nats per token",
        box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    table.add_column("run", no_wrap=True)
    k = next((row.k for row in rows if row.k is not None), "k")
    for column in ("entropy", "kept", "target", f"avg@{k}", f"pass@{k}", "distinct", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.run.name,
            f"{_figure(row.entropy_before, 2)}→{_figure(row.entropy_after, 2)}",
            "-" if row.entropy_kept is None else f"{row.entropy_kept:.0f}%",
            _figure(row.target, 2),
            f"{_figure(row.avg_before, 2)}→{_figure(row.avg_after, 2)}",
            f"{_figure(row.pass_before, 2)}→{_figure(row.pass_after, 2)}",
            f"{_figure(row.distinct_before, 1)}→{_figure(row.distinct_after, 1)}",
            "-" if row.seconds is None else f"{row.seconds:.0f}s",
        )
    console().print(table)
    say(f"distinct: different right answers among {k} samples of a prompt")


def _print_groups(groups: Sequence[Group]) -> None:
    """Means over seeds, where there are several of the same settings."""
    if not groups:
        return
    from rich import box
    from rich.table import Table

    table = Table(
        title="over seeds: mean ± 95% interval; entropy of the first iteration,\n"
        "of the second tenth of the iterations (early) and of the end (a fifteenth)",
        box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    columns = list(dict.fromkeys(key for group in groups for key in group.figures))
    table.add_column("settings", no_wrap=True)
    for column in ("seeds", *columns):
        table.add_column(column, justify="right")
    for group in groups:
        cells = [str(group.figures.get(column, "-")) for column in columns]
        table.add_row(group.name, str(len(group.runs)), *cells)
    console().print(table)


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
