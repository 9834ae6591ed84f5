"""Rows that a tracker kept, as the trainer's that logged them: the names say whose they are.

TRL's figures lie under `train/` and `eval/`, since transformers sorts them so; veRL's and our own
have their own names. What is neither is a table, of which only the names are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..run import Run
from . import table, trl, verl
from .source import Given, UnreadableError, parse, step_of
from .steps import Log, finish

_STEP = "train/global_step"  # TRL's own, among its figures in W&B
# what GRPOTrainer logs and no other trainer of transformers'
_TRL = {"train/completions/mean_length", "train/frac_reward_zero_std"}
_VERL = {"actor/entropy", "actor/entropy_loss", "actor/pg_loss", "critic/score/mean"}
_OURS = {"optim/updates", "rollout/tokens"}
OURS = "exact: the mean over tokens of the full next-token entropy (entrostat)"


@dataclass(frozen=True)
class Row:
    """What a tracker has of a step; `place` is the line from 1, where there are lines."""

    path: Path
    step: Any
    values: Mapping[str, Any]
    place: int | None = None


def run_of(
    rows: Sequence[Row], settings: Mapping[str, str], tracker: str, given: Given
) -> Run | None:
    """The run that rows of a tracker are.

    Args:
        rows: in their order.
        settings: what the tracker has of the run's settings, as JSON texts.
        tracker: its name, for `Run.source`.
        given: takes the problems.

    Raises:
        ValueError: there are rows, but nothing in them that a run has.
    """
    if not rows:
        return None
    names = {key for row in rows for key in row.values}
    if names & _TRL:
        run = _of_trl(rows, settings, given)
    elif names & _VERL:
        mode = verl.MODE.search(" ".join(f'"{key}": {text}' for key, text in settings.items()))
        told = ((row.path, row.place, row.step, row.values) for row in rows)
        run = verl.of_rows(told, names, None if mode is None else mode[1], given)
    elif "entropy/exact" in names and names & _OURS:
        run = _of_ours(rows, settings, given)
    else:
        run = _of_others(rows, given)
    if run is None:
        return None
    who = run.source.removeprefix("a table")
    return replace(run, source=f"{who} through {tracker}" if who else tracker)


def _of_trl(rows: Sequence[Row], settings: Mapping[str, str], given: Given) -> Run | None:
    history: trl.Entries = []
    if any(_STEP in row.values for row in rows):  # TRL's times of functions come without it
        rows = [row for row in rows if _STEP in row.values]
    for row in rows:
        entry = {_bare(key): value for key, value in row.values.items() if key != _STEP}
        step = row.values.get(_STEP, row.step)
        history.append((row.place, {**entry, "step": step}))
    known = {"max_steps": _whole(settings, "max_steps")}
    known["logging_steps"] = _whole(settings, "logging_steps")
    return trl.run_of(rows[0].path, history, known, given)


def _bare(key: str) -> str:
    """A figure's name before transformers sorted it."""
    group, _, name = key.partition("/")
    return {"train": name, "eval": f"eval_{name}", "test": f"test_{name}"}.get(group, key)


def _of_ours(rows: Sequence[Row], settings: Mapping[str, str], given: Given) -> Run | None:
    log = Log(given, {})
    for row in rows:
        log.add(row.path, row.place, row.step, row.values)
    return finish(given, "entrostat", OURS, log.metrics(), planned=_whole(settings, "iterations"))


def _of_others(rows: Sequence[Row], given: Given) -> Run | None:
    """As a table, with the tracker's steps unless the user names another column."""
    columns = {"step": "step", **given.columns}
    own = "step" not in given.columns
    told = (
        (row.path, row.place or 0, {**row.values, "step": row.step} if own else dict(row.values))
        for row in rows
    )
    return table.of_rows(told, columns, given)


def _whole(settings: Mapping[str, str], key: str) -> int | None:
    """A whole number among the settings; None where it is not there, or none from 1."""
    try:
        return step_of(parse(settings.get(key, ""))) or None
    except UnreadableError:
        return None
