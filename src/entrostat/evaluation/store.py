"""The directory of an evaluation: its settings, a line per problem as it is answered, results.

`evaluation.json` binds the directory to what was asked of whom, so that responses of two settings
never mix. `responses/SET.jsonl` grows by a line per problem; a line that a kill cut short is
dropped, and its problem asked again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import RunStopped
from ..logs.files import atomic, make_directory
from ..logs.lines import JsonLines, read_json
from ..runs.run_directory import hold
from .sets import ProblemSet

RESULTS, SETTINGS = "results.json", "evaluation.json"


class Store:
    """Where one subject's evaluation is kept; held against a second process until closed.

    `threads` are those that it is computed with; 0 where that is the machine's own number.
    """

    def __init__(self, directory: Path, subject: Mapping[str, Any], threads: int = 0) -> None:
        self.path = directory
        self._lock = hold(directory, "another process is evaluating there")
        make_directory(directory / "responses")
        self._kept = read_json(directory / SETTINGS)
        before = self._kept.setdefault("subject", dict(subject))
        if before != dict(subject):
            self._lock.close()
            changed = [key for key in {*before, *subject} if before.get(key) != subject.get(key)]
            raise ValueError(
                f"output {str(directory)!r} holds responses of another model ("
                f"{', '.join(sorted(changed))} differs); choose another --output, or remove it"
            )
        self._kept["threads"] = threads

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()

    def begin(self, one: ProblemSet, settings: Mapping[str, Any]) -> Responses:
        known = self._kept.setdefault("sets", {})
        before, now = known.get(one.name), json.loads(json.dumps(settings))
        if before is not None and before != now:
            changed = [
                f"{key} is {now.get(key)!r}, was {before.get(key)!r}"
                for key in sorted({*before, *now})
                if before.get(key) != now.get(key)
            ]
            raise ValueError(
                f"output {str(self.path)!r} holds responses of {one.name} under other settings: "
                f"{', '.join(changed[:3])}; choose another --output"
            )
        known[one.name] = now
        self.write(SETTINGS, self._kept)
        return Responses(self.path / "responses" / one.file)

    def write(self, name: str, value: Any) -> None:
        try:
            with atomic(self.path / name) as part:
                text = json.dumps(value, indent=1, allow_nan=False)
                part.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise RunStopped(f"could not write {self.path / name}: {error.strerror}") from error

    def results(self) -> dict[str, Any]:
        return read_json(self.path / RESULTS)


def threads_of(directory: Path) -> int:
    """That an evaluation was computed with so far; 0 where there is none, or it did not choose."""
    found = read_json(directory / SETTINGS).get("threads")
    return found if type(found) is int and 0 <= found <= 1024 else 0


class Responses:
    def __init__(self, path: Path) -> None:
        self.path = path
        rows = JsonLines(path).read()
        self.lines = {row["problem"]: row for row in rows if type(row.get("problem")) is int}
        whole = "".join(map(_line, self.lines.values())).encode()
        if path.exists() and path.read_bytes() != whole:  # a line was cut short
            with atomic(path) as part:
                part.write_bytes(whole)

    def missing(self, problems: Iterable[int]) -> list[int]:
        return [i for i in problems if i not in self.lines]

    def add(self, lines: Sequence[dict[str, Any]]) -> None:
        """Keep problems that were answered; what was written before stays intact."""
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write("".join(map(_line, lines)))
        except OSError as error:
            raise RunStopped(
                f"could not write {self.path}: {error.strerror}; the same command goes on from "
                "what was written before"
            ) from error
        self.lines |= {line["problem"]: line for line in lines}

    def first(self, count: int) -> list[dict[str, Any]]:
        return [self.lines[i] for i in range(count) if i in self.lines]


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"
