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
from ..logs.run import last_ones, read_run
from ..report import comparison_rows
from ..report.seeds import by_settings, common_name
from .figures import Figure, value

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
    configs: Mapping[str, TrainConfig], paths: Mapping[str, Path],
    groups: Mapping[str, str] | None = None, figures: Mapping[str, Figure] | None = None,
) -> list[Group]:  # fmt: skip
    """The groups of two finished runs or more that differ by their seed alone.

    Args:
        configs: settings by run name.
        paths: run directories, of those that are done.
        groups: what a study calls the settings of each; None compares the settings.
        figures: what to show of them, by the words for it; none for entropy and scores.
    """
    known = groups or {}
    settings = {
        name: {"of": known.get(name, dataclasses.asdict(configs[name]) | {"seed": 0, "output": ""})}
        for name in paths
    }
    return [
        Group(
            known.get(names[0], common_name(names)),
            tuple(names),
            _figures([paths[name] for name in names], figures or {}),
        )
        for names in by_settings(settings)
        if len(names) > 1
    ]


def _figures(paths: Sequence[Path], asked: Mapping[str, Figure]) -> dict[str, Interval]:
    """Of several runs, those that every run has."""
    columns = _asked(paths, asked) if asked else _usual(paths)
    known = {key: [v for v in values if v is not None] for key, values in columns.items()}
    return {key: interval(values) for key, values in known.items() if len(values) == len(paths)}


def _asked(
    paths: Sequence[Path], figures: Mapping[str, Figure]
) -> dict[str, Sequence[float | None]]:
    found: dict[str, list[float | None]] = {word: [] for word in figures}
    for path in paths:
        run = read_run(path)
        for word, figure in figures.items():
            found[word].append(value(run, figure))
    return dict(found)


def _usual(paths: Sequence[Path]) -> dict[str, Sequence[float | None]]:
    """Entropy of the second tenth of the iterations and of the end (one is noisy), final scores."""
    rows = comparison_rows(list(paths))
    early: list[float | None] = []  # None where no iteration has a finite entropy
    late: list[float | None] = []
    for path in paths:
        entropy = read_run(path).series("entropy/exact")[1]
        tenth = max(1, len(entropy) // 10)
        early.append(mean(some) if (some := entropy[tenth : 2 * tenth] or entropy) else None)
        late.append(mean(entropy[-last_ones(len(entropy)) :]) if entropy else None)
    return {
        "first": [row.entropy_before for row in rows],
        "early": early,
        "last": late,
        "avg@k": [row.avg_after for row in rows],
        "pass@k": [row.pass_after for row in rows],
        "distinct": [row.distinct_after for row in rows],
    }
