"""veRL's checkpoints: which one a run resumes from, and the cut of the logs. Imports no veRL.

veRL removes old checkpoints before it marks the new one as its latest, so one more than asked for
is kept (`recipe.py`) until the run ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from ..._text import Say
from ...config import TrainConfig
from ...errors import RunStopped
from ...runs.best_checkpoint import link_tree
from ...runs.run_directory import RunDirectory, check_not_back

BOUND = "config.toml"  # in the folder `verl`: the settings of its checkpoints
# in a checkpoint: its iteration's line in veRL's "file" logger's form, which is logged only later
LINE = "metrics.jsonl"


def bound_to(checkpoints: Path) -> str | None:
    """The settings that a run's checkpoints were made with, as TOML; None if unknown."""
    try:
        return (checkpoints.parent / "verl" / BOUND).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def every(config: TrainConfig) -> int:
    """Iterations between checkpoints: the setting, else a tenth of the run.

    With `save.best` the default is the evaluation interval: evaluations then need checkpoints.
    """
    evaluated = between_evaluations(config) if config.save.best else 0
    return config.save.checkpoint_every or evaluated or max(1, config.iterations // 10)


def between_evaluations(config: TrainConfig) -> int:
    """Iterations between evaluations; all sets share it (`recipe.py` raises otherwise).

    0: evaluate only before the first iteration and after the last.
    """
    return next((one.every for one in config.eval.resolved if one.prompts), config.eval.every)


def newest(checkpoints: Path) -> int:
    """The iteration of veRL's latest checkpoint; 0 without one."""
    try:
        step = int((checkpoints / "latest_checkpointed_iteration.txt").read_text().strip())
    except (OSError, ValueError):
        return 0
    return step if folder(checkpoints, step).is_dir() else 0


def folder(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"global_step_{step}"


def parts(checkpoints: Path, step: int) -> Callable[[Path], None]:
    """Return a function that links a checkpoint's weight shards into a directory; 0 has none."""

    def save(directory: Path) -> None:
        if step:
            actor = folder(checkpoints, step) / "actor"
            link_tree(actor, directory / "actor", "optim_*", "extra_state_*")

    return save


def keep(checkpoints: Path, count: int) -> None:
    if not count:
        shutil.rmtree(checkpoints, ignore_errors=True)
    names = [path.name.removeprefix("global_step_") for path in checkpoints.glob("global_step_*")]
    steps = sorted(int(name) for name in names if name.isascii() and name.isdecimal())
    for step in steps[:-count]:
        shutil.rmtree(folder(checkpoints, step))


def go_on(
    run: RunDirectory, config: TrainConfig, resume: bool, catch_up: Callable[[list[Path]], None],
    say: Say,
) -> int:  # fmt: skip
    """Cut the logs back to veRL's newest checkpoint; return its iteration, 0 without one.

    Without `resume` everything is removed. `catch_up` imports lines that veRL logged into the given
    files while nothing followed it.
    """
    if not resume:  # a run may have stopped here before its first iteration
        run.rewind(0, {})
        shutil.rmtree(run.path / "verl", ignore_errors=True)
        return 0
    start = newest(run.checkpoints)
    check_not_back(run.path, config.iterations, start)
    written = sorted((run.path / "verl").glob("from-*.jsonl"))
    catch_up([*written, folder(run.checkpoints, start) / LINE])
    logs = run.logs()
    done = logs["metrics.jsonl"].readable() if "metrics.jsonl" in logs else []
    if not start and len(done) > every(config):
        raise RunStopped(
            f"{run.path} has {len(done)} iterations but no checkpoint of veRL's to go on from; "
            "start a new run in another directory"
        )
    for log in logs.values():
        log.keep_until(start)
    run.rewind(start, {name: log.mark() for name, log in logs.items()})
    for path in written:
        path.unlink()  # its content is in the logs
    for path in (run.path / "verl" / "validation").glob("*.jsonl"):
        if path.stem.isdecimal() and int(path.stem) > start:
            path.unlink()
    again = sum(row["iteration"] > start for row in done)
    if again:
        say(f"going on after iteration {start}; what came later ({again}) will be made again")
    return start
