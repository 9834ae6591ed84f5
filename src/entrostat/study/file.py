"""Read a study file (docs/studies.md) and check all of its runs before the first one starts."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Literal

from .._processors import processors
from ..config import TrainConfig, check_model, flat, from_dict, load, merge
from ..tasks.trust import refuse_code, refuse_unsafe
from .content_hash import tasks_of
from .figures import Figure, read_figure, refuse_keys

MOST = 1000  # maximum number of runs: a grid grows fast
START = ("final", "best")
RESERVED = (
    "report.html", "claims.html", "study.html", "study.json", "results.json", "method_pages",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_KEYS = ("title", "jobs", "seeds", "base", "grid", "runs", "quick", "figures")


def axes_of(where: str, data: Mapping[str, Any]) -> dict[str, list[Any]]:
    if "grid" not in data:
        return {}
    found: dict[str, list[Any]] = {}
    grid = data["grid"]
    if not isinstance(grid, Mapping) or not dict(flat(grid)):
        raise ValueError(f"{where}: grid is a table of lists, got {grid!r}")
    for key, values in flat(grid):
        if not isinstance(values, list) or not values:
            raise ValueError(f"{where}: grid.{key} is a list of the values to try, got {values!r}")
        if key in found:
            raise ValueError(f"{where}: two lists of [grid] vary {key}")
        found[key] = values
    for key, other in product(found, found):
        if other.startswith(f"{key}."):
            raise ValueError(f"{where}: grid.{key} and grid.{other} vary the same setting")
    return found


def points_of(axes: Mapping[str, list[Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a label and the settings of each combination; without a grid, one empty pair."""
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


def refuse_axes(where: str, table: Mapping[str, Any], axes: Mapping[str, Any], of: str) -> None:
    """Raise if a run's own table, or [quick] (`of`), sets a setting that the grid varies."""
    for key in axes:
        value: Any = table
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            raise ValueError(f"{where}: {of}{key} is set, and the grid varies it; give one of them")


def _labels(key: str, values: Sequence[Any]) -> list[str]:
    """A word for each value of a setting: lr0.001, grpo; numbered if words would be equal."""
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


@dataclass(frozen=True)
class Origin:
    group: str  # the name without the seed: runs of equal settings
    # the run whose policy it starts from; None to start from `model`
    after: str | None = None
    start: Literal["final", "best"] = "final"  # that run's final or best policy


@dataclass(frozen=True)
class Study:
    title: str
    jobs: int  # parallel processes
    # configurations by name, `output` still empty; ordered by seed, so that every setting has its
    # first run early
    runs: dict[str, TrainConfig]
    origins: dict[str, Origin] = field(default_factory=dict)
    # columns that its tables add to the usual ones, or replace
    figures: dict[str, Figure] = field(default_factory=dict)


def read_study(path: str | Path, trusted: bool = True, quick: bool = False) -> Study:
    """Read a study file, with all checks that do not need torch."""
    where, data = f"study {str(path)!r}", load(path)
    if not {"runs", "grid", "seeds"} & data.keys() and any(
        key in TrainConfig.__dataclass_fields__ for key in data
    ):
        raise ValueError(
            f"{where} holds the settings of one run; use: entrostat train --config {path}"
        )
    refuse_keys(where, data, _KEYS)
    jobs = data.get("jobs", processors())
    if type(jobs) is not int or jobs < 1:
        raise ValueError(f"{where}: jobs must be a whole number above 0, got {jobs!r}")
    base, over, seeds = _table(where, data, "base"), {}, _seeds(where, data)
    if quick:
        over = _table(where, data, "quick")
        seeds = _seeds(f"{where}, quick", over) or seeds[:1]
        over.pop("seeds", None)
    axes = axes_of(where, data)
    refuse_axes(where, over, axes, "quick.")
    tables = _tables(where, data)
    count = len(tables) * (len(seeds) or 1) * prod(map(len, axes.values()))
    if count > MOST:
        raise ValueError(f"{where} means {count} runs, more than {MOST}; make the grid smaller")
    runs: dict[str, TrainConfig] = {}
    origins: dict[str, Origin] = {}
    for seed, (name, (own, begins)) in product(seeds or (None,), tables.items()):
        settings = merge(merge(base, own), over)
        here = f"{where}, run {name!r}" if name else where
        if seeds and ("seed" in settings or "seed" in axes):
            raise ValueError(f"{here}: seed is set, and the study has seeds; give one of them")
        refuse_axes(here, own, axes, "")
        for label, point in points_of(axes):
            full = _join(name, label, seed)
            if full in runs:
                raise ValueError(f"{where}: two runs are named {full!r}; give the runs other names")
            chosen = merge(settings, point) | ({} if seed is None else {"seed": seed})
            if not trusted:
                refuse_unsafe(chosen, f"{where}, run {full!r}", flag="--trust-code")
                refuse_code(chosen, f"{where}, run {full!r}")
            try:
                runs[full] = from_dict(chosen)
            except ValueError as error:
                raise ValueError(f"{where}, run {full!r}: {error}") from None
            after = None if begins.after is None else _join(begins.after, label, seed)
            origins[full] = Origin(_join(name, label) or full, after, begins.start)
            _check_start(f"{where}, run {full!r}", runs, origins[full], own)
    figures = {
        word: read_figure(f"{where}, figures.{word}", one)
        for word, one in _table(where, data, "figures").items()
    }
    return Study(str(data.get("title", Path(path).stem)), jobs, runs, origins, figures)


