"""Experiment trackers beside metrics.jsonl: W&B, trackio, TensorBoard, MLflow (`--log`).

They run in the training process, through their own libraries. A tracker that raises is dropped with
one warning; a tracker that hangs blocks the run. A dropped tracker gets the missed iterations when
the run is resumed. `services.py` has one class per tracker.

A run's directory has under `trackers/`: NAME.json (the tracker's id of the run, the last iteration
that it received), and the files of TensorBoard and of W&B.
"""

from __future__ import annotations

import importlib
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...config import TrainConfig
from ...errors import in_one_line
from ...logs.lines import JsonLines
from .services import (
    SERVICES,
    TITLES,
    Service,
    Started,
    check_installed,
    name_of,
    open_folder,
    read_seal,
    warn_of,
    write_seal,
)

_RAISED = (Exception, SystemExit)  # libraries raise SystemExit, too; not KeyboardInterrupt


class Trackers:
    """The trackers of a run; a no-op without trackers."""

    def __init__(self, config: TrainConfig, note: Callable[[str], None]) -> None:
        check_installed(config.log.to)
        self._config, self._note = config, note
        self._running: dict[str, Service] = {}
        self._folder = Path()

    def begin(self, path: Path, start: int, resume: bool) -> None:
        """Start or resume the trackers of a run directory, and send them missed iterations."""
        config = self._config
        for name in config.log.to:
            try:
                importlib.import_module(name)
            except _RAISED as error:
                raise ValueError(
                    f"log.to {name!r}: it cannot be imported ({in_one_line(error)[:300]}); "
                    f"pip install 'entrostat[{name}]'"
                ) from error
        self._folder = folder = open_folder(config, path, resume)
        settings = tomllib.loads(config.to_toml())
        for name in config.log.to:
            with self._dropped_where_it_raises(name):
                seal = read_seal(folder, name)
                told = Started(
                    folder.absolute(), config.log.project, name_of(config, path), settings,
                    seal["id"],
                )  # fmt: skip
                service = SERVICES[name](told)
                write_seal(folder, name, seal | {"id": service.id, "place": service.place})
                self._running[name] = service
                self._note(f"{TITLES[name]}: {service.place}")
        for iteration, figures in _logged(path, start):
            self.log(iteration, figures)

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for name, service in list(self._running.items()):
            with self._dropped_where_it_raises(name):
                service.finish(kind is None)
        self._running = {}

    def log(self, iteration: int, figures: Mapping[str, Any]) -> None:
        numbers = {
            key: value
            for key, value in figures.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and key != "iteration"
        }
        if not numbers:
            return
        for name, service in list(self._running.items()):
            with self._dropped_where_it_raises(name):
                seal = read_seal(self._folder, name)
                if iteration > seal["logged"]:
                    # before the metrics: a kill in between loses one iteration but repeats none
                    write_seal(self._folder, name, seal | {"logged": iteration})
                    service.log(iteration, numbers)

    def alert(self, words: str) -> None:
        for name, service in list(self._running.items()):
            with self._dropped_where_it_raises(name):
                service.alert(words)

    @contextmanager
    def _dropped_where_it_raises(self, name: str) -> Iterator[None]:
        try:
            yield
        except _RAISED as error:
            self._running.pop(name, None)
            warn_of(name, error, ", and a resumed run gives it what it missed")


def _logged(path: Path, last: int) -> list[tuple[int, dict[str, Any]]]:
    figures: dict[int, dict[str, Any]] = defaultdict(dict)
    for row in JsonLines(path / "metrics.jsonl").read():
        figures[row["iteration"]] |= row
    for row in JsonLines(path / "evaluation.jsonl").read():
        figures[row["iteration"]] |= evaluated([row])
    return sorted((i, found) for i, found in figures.items() if i <= last)


def evaluated(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Rows of evaluation.jsonl, one per set, as metrics: `eval/SET/avg@k`."""
    return {
        f"eval/{row.get('set', row['split'])}/{key}": value
        for row in rows
        for key, value in row.items()
        if key not in ("iteration", "prompts", "k") and isinstance(value, int | float)
    }
