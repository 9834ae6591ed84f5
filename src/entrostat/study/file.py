"""A study file: which runs it means, each checked before the first one starts.

TOML: `title`, `jobs`, a table `[base]` of settings that all runs share, `[[runs]]` tables each with
a `name` and what differs, `seeds` (every run with each of them) and a table `[grid]` of lists over
any setting (every run with each combination of their values). A file with a grid, or with seeds,
needs no `[[runs]]`.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from .._names import unknown
from ..config import TrainConfig, check_model, from_dict, load, merge
from ..tasks.trust import refuse_code

MOST = 1000  # runs: a grid grows fast
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_KEYS = ("title", "jobs", "seeds", "base", "grid", "runs")


@dataclass(frozen=True)
class Study:
    """What a study file says.

    Attributes:
        title: heading of the report.
        jobs: processes at once.
        runs: configurations by name, `output` still empty; seed after seed, so that every setting
            has its first run early.
    """

    title: str
    jobs: int
    runs: dict[str, TrainConfig]


def read_study(path: str | Path, trusted: bool = True) -> Study:
    """Read a study file and check what can be checked without loading torch.

    Args:
        path: the file.
        trusted: whether the code that it names (MODULE:NAME) may be imported.

    Raises:
        ValueError: an unknown key, a run without a name or with that of another, a bad setting,
            code that is not trusted; the message names the run and the setting.
    """
    where, data = f"study {str(path)!r}", load(path)
    if not {"runs", "grid", "seeds"} & data.keys() and any(
        key in TrainConfig.__dataclass_fields__ for key in data
    ):
        raise ValueError(
            f"{where} holds the settings of one run; use: entrostat train --config {path}"
        )
    for key in data:
        if key not in _KEYS:
            raise ValueError(f"{where}: {unknown('key', key, _KEYS)}")
    jobs = data.get("jobs", max(1, (os.cpu_count() or 1)))
    if type(jobs) is not int or jobs < 1:
        raise ValueError(f"{where}: jobs must be a whole number above 0, got {jobs!r}")
    base, seeds, axes = data.get("base", {}), _seeds(where, data), _axes(where, data)
    if not isinstance(base, Mapping):
        raise ValueError(f"{where}: base is a table of settings, got {base!r}")
    tables = _tables(where, data)
    count = len(tables) * (len(seeds) or 1) * prod(map(len, axes.values()))
    if count > MOST:
        raise ValueError(f"{where} means {count} runs, more than {MOST}; make the grid smaller")
    runs: dict[str, TrainConfig] = {}
    for seed, (name, table) in product(seeds or (None,), tables.items()):
        _refuse_twice(f"{where}, run {name!r}" if name else where, merge(base, table), table,
                      axes, seeds)  # fmt: skip
        for label, point in _points(axes):
            settings = merge(merge(base, table), point) | ({} if seed is None else {"seed": seed})
            parts = (name, label, "" if seed is None else str(seed))
            full = "-".join(filter(None, parts))
            if full in runs:
                raise ValueError(f"{where}: two runs are named {full!r}; give the runs other names")
            if not trusted:
                refuse_code(settings, f"{where}, run {full!r}")
            try:
                runs[full] = from_dict(settings)
            except ValueError as error:
                raise ValueError(f"{where}, run {full!r}: {error}") from None
    return Study(str(data.get("title", Path(path).stem)), jobs, runs)


def check_runs(study: Study, path: str | Path) -> None:
    """Check what else each run needs: its model, its task, its methods and their parameters.

    Args:
        study: what the file says; code that it names is imported (`tasks.trust`).
        path: the file, for the message.

    Raises:
        ValueError: names the run, and what is wrong.
    """
    seen: set[str] = set()
    for name, config in study.runs.items():
        try:
            _check(config, seen)
        except ValueError as error:
            raise ValueError(f"study {str(path)!r}, run {name!r}: {error}") from None


def _check(config: TrainConfig, seen: set[str]) -> None:
    """Check one run; `seen` has what was found good in others."""
    from ..objective import make_objective
    from ..tasks import make_task

    task: dict[str, Any] = {"seed": config.seed} | config.task
    chosen = (config.method, config.advantage, config.optim.aggregation, config.updates)
    for settings, check in (
        (config.model, lambda: check_model(config.model)),
        (config.task, lambda: make_task(**task)),
        (chosen, lambda: make_objective(
            config.method, advantage=config.advantage, aggregation=config.optim.aggregation,
            updates=config.updates,
        )),
    ):  # fmt: skip
        if repr(settings) not in seen:
            with warnings.catch_warnings(action="ignore"):  # the run says them itself
                check()
        seen.add(repr(settings))


def _seeds(where: str, data: Mapping[str, Any]) -> list[int]:
    seeds = data.get("seeds", [])
    whole = isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)
    if not whole or len(set(seeds)) < len(seeds) or ("seeds" in data and not seeds):
        raise ValueError(
            f"{where}: seeds must be a list of different whole numbers from 0, as [0, 1, 2], got "
            f"{data['seeds']!r}"
        )
    return seeds


def _tables(where: str, data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings by the name of each of [[runs]]; one without a name where there are none."""
    tables = data.get("runs", [])
    if not isinstance(tables, list) or not (tables or "grid" in data or "seeds" in data):
        raise ValueError(f"{where} has no [[runs]], no [grid] and no seeds")
    found: dict[str, dict[str, Any]] = {}
    for place, table in enumerate(tables, 1):
        settings = dict(table) if isinstance(table, Mapping) else {}
        name = settings.pop("name", None)
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in found:
            raise ValueError(
                f"{where}: run {place} needs a name of its own, of letters, digits and ._+-, got "
                f"{name!r}"
            )
        found[name] = settings
    return found or {"" if "grid" in data else "run": {}}


