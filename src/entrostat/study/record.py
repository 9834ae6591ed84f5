"""A record of trainings that are done: their numbers without their weights, one small file each.

    RECORD/ADDRESS.json.gz    settings, machine, metrics, evaluations, analyses

A study that is given a record takes from it what is there and trains the rest: on another machine,
by another person, in several sittings. Numbers have 5 significant digits; rollouts, answers,
weights, what was printed and all clocks but one are not kept, nor the paths of a machine.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import from_dict, load
from ..logs.files import atomic, make_directory
from ..logs.lines import JsonLines
from ..logs.run import is_line
from .execute import RECORDED, is_done
from .plan import Plan, Training

FORMAT = 1
DIGITS = 5
MOST = 2**28  # bytes of one file, unpacked
_MACHINE = (
    "versions", "python", "platform", "processors", "processor", "instructions", "gpus", "git",
)  # fmt: skip
_WEIGHTS = ("final", "best", "checkpoints")
_TEXTS = ("config.toml", "objective.json", "environment.json")
_LOGS = ("metrics.jsonl", "evaluation.jsonl", "analysis.jsonl")


def save_record(training: Training, record: Path) -> None:
    """Write a training that is done into a record; one that is there stays.

    Raises:
        OSError: the disk is full or refuses.
    """
    place = record / f"{training.address}.json.gz"
    if place.exists():
        return
    path = training.path
    data = {
        "format": FORMAT,
        "address": training.address,
        "iterations": training.config.iterations,
        "texts": {
            "config.toml": _settings(training),
            "objective.json": _text(path / "objective.json"),
            "environment.json": _machine(path / "environment.json"),
        },
        "logs": {name: _columns(list(JsonLines(path / name).read())) for name in _LOGS},
    }
    text = json.dumps(data, separators=(",", ":")).encode()
    with atomic(place) as part:
        part.write_bytes(gzip.compress(text, 9, mtime=0))


def recorded(plan: Plan, record: Path) -> set[str]:
    """The addresses of a plan that a record has."""
    return {a for a in plan.trainings if (record / f"{a}.json.gz").is_file()}


def restore(plan: Plan, record: Path) -> set[str]:
    """Put what a record has of a plan in its places, as runs that are done; returns the addresses.

    A run made by hand stays as it is, also where it is not finished.

    A run whose policy another one is to begin with, which is not done itself, has to be trained: a
    record has no weights.

    Raises:
        ValueError: a file of the record cannot be read; names it.
    """
    have = {a for a in recorded(plan, record) if not _by_hand(plan.trainings[a])}
    done = have | {a for a, each in plan.trainings.items() if is_done(each)}
    missing: set[str] = set()  # recorded, but their weights are wanted
    for address, each in reversed(plan.trainings.items()):  # those that build on others first
        if each.after is not None and (address not in done or address in missing):
            missing |= {each.after} & (have - _trained(plan))
    restored = set()
    for address in have - _trained(plan):
        path = plan.trainings[address].path
        there = (path / RECORDED).exists()
        if address in missing:
            if there:
                shutil.rmtree(path.resolve())
                make_directory(path.resolve())
        elif not there:
            _put(path, _load(record / f"{address}.json.gz", address))
        restored |= {address} - missing
    return restored


def strip(training: Training) -> None:
    """Take the weights away from a training whose numbers are on record.

    Its directory is then as `restore` makes one, with its page, its answers and its rollouts. A run
    made by hand, which a study only took for its own, keeps all.
    """
    path = training.path.resolve()
    if _by_hand(training):
        return
    with atomic(path / RECORDED) as part:
        part.write_text(json.dumps({"iterations": training.config.iterations}), encoding="utf-8")
    for name in _WEIGHTS:
        shutil.rmtree(path / name, ignore_errors=True)


def _by_hand(training: Training) -> bool:
    """Whether a run lies elsewhere than in the store: a study only took it for its own."""
    return training.path.resolve().parent != training.store.resolve()


def _trained(plan: Plan) -> set[str]:
    """Those whose weights are there."""
    return {
        address for address, each in plan.trainings.items()
        if is_done(each) and not (each.path / RECORDED).exists()
    }  # fmt: skip


def _load(file: Path, address: str) -> dict[str, Any]:
    try:
        with gzip.open(file) as stream:
            data = json.loads(stream.read(MOST))
        if data["format"] != FORMAT or data["address"] != address:
            raise ValueError("it is of another format or training")
        for name in _LOGS:
            _rows(data["logs"][name])
        if not all(isinstance(data["texts"][name], str) for name in _TEXTS):
            raise ValueError("its texts are none")
        metrics = _rows(data["logs"][_LOGS[0]])
        if type(data["iterations"]) is not int or not metrics or not all(map(is_line, metrics)):
            raise ValueError("it has no metrics of iterations")
        return data
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError,
            RecursionError) as error:  # fmt: skip
        raise ValueError(f"record {str(file)!r} cannot be read: {error}") from None


def _put(path: Path, data: Mapping[str, Any]) -> None:
    """Write a training's numbers as a run's directory; the mark that it is whole comes last."""
    for name in _LOGS:
        rows = _rows(data["logs"][name])
        if rows:
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (path / name).write_text(text, encoding="utf-8")
    for name in _TEXTS:
        (path / name).write_text(str(data["texts"][name]), encoding="utf-8")
    with atomic(path / RECORDED) as part:
        part.write_text(json.dumps({"iterations": data["iterations"]}), encoding="utf-8")


def _settings(training: Training) -> str:
    """What a run resolved, without the paths of a machine."""
    config = from_dict(load(training.path / "config.toml"))
    config.output = ""
    if training.after is not None:
        config.model = f"{training.after}/{training.start}"
    kept = {"prompt", "sampling"}  # of the model's text: a stop may be a slash
    plain = dataclasses.asdict(config)
    plain = {key: value if key in kept else _without_paths(value) for key, value in plain.items()}
    return from_dict(plain).to_toml()


def _without_paths(value: Any) -> Any:
    """Settings in which an absolute path is its end, behind KIND: as well, at any depth."""
    if isinstance(value, Mapping):
        return {key: _without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(inner) for inner in value]
    if not isinstance(value, str):
        return value
    kind, mark, place = value.rpartition(":")
    return kind + mark + (Path(place).name if Path(place).is_absolute() else place)


def _machine(path: Path) -> str:
    """What environment.json says of the machine and the versions."""
    try:
        found = json.loads(_text(path))
        return json.dumps({key: found[key] for key in _MACHINE if key in found})
    except (ValueError, TypeError, RecursionError):
        return "{}"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows by key, in the order in which keys appear; null where a row has none."""
    keys = dict.fromkeys(key for row in rows for key in row if _told(key))
    return {key: [_short(row.get(key)) for row in rows] for key in keys}


def _told(key: str) -> bool:
    """Whether a record keeps a column: not how long each step of an iteration took."""
    return not key.startswith("time/") or key == "time/iteration"


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The rows again, without what was null."""
    found = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    return [{key: value for key, value in row.items() if value is not None} for row in found]


def _short(value: Any) -> Any:
    """A number of few digits; the same within lists and tables."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [_short(each) for each in value]
    return {k: _short(v) for k, v in value.items()} if isinstance(value, dict) else value
