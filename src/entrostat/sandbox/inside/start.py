"""Forking a program into its isolation, and ending it with all that it has started."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from . import jail, kernel
from .bodies import ANSWERS, settle

_TOLD = 3  # descriptor: what a process says before it becomes the program
_LINUX = sys.platform == "linux"


@dataclass
class Isolation:
    mode: str  # "namespaces", "seccomp" or "unsafe"
    paths: list[str]  # with namespaces, what a program may read
    filter: bytes  # instructions of the filter of system calls, b"" for none
    inherited: int  # bytes of address space that a program starts with


@dataclass
class Started:
    """A program that runs, and our ends of its pipes."""

    pid: int  # its process; with namespaces the first of its pid namespace, so that all end with it
    # stdin, stdout, stderr, what went wrong before it ran, orders, answers; -1 for those that it
    # lacks
    pipes: list[int]
    home: str  # its directory as it is here, "" where it has none of its own
    mode: str  # its isolation's
    files: int = -1  # the same, open, where it serves; else -1
    broken: str = ""  # why it could not be isolated; "" where it was
    _ended: tuple[int, float] | None = None

    def ended(self) -> tuple[int, float] | None:
        """Its exit code, negative for a signal, and seconds of processor time; None if it runs."""
        if self._ended is None:
            pid, status, used = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self._ended = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        return self._ended

    def end(self) -> None:
        """Kill it and all that it has started, and wait until they are gone."""
        if self.mode != "namespaces":
            _end_tree(self.pid, self._ended is None)
        elif self._ended is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        for fd in (*self.pipes, self.files):
            if fd >= 0:
                os.close(fd)
        if self.home:
            shutil.rmtree(self.home, ignore_errors=True)


def start(
    isolation: Isolation, limits: dict[str, Any], body: Callable[[Callable[[], None]], NoReturn],
    orders: int | None = None, serves: bool = False,
) -> Started:  # fmt: skip
    """Fork a program; it runs, or could not be isolated, when this returns.

    `body` is what it does; called with what takes its last rights. `orders` is a descriptor for it,
    which it takes over; a program that `serves` has pipes for orders and answers.
    """
    ends = [os.pipe() for _ in range(3)]
    ends[0] = ends[0][::-1]  # stdin, which it reads
    told, tell = socket.socketpair()
    ends.append((told.detach(), tell.detach()))
    if serves:
        ends += [os.pipe()[::-1], os.pipe()]
    ours, theirs = ([pair[side] for pair in ends] for side in (0, 1))
    if orders is not None:
        theirs.append(orders)
    hear, go = os.pipe()
    apart = isolation.mode == "namespaces"
    home = tempfile.mkdtemp(prefix="entrostat-") if isolation.mode == "unsafe" else ""
    pid = kernel.fork_into(*kernel.NAMESPACES) if apart else os.fork()
    if not pid:
        _live(isolation, limits, body, theirs, hear, home, serves)
    for fd in (hear, *theirs):
        os.close(fd)
    started = Started(pid, ours + [-1] * (ANSWERS + 1 - len(ours)), home, isolation.mode)
    try:
        if apart:
            jail.map_users(pid)
        os.write(go, b"!")
    except OSError as error:
        started.broken = f"naming the users of a namespace: {error}"
    finally:
        os.close(go)
    with socket.socket(fileno=os.dup(ours[_TOLD])) as end:  # until it closes its end
        said, fds, _, _ = socket.recv_fds(end, 1, 1)
        started.files = fds[0] if fds else -1
        while data := end.recv(1000):
            said += data
    started.broken = started.broken or said[1:].decode(errors="replace")
    return started


def _live(
    isolation: Isolation, limits: dict[str, Any], body: Callable[[Callable[[], None]], NoReturn],
    fds: list[int], hear: int, home: str, serves: bool,
) -> NoReturn:  # fmt: skip
    """The program's process: isolates itself, then does what it is for."""
    try:
        apart, hear = isolation.mode == "namespaces", _arrange([*fds, hear])
        if os.read(hear, 1) != b"!":
            os._exit(1)
        os.close(hear)
        if apart:
            jail.enter(isolation.paths, limits["disk"])
            home = jail.HOME
            _tell(b"!", home if serves else "")
            jail.drop_rights()
        else:
            os.setsid()
            _tell(b"!", "")
            if isolation.mode == "seccomp":
                jail.become_nobody()
        if _LINUX:
            kernel.forbid_new_rights()
            kernel.set_dumpable(True)  # as changing the user has it no more
            kernel.die_with_parent()
            if _closed(_TOLD):
                os._exit(1)
        # without namespaces of its own it shares its user's processes
        settle(limits, home or "/", limits["processes"] if apart else None, isolation.inherited)
    except BaseException as error:
        with suppress(OSError):
            os.write(_TOLD, f"!{error}".encode(errors="replace")[:900])
        os._exit(1)
    os.close(_TOLD)
    try:
        code = isolation.filter
        body(lambda: kernel.install_filter(code) if code else None)
    finally:
        os._exit(1)


def _arrange(fds: list[int]) -> int:
    """Have these descriptors as 0, 1, 2, ... and no others; the last."""
    high = [os.dup2(fd, 200 + at, inheritable=False) for at, fd in enumerate(fds)]
    for at, fd in enumerate(high):
        os.dup2(fd, at, inheritable=at < _TOLD)
    os.closerange(len(fds), 4096)
    return len(fds) - 1


def _tell(word: bytes, path: str) -> None:
    """Say something, and hand over a directory."""
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY)] if path else []
    with socket.socket(fileno=os.dup(_TOLD)) as end:
        socket.send_fds(end, [word], fds)
    for fd in fds:
        os.close(fd)


def _closed(fd: int) -> bool:
    """Whether nobody has the other end any more."""
    watch = select.poll()
    watch.register(fd, 0)
    return bool(watch.poll(0))


def _end_tree(pid: int, unreaped: bool) -> None:
    """Kill a process with its group, and its descendants wherever they have gone."""
    if unreaped:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:  # orphans become our children (`adopt_orphans`)
            for other in descendants(os.getpid()):
                with suppress(OSError):
                    os.kill(other, signal.SIGKILL)
            if not os.waitpid(-1, os.WNOHANG)[0]:
                select.select([], [], [], 0.001)


def descendants(pid: int) -> list[int]:
    """Processes below one, as far as /proc tells."""
    found, todo = [], [pid]
    while todo:
        at = todo.pop()
        with suppress(OSError, ValueError):
            for thread in os.listdir(f"/proc/{at}/task"):
                with open(f"/proc/{at}/task/{thread}/children") as file:
                    children = [int(word) for word in file.read().split()]
                found += children
                todo += children
    return found
