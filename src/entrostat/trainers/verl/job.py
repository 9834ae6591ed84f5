"""A veRL process: start, watch and stop it, and summarize in one line why it died."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from ...logs.files import writing

MOURNING = 45.0  # seconds for a job to end by itself after a part of it has died
_PATIENCE = (20.0, 10.0)  # after SIGINT and after SIGTERM, before the next stronger signal
_TAIL = 4 << 20  # bytes at a log's end that are searched for a reason

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(r"^\((?:raylet|autoscaler|[^()]*\bpid=)[^()]*\)\s?(?:\[repeated[^\]]*\]\s?)?")
# the last line of a traceback; not RayTaskError(ValueError): ray::..., whose cause follows it
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Died|Exit)(?:: .*)?$")
_FATAL = (
    (
        re.compile(r"ObjectStoreFullError|[Oo]bject store is full"),
        "Ray's object store is full; give it more (verl.+ray_kwargs.ray_init.object_store_memory, "
        "in bytes), or take fewer sampling.prompts",
    ),
    (
        re.compile(r"OutOfMemoryError|killed due to memory pressure|low on memory"),
        "a worker was killed since its node ran out of memory; lower optim.micro_batch or "
        "verl.actor_rollout_ref.rollout.gpu_memory_utilization",
    ),
    (
        re.compile(r"ActorDiedError|RayActorError|ActorUnavailableError|WorkerCrashedError"
                   r"|NodeDiedError|[Ww]orker died or was killed|actor died unexpectedly"),
        "a worker died",
    ),
)  # fmt: skip


class Job:
    """A process in its own process group; its output goes to `log`.

    On Linux it gets SIGTERM when this process dies.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with writing(log), open(log, "wb") as file:
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                    env={**os.environ, **environment}, start_new_session=True,
                    preexec_fn=partial(_in_the_child, os.getpid()),
                )  # fmt: skip
            except OSError as error:
                raise ValueError(
                    f"verl-python {command[0]!r}: cannot start it: {error.strerror}"
                ) from None
        self._read = 0

    def ended(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._process.poll()

    def broken(self) -> bool:
        """Whether output since the last call reports that a part of the job has died."""
        with open(self.log, "rb") as file:
            file.seek(self._read)
            text = file.read()
        self._read += len(text)
        lines = text.decode("utf-8", "replace").splitlines()
        return any(pattern.search(line) for line in lines for pattern, _ in _FATAL)

    def stop(self) -> None:
        """End the process group: SIGINT first, then SIGTERM, then SIGKILL."""
        try:
            for number, seconds in zip((signal.SIGINT, signal.SIGTERM), _PATIENCE, strict=True):
                with suppress(ProcessLookupError):
                    self._process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(seconds)
                    break
        finally:  # also after a second Ctrl-C
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _in_the_child(parent: int) -> None:
    """End with the parent, and restore SIGINT, which a shell's background job ignores."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if _LIBC is not None:
        _LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # the parent died before prctl
            os._exit(1)


def reason(log: Path) -> str:
    """Summarize in one line, from its log, why a job died.

    This is the last error of the process itself, else of its children. If that is Ray's report that
    a part died, or if there is none but such a report, advice is added.
    """
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - _TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        return f"its log cannot be read: {error.strerror}"
    lines = [_ANSI.sub("", line.rstrip()) for line in text.splitlines()]
    own = _last_error(line for line in lines if not _PREFIX.match(line))
    found = own or _last_error(_PREFIX.sub("", line) for line in lines)
    for pattern, words in _FATAL:
        dead = [line for line in lines if pattern.search(line)]
        if dead and (found is None or pattern.search(found)):
            return f"{words} ({_short(_PREFIX.sub('', dead[-1]))})"
    if found is not None:
        return _short(found)
    said = [line for line in lines if line.strip()]
    return f"it said last: {_short(said[-1])}" if said else "it said nothing"


def _last_error(lines: Iterable[str]) -> str | None:
    return next((line for line in reversed(list(lines)) if _ERROR.match(line)), None)


def _short(line: str) -> str:
    return line.strip()[:400]


def wait(seconds: float) -> None:
    """Sleep; a separate function, so that tests can replace it."""
    time.sleep(seconds)
