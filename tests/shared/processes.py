"""Processes of their own: ranks that meet by a file, code that wants a fresh interpreter."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any


def run_ranks(
    world: int,
    folder: Path,
    words: Callable[[int], Sequence[str]],
    env: Callable[[int], dict[str, str]] = lambda rank: {},
    timeout: float = 480,
) -> list[dict[str, Any]]:
    """Run `python WORDS` once per rank; returns the JSON that each left in `folder`/RANK.json.

    Words that begin with a script and not with an option of the interpreter are run in a fork of a
    process that has imported torch and nothing else, which spares each of them two seconds.

    Raises:
        AssertionError: a process failed; the message holds what all of them wrote to stderr.
    """
    # to files: a full pipe would stop a rank that the others wait for
    errors = [folder / f"{rank}.err" for rank in range(world)]
    processes: list[Any] = []
    try:
        for rank, file in enumerate(errors):
            start = _interpreter if words(rank)[0].startswith("-") else _fork
            processes.append(start(list(words(rank)), {"OMP_NUM_THREADS": "1", **env(rank)}, file))
        codes = [_code(process, timeout) for process in processes]
        told = "\n".join(file.read_text()[-4000:] for file in errors)
        assert not any(codes), f"{codes}\n{told}"
    finally:
        for process in processes:
            process.kill()
            _code(process, timeout)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def fork_ranks(world: int, main: Callable[..., None], *arguments: Any) -> None:
    """Run `main(rank, *arguments)` in forks of this process, which has imported what they need."""
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=main, args=(rank, *arguments)) for rank in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(any(process.exitcode for process in ranks))


def run_code(code: str, folder: Path, timeout: float = 480) -> str:
    """What `python -c CODE` prints, run in a fork of a process that has imported torch alone.

    Raises:
        AssertionError: it failed; the message holds what it wrote to stderr.
    """
    script, out, errors = (folder / f"code.{kind}" for kind in ("py", "out", "err"))
    script.write_text(code)
    process = _fork([str(script)], {"OMP_NUM_THREADS": "1"}, errors, out)
    try:
        assert _code(process, timeout) == 0, errors.read_text()[-4000:]
    finally:
        process.kill()
    return out.read_text()


def killed(load: Callable[[], Any], *works: Callable[[], None], timeout: float = 960) -> None:
    """Have other processes do works that kill them by SIGKILL, one after another.

    They are forks of a process that has called `load`, which imports for all of them what takes
    longer than their work. Forks of this one, with the threads that torch has started, could wait
    for ever.
    """
    child = _server().Process(target=_each_killed, args=(load, works))
    child.start()
    child.join(timeout)
    try:
        assert child.exitcode == 0
    finally:
        child.kill()


def _each_killed(load: Callable[[], Any], works: Sequence[Callable[[], None]]) -> None:
    load()
    fork = multiprocessing.get_context("fork")
    for work in works:
        process = fork.Process(target=work)
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, process.exitcode


def _interpreter(words: list[str], env: dict[str, str], errors: Path) -> subprocess.Popen:
    with open(errors, "w") as stream:
        return subprocess.Popen(
            [sys.executable, *words], stderr=stream, stdout=subprocess.DEVNULL,
            env={**os.environ, **env},
        )  # fmt: skip


@functools.cache
def _server() -> ForkServerContext:
    """Started by the first process; it has no threads and no settings of the tests' own process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.fsdp"])
    return context


def _fork(words: list[str], env: dict[str, str], errors: Path, out: Path | None = None) -> Any:
    process = _server().Process(
        target=_main, args=(words, env, str(errors), str(out or os.devnull))
    )
    process.start()
    return process


def _main(words: list[str], env: dict[str, str], errors: str, out: str) -> None:
    """A rank: the script as the interpreter would run it."""
    os.environ.update(env)
    for place, path in ((2, errors), (1, out)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), place)
    sys.argv, sys.path[0] = words, str(Path(words[0]).parent)
    sys.path.insert(1, str(Path(__file__).parent))
    runpy.run_path(words[0], run_name="__main__")


def _code(process: Any, timeout: float) -> int | None:
    """Its exit code once it has ended; None while it runs after `timeout` seconds."""
    if isinstance(process, subprocess.Popen):
        return process.wait(timeout)
    process.join(timeout)
    assert process.exitcode is not None, f"{process} runs after {timeout} s"
    return process.exitcode


def alive(pid: int) -> bool:
    """Whether a process runs: a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False