def _axes(where: str, data: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The grid's settings, dotted, and the values of each."""
    found: dict[str, list[Any]] = {}

    def collect(prefix: str, table: Any) -> None:
        if not isinstance(table, Mapping) or not table:
            raise ValueError(f"{where}: {prefix} is a table of lists, got {table!r}")
        for key, value in table.items():
            name = f"{prefix}.{key}"
            if isinstance(value, Mapping):
                collect(name, value)
            elif isinstance(value, list) and value:
                found[name.removeprefix("grid.")] = value
            else:
                raise ValueError(f"{where}: {name} is a list of the values to try, got {value!r}")

    if "grid" in data:
        collect("grid", data["grid"])
    return found


def _points(axes: Mapping[str, list[Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A label and the settings of each combination; one without either where there is no grid."""
    labels = [_labels(key, values) for key, values in axes.items()]
    for words, values in zip(product(*labels), product(*axes.values()), strict=True):
        settings: dict[str, Any] = {}
        for key, value in zip(axes, values, strict=True):
            *tables, last = key.split(".")
            place = settings
            for table in tables:
                place = place.setdefault(table, {})
            place[last] = value
        yield "-".join(words), settings


def _labels(key: str, values: Sequence[Any]) -> list[str]:
    """A word for each value of a setting: lr0.001, grpo; numbered where words would be equal."""
    last = key.rpartition(".")[2]
    words = [re.sub(r"[^A-Za-z0-9._+-]+", "_", _word(last, value)) for value in values]
    found = [word.lstrip("._+-") or last for word in words]
    return found if len(set(found)) == len(found) else [f"{last}{i + 1}" for i in range(len(found))]


def _word(last: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return str(value.get("name", last))
    if isinstance(value, list):
        return "+".join(_word("", member) for member in value)
    return f"{last}{str(value).lower()}"


def _refuse_twice(
    where: str, settings: Mapping[str, Any], own: Mapping[str, Any], axes: Mapping[str, Any],
    seeds: Sequence[int],
) -> None:  # fmt: skip
    """Refuse a setting that two places of the file decide."""
    if seeds and ("seed" in settings or "seed" in axes):
        raise ValueError(f"{where}: seed is set, and the study has seeds; give one of them")
    for key in axes:
        value: Any = own
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            raise ValueError(f"{where}: {key} is set, and the grid varies it; give one of them")
