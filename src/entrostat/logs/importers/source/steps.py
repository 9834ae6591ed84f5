"""A log of steps, and the run that its numbers make."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...run import Run
from .problems import Given
from .values import clean, number, short, step_of

if TYPE_CHECKING:
    from ...rollouts import Rollouts

METRICS = 2000
"""Most metrics of one step."""
WORDS = {"true", "false", "none", "null", ""}


class Log:
    """Numbers of steps, from lines in any order.

    Lines of one step are joined (an evaluation, say, or a second file of the same run); of a
    metric that a step has twice the later value counts.

    Args:
        given: takes the problems.
        names: source's name -> ours; where several of one of ours occur, the first of them.
    """

    def __init__(self, given: Given, names: Mapping[str, str]) -> None:
        self.given, self.names = given, names
        self.rows: dict[int, dict[str, float]] = {}
        self.path: Path | None = None
        self.last = -1
        self.again: set[int] = set()
        self.disordered = False
        self.infinite = 0

    def add(self, path: Path, line: int | None, step: Any, values: Mapping[str, Any]) -> None:
        """Add what a line says of a step."""
        found = step_of(step)
        if found is None:
            self.given.problem(path, line, f"step {short(step)} is not a whole number from 0")
            return
        row = self._row(path, line, values)
        if not row:
            self.given.problem(path, line, f"step {found} has no finite number")
            return
        self.disordered |= path == self.path and found < self.last
        self.path, self.last = path, found
        before = self.rows.setdefault(found, {})
        if any(before.get(name, value) != value for name, value in row.items() if name != "epoch"):
            self.again.add(found)
        before |= row

    def _row(self, path: Path, line: int | None, values: Mapping[str, Any]) -> dict[str, float]:
        row: dict[str, float] = {}
        taken: dict[str, str] = {}
        for key, name in self.names.items():
            if values.get(key) is not None:
                taken.setdefault(name, key)
        renamed = {key: name for name, key in taken.items()}
        if len(values) > METRICS:
            self.given.problem(path, line, f"more than {METRICS} metrics; the first are read")
        for key, value in list(values.items())[:METRICS]:
            name = renamed.get(key, clean(key)[:200])
            if name == "iteration" or (name in taken and key not in renamed):
                continue
            figure = number(value)
            if figure is None:
                if key in renamed and str(value).strip().lower() not in WORDS:
                    self.given.problem(path, line, f"{clean(key)} {short(value)} is not a number")
            elif math.isfinite(figure):
                row[name] = figure
            else:
                self.infinite += 1
        return row

    def metrics(self) -> list[dict[str, Any]]:
        """One object a step, sorted; notes on what was odd go to `given`."""
        notes = self.given.notes
        if self.again:
            steps = sorted(self.again)
            which = f"Step {steps[0]} is" if len(steps) == 1 else (
                f"{len(steps)} steps ({steps[0]} to {steps[-1]}) are"
            )  # fmt: skip
            notes.append(f"{which} logged more than once (a restart?); the later values count.")
        if self.disordered:
            notes.append("Steps were not in order in the log; they are sorted here.")
        if self.infinite:
            notes.append(f"Values that were not finite are left out: {self.infinite}.")
        return [{"iteration": step, **self.rows[step]} for step in sorted(self.rows)]


def finish(
    given: Given,
    source: str,
    entropy_is: str,
    metrics: list[dict[str, Any]],
    dumps: Mapping[int, Callable[[], Rollouts]] | None = None,
    planned: int | None = None,
) -> Run | None:
    """A run; None where there is no step in it."""
    if not metrics:
        return None
    done = metrics[-1]["iteration"]
    notes = given.notes
    if planned is not None and done < planned:
        notes = [f"Unfinished: {done} of {planned} steps are logged.", *notes]
    config = {} if planned is None else {"iterations": planned}
    return Run(
        given.root, config, "", "", metrics, [], tuple(dict.fromkeys(notes)),
        dumps=dict(dumps or {}), source=source, entropy_is=entropy_is, problems=given.problems,
    )  # fmt: skip
