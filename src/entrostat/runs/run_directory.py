"""A run directory: its paths, its lock, and its rewind on resume."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from .._processors import processor_kind
from ..config import TrainConfig
from ..errors import RunStopped
from ..logs.files import dump_files, make_directory, replace_text
from ..logs.lines import JsonLines, Mark, read_json
from ..logs.run import MOST
from . import best_checkpoint as best

BUSY = "another process is training in this directory"  # ends the error message of a locked run


@dataclass
class RunDirectory:
    """Paths of a run, and the lock against a second process."""

    path: Path
    _lock: Any = None

    @classmethod
    def open(cls, config: TrainConfig, resume: bool) -> RunDirectory:
        path = Path(config.output or default_output(config))
        config.output = str(path)
        check_output(path, config.iterations, resume)
        return cls(path, hold(path, BUSY))

    def write_settings(
        self, config: TrainConfig, objective: dict[str, Any], found: dict[str, Any]
    ) -> None:
        for name, text in (
            ("objective.json", json.dumps(objective, indent=1)),
            ("config.toml", config.to_toml()),
            ("environment.json", json.dumps(environment() | found, indent=1)),
        ):
            replace_text(self.path / name, text)

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()

    def __post_init__(self) -> None:
        self.checkpoints, self.rollouts = self.path / "checkpoints", self.path / "rollouts"
        # one JSON object per iteration; evaluation and split; split and prompt; analysed iteration
        self.metrics, self.evaluations, self.answers, self.analysis = (
            self.path / f"{name}.jsonl" for name in ("metrics", "evaluation", "answers", "analysis")
        )

    def complete(self, iterations: int) -> bool:
        done = self.finished()
        return done is not None and done >= iterations

    def finished(self) -> int | None:
        """Iterations of the final model; None without a final model."""
        done = read_json(self.path / "final" / best.SEAL).get("iterations")
        return done if type(done) is int and 0 < done < MOST else None

    def evaluated_after(self) -> set[int]:
        return {row["iteration"] for row in JsonLines(self.evaluations).read()}

    def logs(self) -> dict[str, JsonLines]:
        paths = (self.metrics, self.evaluations, self.answers, self.analysis)
        return {path.name: JsonLines(path) for path in paths if path.exists()}

    def check_logs(self, marks: Mapping[str, Mark]) -> str | None:
        found = (JsonLines(self.path / name).damage(mark) for name, mark in marks.items())
        return next((reason for reason in found if reason is not None), None)

    def check_unsaved(self) -> None:
        """Raise if the run has no checkpoint now but had written one before."""
        rows = JsonLines(self.metrics).readable()
        newest = [row.get("time/checkpoint", place) for place, row in enumerate(rows)]
        if rows and (any(n != 0 for n in newest) or self.finished() is not None):
            raise RunStopped(
                f"{self.path} has {len(rows)} iterations but no checkpoint to go on from (one "
                "without its .json, of an older version say, cannot be verified); start a new run "
                "in another directory"
            )

    def rewind(self, iteration: int, marks: Mapping[str, Mark]) -> int:
        """Remove everything after an iteration; the resumed run repeats it exactly.

        `marks` are the logs' positions at that time. Returns the number of removed metrics lines.
        """
        lines = 0
        for name, log in self.logs().items():
            count = log.rewind(marks.get(name, Mark(0, "")))
            lines += count if log.path == self.metrics else 0
            if name not in marks:
                log.remove()
        forget_rollouts(self.rollouts, iteration)
        for directory in (self.path, self.rollouts, self.checkpoints):
            for path in directory.glob(".*.part"):  # of an interrupted write
                path.unlink() if path.is_file() or path.is_symlink() else shutil.rmtree(path)
        best.go_back(self.path, iteration)
        return lines

    def finish(self, save: Callable[[Path], None], iterations: int) -> None:
        """Write the final model atomically; replaces one of fewer iterations."""
        best.write_model(self.path / "final", save, json.dumps({"iterations": iterations}))


def hold(path: Path, busy: str) -> IO[str]:
    """Make a directory and lock it against a second process, until the returned file is closed."""
    try:
        make_directory(path)
        lock = open(path / ".lock", "a")  # noqa: SIM115 - held until closed
    except OSError as error:
        raise ValueError(f"output {str(path)!r}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise ValueError(f"{path}: {busy}") from None
    return lock


def forget_rollouts(directory: Path, iteration: int) -> None:
    for there, path in dump_files(directory).items():
        if there > iteration:
            path.unlink()


def check_output(path: Path, iterations: int, resume: bool) -> None:
    """Raise, before anything is loaded, if a run cannot use the directory."""
    if path.is_file():
        raise ValueError(f"output {str(path)!r} is a file; choose another --output")
    if not resume and path.exists() and not _unused(path):
        if _at_work(path):
            raise ValueError(f"{path}: {BUSY}")
        raise ValueError(
            f"output {str(path)!r} is not empty; go on with it by "
            f"`entrostat train --resume {path}`, or choose another --output"
        )
    if resume:
        check_not_back(path, iterations, RunDirectory(path).finished() or 0)


def _at_work(path: Path) -> bool:
    try:
        with open(path / ".lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # any other error: no lock file, or an unreadable one
        return isinstance(error, BlockingIOError)
    return False


def check_not_back(path: Path, iterations: int, done: int) -> None:
    if done > iterations:
        raise ValueError(
            f"iterations is {iterations}, but {path} has {done} done; it may only be raised"
        )


def _unused(path: Path) -> bool:
    """Whether no iteration was finished there: a run that stopped at once may start again."""
    if not path.is_dir():
        return False
    there = {p.name for p in path.iterdir()}
    if "config.toml" in there and ".lock" not in there:
        return False  # the user's file: no run wrote it
    before_the_first = set(
        ".lock config.toml objective.json environment.json evaluation.jsonl answers.jsonl".split()
    )
    if ".lock" in there:
        # the veRL trainer's, and the policy before training as the best so far
        before_the_first |= {"data", "verl", "trackers", best.NEXT}
    return all(name in before_the_first or name.endswith(".part") for name in there)


def default_output(config: TrainConfig) -> str:
    """runs/METHOD-TASK-sSEED, with -HOST unless that is the lab."""
    names = [m if isinstance(m, str) else m["name"] for m in config.method]
    task = config.task["name"].replace(":", "_").replace("/", "_").replace(".jsonl", "")
    host = "" if config.host == "lab" else f"-{config.host}"
    return f"runs/{'+'.join(names).replace(':', '.')}-{task}-s{config.seed}{host}"


def environment() -> dict[str, Any]:
    """Versions, machine and git revision, for reproducing a result."""
    import torch  # late: not needed if the run is rejected

    names = ("entrostat", "torch", "transformers", "tokenizers", "numpy", "reasoning-gym")
    versions: dict[str, str | None] = dict.fromkeys(names)
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "versions": versions,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "processor": processor_kind(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "git": _git_revision(),
        "arguments": sys.argv[1:],
    }


def _git_revision() -> str | None:
    """Revision of entrostat's own checkout, with `+` for local changes.

    None if it is installed without a checkout, also inside another project's checkout.
    """
    here = Path(__file__)

    def git(*words: str) -> str:
        how: Any = {"capture_output": True, "text": True, "timeout": 5, "check": True}
        return subprocess.run(["git", *words], cwd=here.parent, **how).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None
