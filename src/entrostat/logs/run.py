"""Read a run directory: settings, curves, evaluations, and notes on missing parts.

A run may be unfinished, its last line truncated, its rollouts never dumped: everything present is
used, and `Run.notes` lists the rest.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import extra
from .files import dump_files
from .lines import JsonLines, number, read_json

if TYPE_CHECKING:
    import pandas as pd

    from .rollouts import Rollouts

Lines = list[dict[str, Any]]

INDEX = "study.json"  # the index that a study writes beside its runs
MOST = 2**53  # iterations: a larger number is not a count
ENTROPIES = ("entropy/exact", "entropy/nll", "entropy/logged")  # the most exact first
# other metrics are also NaN in a healthy run, as a mean over zero tokens
DECISIVE = (*ENTROPIES, "reward/mean")


@dataclass(frozen=True)
class Problem:
    """A part of a file that could not be read and was left out; `line` counts from 1."""

    file: str
    line: int | None
    reason: str

    def __str__(self) -> str:
        place = "" if self.line is None else f":{self.line}"
        return f"{self.file}{place}: {self.reason}"


@dataclass(frozen=True)
class Run:
    """A run, read once: an entrostat run directory, or another trainer's log."""

    path: Path
    config: dict[str, Any]  # settings as nested tables; empty without a readable config.toml
    config_text: str  # config.toml as written
    environment_text: str  # environment.json as written
    metrics: Lines  # one object per iteration, at least one
    evaluation: Lines  # one object per evaluation and set; `split` is the set's name
    notes: tuple[str, ...]  # on missing or truncated parts, and on saturated controllers
    analysis: Lines = field(default_factory=list)  # one object per analysed iteration
    # iteration -> loader of its rollouts, which raises ValueError if they cannot be read
    dumps: Mapping[int, Callable[[], Rollouts]] = field(default_factory=dict)
    source: str = "entrostat"  # the trainer that wrote it
    entropy_is: str = "exact: the mean over tokens of the full next-token entropy"
    problems: tuple[Problem, ...] = ()  # what could not be read
    answers: Lines = field(default_factory=list)  # correct answers and counts by prompt and split
    best: dict[str, Any] | None = None  # the policy in `best/` (`best_of`)
    group: str | None = None  # the study's name for the run's settings
    # metric -> iteration from which it is NaN or infinite to the log's end
    broken: Mapping[str, int] = field(default_factory=dict)
    # another trainer's settings under its own names, as far as the log has them
    settings: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)  # the source's metric -> ours
    label: str | None = None  # the run's name, if its path holds other runs too

    @property
    def name(self) -> str:
        """Name of the directory, or the name that the source gives the run."""
        return self.label or called(self.path)

    @property
    def trainer(self) -> str:
        """The trainer that wrote the run, through whatever tracker it was read."""
        return self.source.split(" through ")[0]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for row in self.metrics for key in row))

    @property
    def methods(self) -> str | None:
        """Method names joined by "+"."""
        names = [table.get("name") for table in self.method_tables]
        return "+".join(map(str, names)) if names and all(names) else None

    @property
    def method_tables(self) -> list[dict[str, Any]]:
        """One table per method: its name and its settings."""
        methods = self.config.get("method")
        several = methods if isinstance(methods, list) else [methods]
        return [each if isinstance(each, dict) else {"name": each} for each in several]

    def setting(self, table: str, key: str) -> Any:
        """A setting of an entrostat run, such as `optim` and `lr`; None if unknown."""
        found = self.config.get(table)
        return found.get(key) if isinstance(found, dict) else None

    @property
    def task(self) -> str:
        task = self.config.get("task", "unknown task")
        return str(task.get("name", "unknown task") if isinstance(task, dict) else task)

    @property
    def done(self) -> int:
        return self.metrics[-1]["iteration"]

    @property
    def progress(self) -> str:
        return str(self.done) if self.planned is None else f"{self.done} of {self.planned}"

    @property
    def planned(self) -> int | None:
        planned = self.config.get("iterations")
        return planned if type(planned) is int and 0 < planned < MOST else None

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Iterations and values of one metric, from the lines where it is a finite number."""
        pairs = [(row["iteration"], number(row.get(key))) for row in self.metrics]
        kept = [(x, y) for x, y in pairs if y is not None]
        return [x for x, _ in kept], [y for _, y in kept]

    def keys(self, group: str) -> list[str]:
        """Names of the metrics of a group, such as `control`, in order of appearance."""
        return [key for key in self.names if key.startswith(f"{group}/")]

    def frame(self, of: str = "metrics") -> pd.DataFrame:
        """The run's numbers as a pandas frame.

        "metrics" has a row per iteration, the index. "evaluation" has a row per set and iteration,
        indexed by both (`split`, `iteration`).
        """
        if of not in ("metrics", "evaluation"):
            raise ValueError(f"Run.frame: of must be 'metrics' or 'evaluation', got {of!r}")
        index = ["iteration"] if of == "metrics" else ["split", "iteration"]
        lines = getattr(self, of)
        columns = list(dict.fromkeys([*index, *(key for line in lines for key in line)]))
        return pandas("Run.frame").DataFrame(lines, columns=columns).set_index(index)

    @property
    def coefficients(self) -> list[str]:
        """Metrics that are controller coefficients."""
        return [key for key in self.keys("control") if key != "control/target"]


def pandas(what: str) -> Any:
    """Import pandas, an optional dependency that `what` needs."""
    with extra("notebook", what):
        import pandas
    return pandas


def last_ones(n: int) -> int:
    """How many of n iterations count as a run's end: a fifteenth (10 of 150), at least one.

    One batch's value is noisy, so every end-of-run figure is the mean over these iterations.
    """
    return max(1, n // 15)


def paired(
    one: Mapping[int, float], other: Mapping[int, float], lag: int = 0
) -> list[tuple[float, float]]:
    """Pair two columns by iteration, `other` read `lag` iterations later, where both have a value.

    The first tenth is left out; the result is [] with fewer than four pairs.
    """
    begin = max(one, default=0) // 10
    pairs = [(one[i], other[i + lag]) for i in sorted(one) if i > begin and i + lag in other]
    return pairs if len(pairs) >= 4 else []


def moving(pairs: Sequence[tuple[float, float]]) -> bool:
    """Whether both columns have more than one value; a constant column has no correlation."""
    return bool(pairs) and all(len(set(side)) > 1 for side in zip(*pairs, strict=True))


def sets_of(run: Run) -> tuple[str, ...]:
    """The sets that a run was evaluated on, in log order."""
    return tuple(dict.fromkeys(str(row["split"]) for row in run.evaluation if "split" in row))


def held_out(sets: Iterable[Sequence[str]]) -> str:
    """The set by which runs are compared: "test" if any run has it, else the first that all share.

    Without a shared set it is the first of all; "" if nothing was evaluated. `sets` has each run's
    evaluation sets (`sets_of`).
    """
    some = [names for names in sets if names]
    every = list(dict.fromkeys(name for names in some for name in names))
    shared = [name for name in every if all(name in names for names in some)]
    return "test" if "test" in every else next(iter(shared or every), "")


def called(path: Path) -> str:
    """The last name of a path, also if the path ends in `.`; links are not resolved."""
    return Path(os.path.abspath(path)).name


def read_run(path: Path) -> Run:
    """Read a run directory; ValueError if metrics.jsonl has no whole line."""
    path = Path(path)
    if not (path / "metrics.jsonl").is_file():
        raise ValueError(f"{str(path)!r} holds no metrics.jsonl; name the directory of a run")
    notes: list[str] = []
    metrics = _lines(path / "metrics.jsonl", notes)
    if not metrics:
        raise ValueError(
            f"metrics.jsonl in {str(path)!r} holds no whole line; "
            "train at least one iteration first"
        )
    evaluation = _by_set(_lines(path / "evaluation.jsonl", notes))
    config_text = _text(path / "config.toml", notes)
    config: dict[str, Any] = {}
    try:
        config = tomllib.loads(config_text)
    except (ValueError, RecursionError) as error:  # integers of too many digits
        notes.append(f"config.toml is not TOML ({error}); the settings are unknown.")
    environment = _text(path / "environment.json", notes)
    run = Run(
        path, config, config_text, environment, metrics, evaluation, (),
        analysis=_lines(path / "analysis.jsonl", notes),
        dumps={i: partial(_rollouts, file) for i, file in dump_files(path / "rollouts").items()},
        answers=_by_set(_lines(path / "answers.jsonl", notes)), best=best_of(path / "best"),
        group=_group(path), broken=broken(metrics),
    )  # fmt: skip
    about: list[str] = []
    if run.planned is not None and run.done < run.planned:
        about.append(f"Unfinished: {run.done} of {run.planned} iterations are logged.")
    elif not (path / "final").is_dir():
        about.append("There is no final model: the run has not saved it, or it was removed.")
    if (first := metrics[0]["iteration"]) > 1:
        about.append(f'The log begins at iteration {first}; "start" means that one.')
    if not evaluation:
        about.append("No evaluation is logged.")
    about += [*broken_notes(run.broken), *saturated(path, metrics), *notes]
    return replace(run, notes=tuple(about))


def run_of(run: Path | Run) -> Run:
    return run if isinstance(run, Run) else read_run(run)


def broken(metrics: Lines) -> dict[str, int]:
    """Map each metric that ends as NaN or infinity to the iteration where that begins.

    A table has NaN in rows without the metric, such as an evaluation's. So a metric that is only
    NaN does not count, nor does a final run of NaN that is no longer than an earlier gap.
    """
    odd = dict.fromkeys(
        key
        for row in metrics
        for key, value in row.items()
        if isinstance(value, float) and not math.isfinite(value)
    )
    found: dict[str, int] = {}
    for key in odd:
        column = [(row["iteration"], v) for row in metrics if isinstance(v := row.get(key), float)]
        parts = [list(part) for _, part in groupby(column, lambda pair: math.isfinite(pair[1]))]
        *gaps, end = [part for part in parts if not math.isfinite(part[0][1])]
        logged = any(not math.isnan(v) for _, v in column)
        if end is parts[-1] and logged and len(end) > max(map(len, gaps), default=0):
            found[key] = end[0][0]
    return found


def broken_notes(found: Mapping[str, int]) -> list[str]:
    """A sentence for entropy and for reward if they are NaN or infinite at the end (`broken`)."""
    return [
        f"{key} is no finite number from iteration {found[key]} on: what is shown as its end is "
        "what it was before."
        for key in DECISIVE if key in found
    ]  # fmt: skip


def saturated(path: Path, metrics: Lines) -> list[str]:
    """A sentence for each controller that was at its limit at the end of the run (`limits`)."""
    if not any(key.startswith("control/") for key in metrics[-1]):
        return []
    from .limits import saturation  # imports torch, which a log without controllers does not need

    methods = read_json(path / "objective.json").get("methods")
    return saturation(metrics, methods) if isinstance(methods, list) else []


def _rollouts(path: Path) -> Rollouts:
    from .rollouts import load_rollouts  # imports torch, which a log of numbers does not need

    return load_rollouts(path)


def _text(path: Path, notes: list[str]) -> str:
    if not path.is_file():
        notes.append(f"There is no {path.name}.")
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def best_of(directory: Path) -> dict[str, Any] | None:
    """Read `best/entrostat.json` (`iteration`, `figure`, `value`, `row`); None if unreadable."""
    seal = read_json(directory / "entrostat.json")
    kinds = (("iteration", int), ("figure", str), ("value", float))
    known = all(type(seal.get(key)) is kind for key, kind in kinds)
    return seal if known and 0 <= seal["iteration"] < MOST else None


def _group(path: Path) -> str | None:
    try:
        study = read_json(Path(os.path.abspath(path)).parent / INDEX)
        return str(study["runs"][called(path)]["group"])
    except (LookupError, TypeError):
        return None


def _by_set(lines: Lines) -> Lines:
    """Set `split` of evaluation lines to the set's name, which distinguishes them.

    Two sets may share a split; a run without `[[eval]]` names its sets by split.
    """
    return [line | {"split": line["set"]} if "set" in line else line for line in lines]


def _lines(path: Path, notes: list[str]) -> Lines:
    if not path.is_file():
        return []
    # count before reading: an active run can only add whole lines
    found = path.read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\n")
    whole = list(takewhile(is_line, JsonLines(path).read()))
    left_out = sum(bool(line.strip()) for line in found) - len(whole)
    if left_out == 1:
        notes.append(f"The last line of {path.name} is cut short; it is left out.")
    elif left_out > 1:
        notes.append(
            f"Line {len(whole) + 1} of {path.name} is not a whole JSON object; it and what "
            f"follows ({left_out} lines) are left out."
        )
    return whole


def is_line(row: Any) -> bool:
    """Whether a value is a log line: an object with an iteration."""
    return isinstance(row, dict) and type(i := row.get("iteration")) is int and 0 <= i < MOST
