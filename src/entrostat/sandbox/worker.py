"""The host's side of an interpreter that forks programs, and the pool of idle ones."""

from __future__ import annotations

import atexit
import base64
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from . import filters
from .inside import frames

_BOOT = (
    "import sys, json; place, fd, mode, code = json.loads(sys.argv[1]); sys.path.insert(0, place); "
    "from inside.zygote import main; sys.path.remove(place); main(fd, mode, code)"
)
_GRACE = 30.0  # seconds beyond a program's limit, after which its interpreter is killed


class Lane:
    """A process that forks programs, one at a time. It ends when this process does.

    Raises:
        ImportError: "seccomp" without pyseccomp or libseccomp.
    """

    def __init__(self, mode: str) -> None:
        code = b""
        if mode != "unsafe":
            with suppress(*((ImportError,) if mode == "namespaces" else ())):
                code = filters.instructions(mode == "seccomp")
        self.mode = mode
        self._socket, theirs = socket.socketpair()
        words = [str(Path(__file__).parent), theirs.fileno(), mode, base64.b64encode(code).decode()]
        base = getattr(sys, "_base_executable", "") or sys.executable
        quiet = subprocess.DEVNULL
        with theirs:
            self._process = subprocess.Popen(
                [base, "-S", "-P", "-s", "-B", "-X", "utf8", "-c", _BOOT, json.dumps(words)],
                stdin=quiet, stdout=quiet, stderr=quiet, pass_fds=[theirs.fileno()], cwd="/",
                env={"PYTHONHASHSEED": "0", "TZ": "UTC"},  # for reproducible programs
                start_new_session=True,
            )  # fmt: skip

    def ask(
        self, order: dict[str, Any], wall: float, descriptor: int | None = None
    ) -> dict[str, Any]:
        """Send an order, with a descriptor if given; returns the answer.

        Raises:
            ConnectionError: the process has ended, or did not answer within `wall` + 30 seconds.
        """
        patience = struct.pack("@ll", int(wall + _GRACE), 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        try:
            frames.send(self._socket.fileno(), order)
            if descriptor is not None:
                socket.send_fds(self._socket, [b"!"], [descriptor])
            return frames.receive(self._socket.fileno())
        except (EOFError, OSError, ValueError) as error:
            self._process.kill()
            raise ConnectionError(f"the interpreter of the sandbox has ended: {error}") from error

    def close(self) -> None:
        self._socket.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_idle: list[Lane] = []
_lock = threading.Lock()


@contextmanager
def lane(mode: str) -> Iterator[Lane]:
    """An idle lane, or a new one; returned to the pool unless an exception is raised."""
    with _lock:
        found = next((lane for lane in _idle if lane.mode == mode), None)
        if found is not None:
            _idle.remove(found)
    found = found or Lane(mode)
    try:
        yield found
    except BaseException:
        found.close()
        raise
    with _lock:
        _idle.append(found)


def close_idle() -> None:
    with _lock:
        ended, _idle[:] = list(_idle), []
    for each in ended:
        each.close()


def _forget() -> None:
    """In a forked process, drop the parent's lanes."""
    global _lock
    _lock = threading.Lock()
    for each in _idle:
        each._socket.close()
    _idle.clear()


atexit.register(close_idle)
os.register_at_fork(after_in_child=_forget)
