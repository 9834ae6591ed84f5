"""What a run directory says: settings, curves, evaluations, and what is missing from it.

A run may be unfinished, its last line cut short, its rollouts never dumped: all that is there is
used, and `Run.notes` says in words what is not.
"""

from __future__ import annotations

import itertools
import json
import math
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Lines = list[dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """One run in a comparison; None where the run does not say.

    Attributes:
        label: method names joined by "+", or the directory's name where methods repeat.
        run: the run directory.
        iterations: last iteration logged.
        planned: iterations asked for.
        entropy_before: exact entropy of the first iteration's rollouts, nats a token.
        entropy_after: that of the last iteration's (before its updates).
        entropy_kept: after / before, percent.
        target: the entropy that a controller holds, nats a token.
        split: the evaluation split that the next seven fields are of, the first one logged.
        k: samples a prompt.
        avg_before: avg@k before training (iteration 0), 0 to 1.
        avg_after: avg@k at the last evaluation of a later iteration.
        pass_before: pass@k before training, 0 to 1.
        pass_after: pass@k at the last evaluation.
        distinct_before: distinct right answers a prompt among k samples, before training.
        distinct_after: the same at the last evaluation.
        evaluated: iteration of the last evaluation.
        reward_first: mean reward of the first iteration.
        reward_last: mean reward of the last iteration.
        seconds: time of the logged iterations, without evaluations.
    """

    label: str
    run: Path
    iterations: int
    planned: int | None
    entropy_before: float | None
    entropy_after: float | None
    entropy_kept: float | None
    target: float | None
    split: str | None
    k: int | None
    avg_before: float | None
    avg_after: float | None
    pass_before: float | None
    pass_after: float | None
    distinct_before: float | None
    distinct_after: float | None
    evaluated: int | None
    reward_first: float | None
    reward_last: float | None
    seconds: float | None


@dataclass(frozen=True)
class Run:
    """A run directory, read once.

    Attributes:
        path: the directory.
        config: settings as nested tables; empty where there is no readable config.toml.
        config_text: config.toml as written.
        environment_text: environment.json as written.
        metrics: one object an iteration, at least one.
        evaluation: one object an evaluation and split.
        notes: sentences on what is missing or cut short.
    """

    path: Path
    config: dict[str, Any]
    config_text: str
    environment_text: str
    metrics: Lines
    evaluation: Lines
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the directory."""
        return self.path.resolve().name

    @property
    def methods(self) -> str | None:
        """Method names joined by "+"."""
        methods = self.config.get("method")
        methods = methods if isinstance(methods, list) else [methods]
        names = [m.get("name") if isinstance(m, dict) else m for m in methods]
        return "+".join(map(str, names)) if names and all(names) else None

    @property
    def task(self) -> str:
        """The task's name."""
        task = self.config.get("task", "unknown task")
        return str(task.get("name", "unknown task") if isinstance(task, dict) else task)

    @property
    def done(self) -> int:
        """The last iteration logged."""
        return self.metrics[-1]["iteration"]

    @property
    def planned(self) -> int | None:
        """Iterations asked for."""
        planned = self.config.get("iterations")
        return planned if isinstance(planned, int) else None

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Iterations and values of one metric, where a line has it as a finite number."""
        pairs = [(row["iteration"], number(row.get(key))) for row in self.metrics]
        kept = [(x, y) for x, y in pairs if y is not None]
        return [x for x, _ in kept], [y for _, y in kept]

    def keys(self, group: str) -> list[str]:
        """Names of the metrics of a group, `control` say, in order of appearance."""
        found = {key: None for row in self.metrics for key in row if key.startswith(f"{group}/")}
        return list(found)

    @property
    def coefficients(self) -> list[str]:
        """Metrics that are a controller's coefficient."""
        return [key for key in self.keys("control") if key != "control/target"]


def number(value: Any) -> float | None:
    """A finite number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def read_run(path: Path) -> Run:
    """Read a run directory.

    Raises:
        ValueError: it holds no metrics.jsonl, or not one whole line of it.
    """
    path = Path(path)
    if not (path / "metrics.jsonl").is_file():
        raise ValueError(
            f"report: {str(path)!r} holds no metrics.jsonl; name the directory of a run"
        )
    notes: list[str] = []
    metrics = _lines(path / "metrics.jsonl", notes)
    if not metrics:
        raise ValueError(
            f"report: metrics.jsonl in {str(path)!r} holds no whole line; "
            "train at least one iteration first"
        )
    evaluation = _lines(path / "evaluation.jsonl", notes)
    config_text = _text(path / "config.toml", notes)
    config: dict[str, Any] = {}
    try:
        config = tomllib.loads(config_text)
    except tomllib.TOMLDecodeError as error:
        notes.append(f"config.toml is not TOML ({error}); the settings are unknown.")
    environment = _text(path / "environment.json", notes)
    run = Run(path, config, config_text, environment, metrics, evaluation, ())
    return Run(
        path, config, config_text, environment, metrics, evaluation,
        (*_progress_notes(run), *notes),
    )  # fmt: skip


def _progress_notes(run: Run) -> list[str]:
    notes = []
    if run.planned is not None and run.done < run.planned:
        notes.append(f"Unfinished: {run.done} of {run.planned} iterations are logged.")
    elif not (run.path / "final").is_dir():
        notes.append("There is no final model: the run has not saved it, or it was removed.")
    if run.metrics[0]["iteration"] > 1:
        first = run.metrics[0]["iteration"]
        notes.append(f'The log begins at iteration {first}; "start" means that one.')
    if not run.evaluation:
        notes.append("No evaluation is logged.")
    return notes


def _text(path: Path, notes: list[str]) -> str:
    """A text file; a note where there is none."""
    if not path.is_file():
        notes.append(f"There is no {path.name}.")
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def _lines(path: Path, notes: list[str]) -> Lines:
    """Whole lines of a log; a note where reading stopped before its end."""
    from ..hosts.lab.record import JsonLines

    if not path.is_file():
        return []
    # counted before they are read: a run that is still writing can only add whole lines
    found = path.read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\n")
    try:
        rows = JsonLines(path).read()
    except UnicodeDecodeError:
        notes.append(f"{path.name} is not UTF-8 text; it is left out.")
        return []
    whole = list(itertools.takewhile(_is_line, rows))
    left_out = sum(bool(line.strip()) for line in found) - len(whole)
    if left_out == 1:
        notes.append(f"The last line of {path.name} is cut short; it is left out.")
    elif left_out > 1:
        notes.append(
            f"Line {len(whole) + 1} of {path.name} is not a whole JSON object; it and what "
            f"follows ({left_out} lines) are left out."
        )
    return whole


def _is_line(row: Any) -> bool:
    return isinstance(row, dict) and type(row.get("iteration")) is int


def labels(runs: Sequence[Run]) -> list[str]:
    """A label each, all different: method names, where these repeat the directory's name."""
    names = [run.methods or run.name for run in runs]
    for other in ([run.name for run in runs], [str(run.path) for run in runs]):
        times = Counter(names)
        names = [o if times[n] > 1 else n for n, o in zip(names, other, strict=True)]
    times = Counter(names)
    return [f"{n} ({i})" if times[n] > 1 else n for i, n in enumerate(names, 1)]


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """The rows of a comparison of runs already read."""
    return [_row(run, label) for run, label in zip(runs, labels(runs), strict=True)]


def comparison_rows(runs: list[Path]) -> list[Row]:
    """What each run came to, in the order given.

    Raises:
        ValueError: a directory without one whole line of metrics.
    """
    return rows_of([read_run(path) for path in runs])


def _row(run: Run, label: str) -> Row:
    before, after = _ends(run.series("entropy/exact")[1])
    kept = 100 * after / before if before and after is not None else None
    target = run.series("control/target")[1]
    seconds = run.series("time/iteration")[1]
    first, last = _ends(run.series("reward/mean")[1])
    split = run.evaluation[0].get("split") if run.evaluation else None
    of_split = [e for e in run.evaluation if e.get("split") == split]
    start = next((e for e in of_split if e["iteration"] == 0), {})
    end = next((e for e in reversed(of_split) if e["iteration"] > 0), {})
    k = number((end or start).get("k"))
    return Row(
        label=label,
        run=run.path,
        iterations=run.done,
        planned=run.planned,
        entropy_before=before,
        entropy_after=after,
        entropy_kept=kept,
        target=target[-1] if target else None,
        split=None if split is None else str(split),
        k=None if k is None else int(k),
        avg_before=number(start.get("avg@k")),
        avg_after=number(end.get("avg@k")),
        pass_before=number(start.get("pass@k")),
        pass_after=number(end.get("pass@k")),
        distinct_before=number(start.get("distinct")),
        distinct_after=number(end.get("distinct")),
        evaluated=end.get("iteration"),
        reward_first=first,
        reward_last=last,
        seconds=sum(seconds) if seconds else None,
    )


def _ends(values: Sequence[float]) -> tuple[float | None, float | None]:
    return (values[0], values[-1]) if values else (None, None)


def pretty_environment(text: str) -> str:
    """environment.json indented by two; as it is where it is not JSON."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except json.JSONDecodeError:
        return text
