"""Progress of a study: bars on a terminal, otherwise occasional lines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .._text import console, say
from ..logs.lines import number
from ..runs.progress import duration
from .execute import State, last_iteration, last_metrics
from .plan import Plan

if TYPE_CHECKING:
    from rich.progress import TaskID

PAUSE = 0.3  # seconds between updates
SPEAK = 15.0  # seconds between lines without a terminal
_FEW = 12  # with more trainings, only running ones have bars


class Bars:
    """A bar for all trainings, with the time left, and one each; of many, for running ones only."""

    def __init__(self, plan: Plan) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        self._plan = plan
        self._console = console()
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining(),
            TextColumn("{task.fields[figures]}"), console=self._console,
            disable=not self._console.is_terminal,
        )  # fmt: skip
        self._sizes = {a: each.config.iterations for a, each in plan.trainings.items()}
        self._reached = {a: last_iteration(each.path) for a, each in plan.trainings.items()}
        self._at_start: int | None = None
        total = sum(self._sizes.values())
        several = len(self._sizes) > 1
        self._all = self._progress.add_task("all", total=total, visible=several, figures="")
        self._bars: dict[str, TaskID] = {}
        self._said = self._began = time.monotonic()
        self._told: set[str] = set()
        self._killed = 0
        self._progress.start()

    def __call__(self, state: State) -> None:
        self._tell(state)
        speak = not self._console.is_terminal and time.monotonic() - self._said > SPEAK
        self._reached |= {address: self._sizes[address] for address in state.done}
        for address in self._bars.keys() - state.working if len(self._sizes) > _FEW else ():
            self._progress.remove_task(self._bars.pop(address))
        for address in self._sizes:
            if address in state.working or len(self._sizes) <= _FEW:
                self._show(address, speak and address in state.working)
        self._show_all(state, speak)
        if speak:
            self._said = time.monotonic()
        if state.waiting or state.working:
            time.sleep(PAUSE)

    def close(self) -> None:
        self._progress.stop()

    def _show(self, address: str, speak: bool) -> None:
        name = self._plan.name_of(address)
        if address not in self._bars:
            total = self._sizes[address]
            self._bars[address] = self._progress.add_task(name, total=total, figures="")
        line = last_metrics(self._plan.trainings[address].path)
        if line is None:
            return
        pairs = (("entropy", "entropy/exact"), ("reward", "reward/mean"))
        known = [(word, number(line.get(key))) for word, key in pairs]
        figures = "  ".join(f"{word} {'-' if v is None else f'{v:.3f}'}" for word, v in known)
        self._reached[address] = line["iteration"]
        self._progress.update(self._bars[address], completed=line["iteration"], figures=figures)
        if speak:
            say(f"{name}: iteration {line['iteration']}  {figures}")

    def _show_all(self, state: State, speak: bool) -> None:
        reached = sum(self._reached.values())
        if self._at_start is None:
            self._at_start = reached
        words = f"{len(state.done)} of {len(self._sizes)} runs"
        words += f", {len(state.failed)} failed" if state.failed else ""
        self._progress.update(self._all, completed=reached, figures=words)
        if speak and len(self._sizes) > 1:
            came, took = reached - self._at_start, time.monotonic() - self._began
            left = (sum(self._sizes.values()) - reached) * took / came if came else None
            say(f"{words}{'' if left is None else f', about {duration(left)} left'}")

    def _tell(self, state: State) -> None:
        """Report kills and failures when they happen, since other trainings continue."""
        for address, signal, reached in state.killed[self._killed :]:
            where = f"after iteration {reached}" if reached else "before its first iteration"
            self._print(address, f"was killed by signal {signal} {where}; it is taken up again")
        self._killed = len(state.killed)
        for address in state.failed.keys() - self._told:
            self._print(address, f"stopped: {state.failed[address]}")
        self._told |= state.failed.keys()

    def _print(self, address: str, text: str) -> None:
        wide = not self._console.is_terminal  # no wrapping: logs are searched by line
        text = f"run {self._plan.name_of(address)!r} {text}"
        self._console.print(text, markup=False, highlight=False, soft_wrap=wide)
