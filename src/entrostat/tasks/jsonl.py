"""Prompt/answer pairs from a JSONL or Parquet file, and graders by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..grading import GRADERS, check_answer, grade_here, is_total, make_grader
from ..workers import Call
from .base import Example
from .rows import column_names, columns_of, pick, read_file

_FIELDS = {"prompt": "prompt", "answer": "answer"}
_Row = TypeVar("_Row")


class Graded:
    """Base of tasks scored by a named grader, in worker processes if the grader is not total."""

    _grader: str
    _options: dict[str, Any]

    def score(self, completion: str, example: Example) -> float:
        return grade_here(self._grader, completion, example.answer, self._options)

    def remote(self, completion: str, example: Example) -> Call | None:
        if is_total(self._grader):
            return None
        arguments = (self._grader, completion, example.answer, self._options)
        return Call("entrostat.grading:grade_here", arguments)

    def remote_setup(self) -> Call:
        return Call("entrostat.grading:prepare", (self._grader, self._options))


class JsonlTask(Graded):
    """A JSONL file, {"prompt": ..., "answer": ...} per line in UTF-8; or a Parquet file.

    Args:
        path: the file.
        seed: unused; the run's seed shuffles.
        grader: "exact", "contains", "number", "math", ... (`entrostat.grading`), or
            MODULE:FUNCTION, your own function of (response, answer). Your own grader gets an answer
            that is a list or a table as JSON.
        test: share of the lines (the last ones) held out as split `test`. If that is less than one
            line, there is no such split, and nothing to evaluate on.
        max_new_tokens: most tokens of an answer.
        fields: the file's column names for `prompt` and `answer`: {"answer": "solution"}.
        grader_options: the grader's own settings: {"extract": "boxed"} for "math".
    """

    def __init__(
        self,
        path: str,
        seed: int = 0,
        grader: str = "exact",
        test: float = 0.1,
        max_new_tokens: int = 256,
        fields: Mapping[str, str] | None = None,
        grader_options: Mapping[str, Any] | None = None,
    ) -> None:
        whose = f"task {path!r}"
        self._settle(whose, grader, grader_options, test)
        columns = column_names(whose, _FIELDS, table(whose, "fields", fields))
        self.name = Path(path).stem
        self._max_new_tokens = max_new_tokens
        rows = read_file(path, columns.values())
        examples = [self._made(row, columns, f"{whose}: {where}") for where, row, _ in rows]
        if not examples:
            raise ValueError(f"{whose}: the data set is empty")
        self._rows: dict[str, list[Any]] = hold_out(examples, test)
        self.splits = tuple(self._rows)

    def _made(self, row: Any, columns: Mapping[str, str], where: str) -> Example:
        """Prompt of a row (text, or a conversation of one message), and its answer as text."""
        prompt, answer = (pick(row, columns[key]) for key in _FIELDS)
        match prompt:
            case [{"role": "user", "content": content}]:
                prompt = content
        if self._grader not in GRADERS and isinstance(answer, list | dict):
            answer = json.dumps(answer, ensure_ascii=False, default=str)
        if isinstance(answer, float) and answer.is_integer():
            answer = int(answer)  # 18.0 becomes 18
        for key, value, kind, what in (
            ("prompt", prompt, str, "a prompt (text)"),
            ("answer", answer, str | int | float, "an answer (text or number)"),
        ):
            if not isinstance(value, kind):
                named = "" if columns[key] == key else f" under {columns[key]!r}"
                raise ValueError(
                    f"{where} needs {what}{named}{columns_of(row)}. Name another column with "
                    f"--task.fields.{key}"
                )
        try:
            check_answer(self._grader, str(answer), self._options)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        return Example(prompt, str(answer))

    def _settle(self, whose: str, grader: Any, options: Any, test: Any) -> None:
        """Check and store the grader, its settings, and the held-out share."""
        if not isinstance(grader, str):
            raise ValueError(f"{whose}: grader is a name, got {grader!r}")
        if isinstance(test, bool | str) or not 0 <= test < 1:
            raise ValueError(f"{whose}: test must be in [0, 1), got {test!r}")
        self._grader, self._options = grader, dict(table(whose, "grader_options", options))
        try:
            make_grader(grader, self._options)
        except ValueError as error:
            raise ValueError(f"{whose}: {error}") from None

    @property
    def grader(self) -> str:
        return self._grader

    @property
    def grader_options(self) -> Mapping[str, Any]:
        return self._options

    def max_new_tokens(self, split: str) -> int:
        return self._max_new_tokens

    def size(self, split: str) -> int | None:
        return len(self._rows[split])

    def example(self, index: int, split: str) -> Example:
        return self._rows[split][index]


def table(whose: str, key: str, given: Any) -> Mapping[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"{whose}: {key} is a table, got {given!r}")
    return given or {}


def hold_out(rows: list[_Row], share: float) -> dict[str, list[_Row]]:
    """Split off the last rows as `test`, if the share is at least one row; the rest is `train`."""
    cut = len(rows) - int(len(rows) * share)
    return {"train": rows[:cut], "test": rows[cut:]} if cut < len(rows) else {"train": rows}
