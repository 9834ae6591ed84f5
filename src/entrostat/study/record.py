"""A record of finished trainings: their numbers without their weights.

    RECORD/EXPERIMENT.jsonl.xz    a line per training: settings, machine, metrics, evaluations,
                                  analyses

Each call that adds a training appends an xz stream to the file, so files of one experiment can be
joined with `cat`; of two lines with one address the first counts. Numbers have 5 significant
digits, times 3. Left out are rollouts, answers, weights, output, times except an iteration's, the
token cloud of an analysis, and the machine's paths.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import lzma
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config import from_dict, load
from ..logs.files import atomic, make_directory
from ..logs.lines import JsonLines, read_json
from ..logs.run import is_line
from .execute import RECORDED, is_done
from .plan import Plan, Training

FORMAT = 2
DIGITS, CLOCK = 5, 3
MOST = 2**30  # maximum unpacked bytes of one file
SUFFIX = ".jsonl.xz"
_ADDRESS = re.compile(rb'\{"address":"([0-9a-f]+)"')  # beginning of a line
_MACHINE = (
    "versions", "python", "platform", "processors", "processor", "instructions", "gpus", "git",
)  # fmt: skip
_WEIGHTS = ("final", "best", "checkpoints")
_TEXTS = ("config.toml", "objective.json", "environment.json")
_CLOCK = "time/iteration"
_LOGS = ("metrics.jsonl", "evaluation.jsonl", "analysis.jsonl")


def save_record(training: Training, record: Path) -> None:
    """Add a finished training unless it is on record; an OSError leaves the file unchanged."""
    path, about = training.path, read_json(training.path / "environment.json")
    data = {
        "address": training.address,
        "format": FORMAT,
        "iterations": training.config.iterations,
        "texts": {
            "config.toml": _settings(training),
            "objective.json": _text(path / "objective.json"),
            "environment.json": json.dumps({k: about[k] for k in _MACHINE if k in about}),
        },
        "logs": {name: _columns(list(JsonLines(path / name).read())) for name in _LOGS},
    }
    line = json.dumps(data, separators=(",", ":")).encode() + b"\n"
    place = record / f"{training.experiment}{SUFFIX}"
    with _alone(record):
        if training.address in _lines(record):
            return
        before = place.read_bytes() if place.exists() else b""
        with atomic(place) as part:
            part.write_bytes(before + lzma.compress(line, preset=9))


def recorded(plan: Plan, record: Path) -> set[str]:
    return set(plan.trainings) & _lines(record).keys()


@contextmanager
def _alone(record: Path) -> Iterator[None]:
    make_directory(record)
    directory = os.open(record, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _lines(record: Path) -> dict[str, tuple[Path, bytes]]:
    found: dict[str, tuple[Path, bytes]] = {}
    for file in sorted(record.glob(f"*{SUFFIX}")):
        try:
            with lzma.open(file) as stream:
                text = stream.read(MOST)
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise _damaged(file, error) from None
        for line in text.splitlines():
            begin = _ADDRESS.match(line)
            if begin is None:
                raise _damaged(file, "a line is no training's")
            found.setdefault(begin[1].decode(), (file, line))
    return found


def _damaged(file: Path, why: object) -> ValueError:
    return ValueError(
        f"record {str(file)!r} cannot be read: {why}. Put it back from a copy, or move it away"
    )


def restore(plan: Plan, record: Path) -> set[str]:
    """Restore a plan's recorded runs as finished run directories; return their addresses.

    Runs made by hand stay as they are, finished or not.

    If an unfinished training starts from the policy of a recorded run, that run must be trained: a
    record has no weights.
    """
    lines = _lines(record)
    have = {a for a, each in plan.trainings.items() if a in lines and not _by_hand(each)}
    there = {a for a, each in plan.trainings.items() if (each.path / RECORDED).exists()}
    done = {a for a, each in plan.trainings.items() if is_done(each)}
    have -= done - there  # runs that were trained here stay
    missing: set[str] = set()  # recorded, but their weights are needed
    for address, each in reversed(plan.trainings.items()):  # dependent trainings first
        if each.after in have and (address not in have | done or address in missing):
            missing.add(each.after)
    for address in have:
        path = plan.trainings[address].path
        if address in missing & there:
            shutil.rmtree(path.resolve())
            make_directory(path.resolve())
        elif address not in missing | there:
            _put(path, _load(*lines[address]))
    return have - missing


def strip(training: Training) -> None:
    """Remove the weights of a recorded training; a run made by hand keeps all."""
    if not _by_hand(training):
        path = training.path.resolve()
        _mark(path, training.config.iterations)
        for name in _WEIGHTS:
            shutil.rmtree(path / name, ignore_errors=True)


def _by_hand(training: Training) -> bool:
    """Whether a run lies outside the store, and the study only adopted it."""
    return training.path.resolve().parent != training.store.resolve()


def _load(file: Path, line: bytes) -> dict[str, Any]:
    """Parse a training's numbers and check the fields that readers of runs need."""
    try:
        data = json.loads(line)
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']}, not {FORMAT}")
        data["logs"] = {name: _rows(data["logs"][name]) for name in _LOGS}
        if not all(isinstance(data["texts"][name], str) for name in _TEXTS):
            raise ValueError("its texts are none")
        metrics = data["logs"]["metrics.jsonl"]
        if type(data["iterations"]) is not int or not metrics or not all(map(is_line, metrics)):
            raise ValueError("it has no metrics of iterations")
        return data
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(file, error) from None


def _put(path: Path, data: Mapping[str, Any]) -> None:
    """Write a training's numbers as a run directory; the mark of completeness comes last."""
    logs = {
        name: "".join(json.dumps(row) + "\n" for row in rows)
        for name, rows in data["logs"].items()
        if rows
    }
    for name, text in (logs | {name: data["texts"][name] for name in _TEXTS}).items():
        (path / name).write_text(text, encoding="utf-8")
    _mark(path, data["iterations"])


def _mark(path: Path, iterations: int) -> None:
    with atomic(path / RECORDED) as part:
        part.write_text(json.dumps({"iterations": iterations}), encoding="utf-8")


def _settings(training: Training) -> str:
    config = from_dict(load(training.path / "config.toml"))
    config.output = ""
    if training.after is not None:
        config.model = f"{training.after}/{training.start}"
    kept = {"prompt", "sampling"}  # text for the model: a stop string may be a slash
    plain = dataclasses.asdict(config)
    plain = {key: value if key in kept else _without_paths(value) for key, value in plain.items()}
    return from_dict(plain).to_toml()


def _without_paths(value: Any) -> Any:
    """Shorten absolute paths to their last part, also after KIND:, at any depth."""
    if isinstance(value, Mapping):
        return {key: _without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(inner) for inner in value]
    if not isinstance(value, str):
        return value
    kind, mark, place = value.rpartition(":")
    return kind + mark + (Path(place).name if Path(place).is_absolute() else place)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Convert rows to columns, in order of first appearance; null for missing values."""
    keys = dict.fromkeys(
        k for row in rows for k in row if k == _CLOCK or not k.startswith(("time/", "cloud"))
    )
    digits = {key: CLOCK if key == _CLOCK else DIGITS for key in keys}
    return {key: [_short(row.get(key), digits[key]) for row in rows] for key in keys}


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    found = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return [{key: value for key, value in row.items() if value is not None} for row in found]


def _short(value: Any, digits: int) -> Any:
    """Round numbers to a few significant digits, also within lists and tables."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, list):
        return [_short(each, digits) for each in value]
    return {k: _short(v, digits) for k, v in value.items()} if isinstance(value, dict) else value
