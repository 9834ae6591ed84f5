"""Data sets by name, and files of their kinds: `gsm8k`, `aime24`, `math:FILE`, `code:FILE`.

A set is searched for in the task's `path`, in entrostat's cache, in a package that ships it, and
last with the library `datasets`, in its cache and on the Hugging Face hub (`sources`). Rows that
cannot be graded are left out and counted.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from .. import sandbox
from .._names import unknown
from ..grading import check_answer, grade_here
from ..sandbox import unit_tests
from ..sandbox.running import at_once
from .base import Example
from .convert import LeftOut, Problem
from .jsonl import JsonlTask, hold_out, table
from .rows import ABSENT, Located, column_names, columns_of, pick
from .sets import KINDS, SETS, TEMPLATES, DataSet, data_set
from .sources import Source, sources

_LABEL = 48  # characters of a problem's end that label it in figures
# rows of a code set, spread over it, on which wrong programs are tried
ROWS = 64
_WRONG = """
def _wrong(*arguments, **named): return "of a wrong program"
class _Wrong:
    def __init__(self, *arguments, **named): pass
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return _wrong
"""


class DataTask(JsonlTask):
    """A data set of the table (`sets`), or a file of one of its kinds.

    Args:
        name: the set's name, or KIND:FILE.
        seed: unused; the run's seed shuffles.
        path: a JSONL or Parquet file, or a directory of such files, to use for the set; or a table
            with one for each split.
        fields: columns with other names: {"answer": "solution"}. A dot descends into a table.
        template: text around a problem: "boxed", "dapo", "code", "plain", or a text that contains
            {problem}.
        grader: a grader to use instead of the set's.
        grader_options: the grader's own settings.
        without: sets, or KIND:FILE, whose problems are left out.
        test: share of the rows (the last ones) held out as split `test`, if the data has only a
            split `train`.
        max_new_tokens: most tokens of an answer.
        train_on_test: allow training on a test set.

    Attributes:
        left_out: number of rows left out, by reason.
        trainable: whether the first split may be trained on.
    """

    def __init__(
        self,
        name: str,
        seed: int = 0,
        path: str | Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
        template: str | None = None,
        grader: str | None = None,
        grader_options: Mapping[str, Any] | None = None,
        without: Iterable[str] | None = None,
        test: float | None = None,
        max_new_tokens: int | None = None,
        train_on_test: bool = False,
    ) -> None:
        self._asked = f"task {name!r}"
        self.data, path = self._found(name, path)
        self.name = name if self.data.hub else f"{self.data.name}:{Path(str(path)).stem}"
        self.stop = self.data.stop
        if self.data.plain:
            self.chat = False
        self.left_out: Counter[str] = Counter()
        self.trainable = self.data.trains or train_on_test
        self._max_new_tokens = max_new_tokens or self.data.max_new_tokens
        share = self.data.held_out if test is None else test
        grader = self.data.grader if grader is None else grader
        self._settle(self._asked, grader, grader_options, share)
        self._template = self._wrapping(self.data.template if template is None else template)
        fields = table(self._asked, "fields", fields)
        self._columns = column_names(self._asked, self.data.fields, fields)
        taken = self._elsewhere(self.data.without if without is None else without)
        self._rows = {
            split: list(self._read(source, taken))
            for split, source in sources(name, self.data, path).items()
        }
        if self._grader == "code":
            for split in self._rows:
                self._try_tests(split)
        if set(self._rows) == {"train"}:
            self._rows = hold_out(self._rows["train"], share)
        self.splits = tuple(self._rows)

    def example(self, index: int, split: str) -> Example:
        asked, answer = self._rows[split][index]
        prompt = self._template.replace("{problem}", asked)
        label = " ".join(asked[-2 * _LABEL :].split())[-_LABEL:]
        return Example(prompt, answer(), {"label": label})

    def problems(self) -> Iterator[str]:
        for kept in self._rows.values():
            yield from (asked for asked, _ in kept)

    def _read(self, source: Source, taken: set[str]) -> Iterator[tuple[str, Callable[[], str]]]:
        """The problems to keep, each with a function that returns its answer."""
        seen: set[str] = set()
        raw: set[str] = set()  # fast check: most copies are exact
        for located in source.rows(self._columns.values()):
            asked = repr(pick(located.row, self._columns["prompt"])) if self.data.once else ""
            try:
                if asked in raw:
                    raise LeftOut("asked before")
                problem = self._problem(located, source.where)
                key = " ".join(problem.prompt.split()).casefold()
                if self.data.once and key in seen:
                    raise LeftOut("asked before")
                if taken and _bare(problem.prompt) in taken:
                    raise LeftOut("in another set")
                self._check(problem, located.where)
            except LeftOut as reason:
                self.left_out[str(reason)] += 1
                continue
            seen.add(key)
            if self.data.once:
                raw.add(asked)
            yield problem.prompt, self._answer(problem, located, source.where)
        if not seen:
            why = ", ".join(f"{n} {reason}" for reason, n in self.left_out.items())
            raise ValueError(
                f"{self._asked}: no problem in {source.where}: {why or 'the data set is empty'}"
            )

    def _problem(self, located: Located, where: str) -> Problem:
        values = self._values(located.row, located.where, where)
        try:
            return self.data.read(values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{self._asked}: {located.where} of {where} is no row of this set: {error}. Other "
                "columns are named with --task.fields.NAME; FILE.jsonl takes any prompts and "
                "answers"
            ) from None

    def _answer(self, problem: Problem, located: Located, where: str) -> Callable[[], str]:
        answer, again, place = problem.answer, located.again, located.where
        if isinstance(answer, str):
            return partial(str, answer)  # a partial, so that a task can be pickled
        return lambda: answer(self._values(again(), place, where))

    def _check(self, problem: Problem, place: str) -> None:
        """Raise if the grader cannot read an answer: `LeftOut` for a known set, else ValueError."""
        if not isinstance(problem.answer, str):
            return
        try:
            check_answer(self._grader, problem.answer, self._options)
        except ValueError as error:
            if self.data.hub:
                raise LeftOut(f"an answer that grader {self._grader!r} cannot read") from None
            raise ValueError(f"{self._asked}: {place}: {error}") from None

    def _try_tests(self, split: str) -> None:
        """Raise ValueError if a wrong program passes the tests of a set."""
        kept = self._rows[split]
        place = passed_by_wrong_programs([answer for _, answer in kept], self._options)
        if place is not None:
            raise ValueError(
                f"{self._asked}: the tests of problem {place + 1} of split {split!r} "
                f"({kept[place][0][:60]!r}) pass a wrong program. Tests must call the "
                "program and assert what it gives; mend them, or leave the row out"
            )

    def _values(self, row: Any, place: str, where: str) -> dict[str, Any]:
        values = {}
        for field, column in self._columns.items():
            value = pick(row, column)
            if value is ABSENT and field not in self.data.optional:
                raise ValueError(
                    f"{self._asked}: {place} of {where} has no column {column!r} (for {field})"
                    f"{columns_of(row)}. Name another with --task.fields.{field}"
                )
            values[field] = None if value is ABSENT else value
        return values

    def _found(self, name: str, path: Any) -> tuple[DataSet, Any]:
        data = data_set(name)
        if data is None:
            raise ValueError(
                unknown("data set", name, [*SETS, *(f"{kind}:FILE" for kind in KINDS)])
            )
        if data.hub:
            return data, path
        file = name.partition(":")[2]
        if not file:
            raise ValueError(f"{self._asked} needs a file: {name}FILE.jsonl or {name}FILE.parquet")
        if path is not None:
            raise ValueError(f"{self._asked} names its file; path is for a set with a name")
        return data, file

    def _wrapping(self, template: str) -> str:
        if template in TEMPLATES:
            return TEMPLATES[template]
        if not isinstance(template, str) or "{problem}" not in template:
            raise ValueError(
                f"{self._asked}: {unknown('template', str(template), TEMPLATES)} Or a text with "
                "{problem} in it."
            )
        return template

    def _elsewhere(self, without: Iterable[str]) -> set[str]:
        if isinstance(without, str):
            raise ValueError(f"{self._asked}: without is a list of data sets, got {without!r}")
        found = set()
        for name in without:
            try:
                found |= set(map(_bare, DataTask(name).problems()))
            except ValueError as error:
                raise ValueError(
                    f"{self._asked} leaves out the problems of {name!r}, which must be at hand too "
                    f"(or --task.without '[]'): {error}"
                ) from None
        return found


def _bare(text: str) -> str:
    """Letters and digits of a problem, to find copies that differ in spaces or LaTeX commands."""
    return "".join(filter(str.isalnum, text)).casefold()


def passed_by_wrong_programs(
    answers: Sequence[Callable[[], str]], options: Mapping[str, Any]
) -> int | None:
    """Index of tests that a wrong program passes, or None; None also without a sandbox."""
    try:
        sandbox.isolation()
    except ValueError:
        return None
    step = max(1, len(answers) // ROWS)
    places = range(0, len(answers), step)

    def lax(place: int) -> bool:
        try:
            answer = answers[place]()
        except ValueError:  # a broken row raises when it is used
            return False
        return any(grade_here("code", one, answer, options) >= 1 for one in ("", wrong(answer)))

    with ThreadPoolExecutor(at_once()) as threads:
        found = list(threads.map(lax, places))
    return next((place for place, one in zip(places, found, strict=True) if one), None)


def wrong(answer: str) -> str:
    tests = json.loads(answer)
    if tests["kind"] == "stdin":
        return 'print("of a wrong program")'
    if tests["kind"] == "calls":
        return f"{_WRONG}\n{tests['name']} = _wrong\n"
    sources = [tests["tests"]] if isinstance(tests["tests"], str) else tests["tests"]
    used: set[str] = set(re.findall(r"^def (\w+)", tests.get("prompt") or "", re.MULTILINE))
    for source in sources:
        for node in ast.walk(unit_tests.parsed(source) or ast.Module([], [])):
            used |= {getattr(node, "id", ""), getattr(node, "attr", "")}
            if isinstance(node, ast.ImportFrom) and node.module == "solution":
                used |= {alias.name for alias in node.names}
    names = sorted(
        n for n in used if n.isidentifier() and (n[0] != "_") and not hasattr(builtins, n)
    )
    lines = [f"class {n}(_Wrong): pass" if n[0].isupper() else
             f"def {n}(*arguments, **named): return _wrong()" for n in names]  # fmt: skip
    return "\n".join([_WRONG, *lines])