def with_seeds(study: Study, seeds: Sequence[int], name: str) -> Study:
    """Select the runs of some seeds, and the runs of other seeds that they start from."""
    wanted = {run for run, config in study.runs.items() if config.seed in seeds}
    if not wanted:
        own = sorted({config.seed for config in study.runs.values()})
        raise ValueError(
            f"study {name!r} has the seeds {', '.join(map(str, own))}, none of "
            f"{', '.join(map(str, seeds))}"
        )
    for run in reversed(study.runs):  # a run comes after the run that it starts from
        before = study.origins[run].after
        if run in wanted and before is not None:
            wanted.add(before)
    runs = {run: config for run, config in study.runs.items() if run in wanted}
    return replace(study, runs=runs, origins={run: study.origins[run] for run in runs})


def check_runs(study: Study, path: str | Path, models: bool = True) -> None:
    """Check each run's model, task, methods and their parameters.

    Code that the settings name is imported (`tasks.trust`). `models` also checks the models, as a
    training does. A ValueError names the run and the error.
    """
    seen: set[str] = set()
    for name, config in study.runs.items():
        try:
            _check(config, seen, models)
        except ValueError as error:
            raise ValueError(f"study {str(path)!r}, run {name!r}: {error}") from None


def _check(config: TrainConfig, seen: set[str], models: bool) -> None:
    from ..core.objective import make_objective
    from ..tasks import make_task

    def once(settings: object, check: Callable[[], object]) -> None:
        if repr(settings) not in seen:
            with warnings.catch_warnings(action="ignore"):  # the run itself gives these warnings
                check()
        seen.add(repr(settings))

    if models:
        once(config.model, partial(check_model, config.model))
    for task in tasks_of(config):
        once(task, partial(make_task, **{"seed": config.seed, **task}))
    chosen = {
        "advantage": config.advantage, "aggregation": config.optim.aggregation,
        "updates": config.updates,
    }  # fmt: skip
    once((config.method, chosen), partial(make_objective, config.method, **chosen))


def _join(*parts: object) -> str:
    return "-".join(str(part) for part in parts if part not in ("", None))


def _check_start(
    where: str, runs: Mapping[str, TrainConfig], origin: Origin, own: Mapping[str, Any]
) -> None:
    if origin.after is None:
        return
    if "model" in own:
        raise ValueError(f"{where}: it has both a model and `after`; give one of them")
    if runs[origin.after].host == "verl":
        raise ValueError(
            f"{where}: after {origin.after!r}, which trains in veRL, whose checkpoints are no "
            "directories of models"
        )
    if origin.start == "best" and not runs[origin.after].save.best:
        raise ValueError(
            f"{where}: start is 'best', and {origin.after!r} keeps no best policy; give it "
            "save.best, 'test/avg@k' say"
        )


def _seeds(where: str, data: Mapping[str, Any]) -> list[int]:
    seeds = data.get("seeds", [])
    whole = isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)
    if not whole or len(set(seeds)) < len(seeds) or ("seeds" in data and not seeds):
        raise ValueError(
            f"{where}: seeds must be a list of different whole numbers from 0, as [0, 1, 2], got "
            f"{data['seeds']!r}"
        )
    return seeds


def _table(where: str, data: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = data.get(key, {})
    if not isinstance(table, Mapping):
        raise ValueError(f"{where}: {key} is a table of settings, got {table!r}")
    return dict(table)


def _tables(where: str, data: Mapping[str, Any]) -> dict[str, tuple[dict[str, Any], Origin]]:
    """Map names of [[runs]] to their settings and the run that they start from."""
    tables = data.get("runs", [])
    if not isinstance(tables, list) or not (tables or "grid" in data or "seeds" in data):
        raise ValueError(f"{where} has no [[runs]], no [grid] and no seeds")
    found: dict[str, tuple[dict[str, Any], Origin]] = {}
    for place, table in enumerate(tables, 1):
        settings = dict(table) if isinstance(table, Mapping) else {}
        name = settings.pop("name", None)
        if name in RESERVED:
            raise ValueError(f"{where}: run {place} is {name!r}, which a study writes itself")
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in found:
            raise ValueError(
                f"{where}: run {place} needs a name of its own, of letters, digits and ._+-, got "
                f"{name!r}"
            )
        after, start = settings.pop("after", None), settings.pop("start", "final")
        if after is not None and not (isinstance(after, str) and after in found):
            raise ValueError(
                f"{where}, run {name!r}: after {after!r}, which is no run above it; those are "
                f"{', '.join(found) or 'none'}"
            )
        if start not in START or (after is None and start != "final"):
            raise ValueError(
                f"{where}, run {name!r}: start is 'final' or 'best', of the run that `after` "
                f"names; got {start!r}{'' if after else ' and no `after`'}"
            )
        found[name] = settings, Origin(name, after, start)
    return found or {"" if "grid" in data else "run": ({}, Origin(""))}
