"""Resumes a run: with its own configuration, from the newest checkpoint that its logs match."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .._text import Say
from ..config import TrainConfig, flat, from_dict, load
from . import checkpoint as checkpoints
from .run_directory import RunDirectory, check_not_back, default_output
from .schedule import lengthened

# settings that may differ: length, place, speed and what is written, not what is computed
FREE = ("iterations", "output", "threads", "save.", "log.", "scoring.workers")
_SHOWN = 3  # differences listed in a message


def keep_settings(
    config: TrainConfig, say: Say, bound_to: Callable[[Path], str | None] = checkpoints.bound_to,
    held_by: str = "a checkpoint's .json",
) -> None:  # fmt: skip
    """Check that a resumed run has the configuration of its checkpoints.

    Settings left open take the run's first choices. The configuration is the checkpoints', else
    that of config.toml. `bound_to` reads it, as TOML, from a directory of checkpoints; `held_by`
    names the file in messages.
    """
    run = RunDirectory(Path(config.output or default_output(config)))
    bound, written = bound_to(run.checkpoints), run.path / "config.toml"
    if bound is None and not written.exists():
        return
    before = from_dict(load(written) if bound is None else tomllib.loads(bound))
    config.keep_choices(before)
    if bound is not None:
        different = [
            f"{key} is {now!r}, was {was!r}" for key, was, now in differences(before, config)
        ]
        if different:
            more = len(different) - _SHOWN
            raise ValueError(
                f"{run.path}: its checkpoints were made with another configuration: "
                f"{', '.join(different[:_SHOWN])}{f', and {more} more' if more > 0 else ''}. Put "
                f"config.toml back ({held_by} holds it), or start a new run; only "
                "iterations, threads, scoring.workers, save.* and log.* may change"
            )
    longer = lengthened(config, before)
    if longer is not None:
        say(longer)


def differences(before: TrainConfig, now: TrainConfig) -> Iterator[tuple[str, Any, Any]]:
    """Settings outside `FREE` that differ: dotted name and both values."""
    # through TOML, which writes None in a method's table in its own way
    old, new = (
        dict(flat(dataclasses.asdict(from_dict(tomllib.loads(c.to_toml()))))) for c in (before, now)
    )
    for key in old | new:
        if not key.startswith(FREE) and old.get(key) != new.get(key):
            yield key, old.get(key), new.get(key)


def restore_newest(
    run: RunDirectory, iterations: int, restore: Callable[[checkpoints.Checkpoint], None],
    resume: bool, say: Say, kept: Any = checkpoints,
) -> int:  # fmt: skip
    """Restore the newest checkpoint that matches the logs, and remove everything after it.

    `kept` has the functions `newest` and `remove` of its kind of checkpoints. Returns the iteration
    to resume after, 0 without a checkpoint. If it raises, nothing was changed.
    """
    saved = kept.newest(run.checkpoints, lambda one: run.check_logs(one.logs))
    if saved is None:
        if resume:
            run.check_unsaved()
        start, marks = 0, {}
    else:
        check_not_back(run.path, iterations, saved.iteration)
        restore(saved)
        start, marks = saved.iteration, saved.logs
        for reason in saved.passed_over:
            say(f"warning: {reason}; going on from checkpoint {start}")
    kept.remove(run.checkpoints, after=start)
    again = run.rewind(start, marks)
    if again:
        say(
            f"going on after iteration {start}: of what came later {again} "
            f"line{'s' * (again > 1)} in metrics.jsonl had no checkpoint and will be made again"
        )
    return start
