"""Run the unfinished trainings of a plan in order, as many in parallel as there is room.

A training that ends with an error stays as it is; only trainings that start from its policy are
cancelled. A training that is killed (out of memory, a lost node) resumes from its checkpoint, up to
three times without progress.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ..logs.files import atomic, make_directory
from ..logs.run import is_line
from ..runs.run_directory import BUSY
from .content_hash import code_of
from .plan import Plan, Training

RECORDED = "recorded.json"  # in a run directory whose numbers come from a record
_ERROR = "entrostat: error: "
_OTHER_CODE = "{} was changed while the study ran; the same command trains it as it is now"
_TAIL = 2**18  # bytes of a log that hold its last line, whatever a method adds to it
TRIES = 3  # maximum consecutive resumes of a killed training without progress


class Workers(Protocol):
    def room(self, training: Training) -> bool: ...  # for one more, now

    # run `entrostat train` with these arguments; its output goes to the training's log
    def start(self, training: Training, words: list[str]) -> None: ...

    # addresses that ended since the last call, with exit codes; negative for signals
    def ended(self) -> list[tuple[str, int]]: ...

    def close(self) -> None: ...


@dataclass
class State:
    """Progress of a plan, by address."""

    waiting: list[str]  # not started, in order
    working: set[str]
    failed: dict[str, str]  # reasons of trainings that will not be done
    done: set[str]  # trainings with a final model
    # each kill of a resumed training, in order, with the signal and the iteration reached
    killed: list[tuple[str, int, int]] = field(default_factory=list)


def execute(
    plan: Plan, workers: Workers, watch: Callable[[State], None], trusted: bool = False,
    keep: Callable[[Training], None] = lambda training: None, pages: bool = True,
) -> State:  # fmt: skip
    """Run the unfinished trainings; return the final state, with none waiting or working.

    Args:
        plan: its directories have been made.
        workers: where trainings run; they are closed, also on an exception.
        watch: called repeatedly, and once at the end; its sleep sets the interval.
        trusted: whether trainings may import the code that their settings name.
        keep: called with each finished training; first with those finished before.
        pages: whether each training writes its page.
    """
    done = {each.address for each in plan.trainings.values() if is_done(each)}
    state = State([a for a in plan.trainings if a not in done], set(), {}, done)
    for address in plan.trainings:
        if address in done:
            keep(plan.trainings[address])
    more = ["--trust-code"] * trusted + ["--no-report"] * (not pages)
    said: dict[str, int] = {}  # size of its log before this attempt
    try:
        while state.waiting or state.working:
            _start_more(plan, workers, state, more, said)
            watch(state)
            for address, code in workers.ended():
                state.working.discard(address)
                training = plan.trainings[address]
                if (name := _changed(training)) is not None:
                    _set_aside(training)
                    _fail(state, training, _OTHER_CODE.format(name))
                elif is_done(training):
                    state.done.add(address)
                    keep(training)
                elif code < 0 and _again(state, address, last_iteration(training.path)):
                    state.killed.append((address, -code, last_iteration(training.path)))
                    state.waiting.insert(0, address)
                else:
                    _fail(state, training, last_words(training.log, code, said[address]))
        watch(state)
    finally:
        workers.close()
    return state


def _fail(state: State, training: Training, why: str) -> None:
    """Mark a training as failed, also for a later `--report`."""
    state.failed[training.address] = why
    if why.endswith(BUSY):  # another study trains it and records how it ends
        return
    with atomic(training.failure) as part:
        part.write_text(why + "\n", encoding="utf-8")


def _start_more(
    plan: Plan, workers: Workers, state: State, more: list[str], said: dict[str, int]
) -> None:
    """Start trainings while there is room; later ones do not overtake one that waits for room."""
    for address in list(state.waiting):
        training = plan.trainings[address]
        before = training.after
        if before in state.failed:
            why = _not_run(plan, before)
        elif before is not None and before not in state.done:
            continue
        elif before is not None and _stripped(plan, training):
            why = (
                f"not run: the policy of {plan.name_of(before)} was removed (--lean); with its "
                "--record it is trained again"
            )
        elif not workers.room(training):
            return
        else:
            name = _changed(training)
            why = "" if name is None else f"not run: {_OTHER_CODE.format(name)}"
        state.waiting.remove(address)
        if why:
            state.failed[address] = why
            continue
        state.working.add(address)
        training.failure.unlink(missing_ok=True)
        said[address] = training.log.stat().st_size if training.log.exists() else 0
        workers.start(training, _words(plan, training, more))


def _changed(training: Training) -> str | None:
    """Name user code that has changed since the training's address was computed, if any."""
    now = code_of(training.config) if training.code else {}
    return next((name for name in training.code if now.get(name) != training.code[name]), None)


