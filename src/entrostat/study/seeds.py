"""Runs that differ by their seed alone, taken together: means with intervals.

The interval is Student's t at 95% over the seeds: mean +- t s / sqrt(n), s the unbiased standard
deviation. It speaks of the seeds of this job, not of other jobs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from ..config import TrainConfig
from ..logs.run import Run, held_out, last_ones, run_of, sets_of
from ..report import comparison_rows
from ..report.seeds import by_settings, common_name
from .figures import Figure, of_set, value

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over seeds.

    Attributes:
        mean: the mean.
        half: half the width of the 95% interval.
        n: seeds.
    """

    mean: float
    half: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.half:.2f}"


@dataclass(frozen=True)
class Group:
    """Runs of equal settings but for the seed.

    Attributes:
        name: what their names have in common.
        runs: their names.
        figures: figure -> interval, where every run has it.
    """

    name: str
    runs: tuple[str, ...]
    figures: Mapping[str, Interval]


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95% Student interval of two values or more.

    Raises:
        ValueError: fewer than two.
    """
    from scipy.stats import t

    n = len(values)
    if n < 2:
        raise ValueError(f"interval: needs two values or more, got {n}")
    half = float(t.ppf((1 + LEVEL) / 2, n - 1)) * stdev(values) / n**0.5
    return Interval(mean(values), half, n)


def spread(values: Sequence[float]) -> Interval | None:
    """`interval`; of one value an interval of no width, of none None."""
    if len(values) < 2:
        return Interval(values[0], 0.0, 1) if values else None
    return interval(values)


def group_by_seed(
    configs: Mapping[str, TrainConfig], runs: Mapping[str, Path | Run],
    groups: Mapping[str, str] | None = None, figures: Mapping[str, Figure] | None = None,
) -> list[Group]:  # fmt: skip
    """The groups of finished runs that differ by their seed alone.

    Of one run there is a group only where figures are asked for.

    Args:
        configs: settings by run name.
        runs: directories of those that are done, or what was read of them, by run name.
        groups: what a study calls the settings of each; None compares the settings.
        figures: what to show of them, by the words for it; none for entropy and scores.
    """
    known = groups or {}
    settings = {
        name: {"of": known.get(name, dataclasses.asdict(configs[name]) | {"seed": 0, "output": ""})}
        for name in runs
    }
    read = {name: run_of(run) for name, run in runs.items()}
    found = _asked(read, figures) if figures else _usual(read)
    return [
        Group(known.get(names[0], common_name(names)), tuple(names), _figures(names, found))
        for names in by_settings(settings)
        if len(names) > 1 or figures
    ]


def _figures(
    names: Sequence[str], found: Mapping[str, Mapping[str, float | None]]
) -> dict[str, Interval]:
    columns = {word: [values[name] for name in names] for word, values in found.items()}
    known = {word: [v for v in values if v is not None] for word, values in columns.items()}
    intervals = {
        word: spread(values) for word, values in known.items() if len(values) == len(names)
    }
    return {word: some for word, some in intervals.items() if some is not None}


def _asked(
    runs: Mapping[str, Run], figures: Mapping[str, Figure]
) -> dict[str, dict[str, float | None]]:
    """By word and run; those of the set * of the one that all runs are compared by."""
    compared = held_out(sets_of(run) for run in runs.values())
    return {
        word: {name: value(run, of_set(figure, compared)) for name, run in runs.items()}
        for word, figure in figures.items()
    }


def _usual(runs: Mapping[str, Run]) -> dict[str, dict[str, float | None]]:
    """Entropy of the second tenth of the iterations and of the end (one is noisy), final scores."""
    rows = dict(zip(runs, comparison_rows(list(runs.values())), strict=True))
    early: dict[str, float | None] = {}  # None where no iteration has a finite entropy
    late: dict[str, float | None] = {}
    for name, run in runs.items():
        entropy = run.series("entropy/exact")[1]
        tenth = max(1, len(entropy) // 10)
        early[name] = mean(some) if (some := entropy[tenth : 2 * tenth] or entropy) else None
        late[name] = mean(entropy[-last_ones(len(entropy)) :]) if entropy else None
    return {
        "first": {name: row.entropy_before for name, row in rows.items()},
        "early": early,
        "last": late,
        "avg@k": {name: row.avg_after for name, row in rows.items()},
        "pass@k": {name: row.pass_after for name, row in rows.items()},
        "distinct": {name: row.distinct_after for name, row in rows.items()},
    }