def _set_aside(training: Training) -> None:
    """Move away a result that mixes two versions of the code, so that it counts for neither."""
    place = training.path.resolve()
    if place.parent == training.store.resolve():
        aside = place.with_name(f"{training.address}.changed")
        shutil.rmtree(aside, ignore_errors=True)
        place.rename(aside)
        make_directory(place)


def _not_run(plan: Plan, before: str) -> str:
    return f"not run: {plan.name_of(before)} did not end well"


def _again(state: State, address: str, iteration: int) -> bool:
    """Whether a training may resume: at most `TRIES` kills since its furthest iteration."""
    reached = [each for killed, _, each in state.killed if killed == address] + [iteration]
    return len(reached) - reached.index(max(reached)) <= TRIES


def _words(plan: Plan, training: Training, more: list[str]) -> list[str]:
    if training.config.scoring.sandbox == "unsafe":  # `read_study` asks for --trust-code
        more = [*more, "--sandbox", "unsafe"]
    if (training.path / "config.toml").exists():
        return ["--resume", str(training.path), *more]
    config = training.config
    if training.after is not None:
        config = replace(config, model=str(_policy(plan, training).resolve()))
    with atomic(training.settings) as part:
        part.write_text(config.to_toml(), encoding="utf-8")
    return ["--config", str(training.settings), "--output", str(training.path), *more]


def _policy(plan: Plan, training: Training) -> Path:
    return plan.trainings[training.after or ""].path / training.start


def _stripped(plan: Plan, training: Training) -> bool:
    made = _policy(plan, training)
    return (made.parent / RECORDED).exists() and not made.is_dir()


def is_done(training: Training) -> bool:
    """Whether the final model after all iterations exists, or a record's numbers do."""
    from ..runs.run_directory import RunDirectory

    recorded = (training.path / RECORDED).is_file()
    return recorded or RunDirectory(training.path).complete(training.config.iterations)


def failed_before(plan: Plan, done: Collection[str]) -> dict[str, str]:
    """Reasons of trainings that failed in an earlier call, and of those that start from them."""
    failed: dict[str, str] = {}
    for address, training in plan.trainings.items():
        if address in done:
            continue
        noted, lines = _lines(training.failure), _lines(training.log)
        if noted:
            failed[address] = noted[-1]
        elif lines and lines[-1].startswith(_ERROR):
            failed[address] = lines[-1].removeprefix(_ERROR)
        elif training.after is not None and training.after in failed:
            failed[address] = _not_run(plan, training.after)
    return failed


def last_words(log: Path, code: int, start: int = 0) -> str:
    """Why a training ended, from its log after `start` bytes; a negative code is a signal."""
    lines = _lines(log, start)
    errors = [line for line in lines if line.startswith(_ERROR)]
    said = (errors or lines or ["no output"])[-1].removeprefix(_ERROR)
    return f"killed by signal {-code}; before: {said}" if code < 0 else said


def _lines(path: Path, start: int = 0) -> list[str]:
    try:
        text = path.read_bytes()[start:].decode("utf-8", errors="replace")
    except OSError:
        return []
    return text.strip().splitlines()


def readable(path: Path) -> bool:
    """Whether a run's metrics begin with an iteration, as undamaged metrics do."""
    try:
        with open(path / "metrics.jsonl", "rb") as file:
            return is_line(json.loads(file.readline()))
    except (OSError, ValueError, RecursionError):
        return False


def last_metrics(path: Path) -> Mapping[str, Any] | None:
    """The last complete line of a run's metrics, read from the file's end; None without one."""
    log = path / "metrics.jsonl"
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            lines = file.read().split(b"\n")[:-1]
        line = json.loads(lines[-1]) if lines else None
    except (OSError, ValueError, RecursionError):
        return None
    return line if is_line(line) else None


def last_iteration(path: Path) -> int:
    line = last_metrics(path)
    return 0 if line is None else line["iteration"]
