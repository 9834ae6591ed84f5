"""Forking a program into isolation, and ending it with all its descendants."""

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

_TOLD = 3  # descriptor: messages of the process before the program starts
_LINUX = sys.platform == "linux"


@dataclass
class Isolation:
    mode: str  # "namespaces", "seccomp" or "unsafe"
    paths: list[str]  # paths that a program may read, with namespaces
    filter: bytes  # BPF instructions, b"" for no filter
    inherited: int  # bytes of address space that a program starts with


@dataclass
class Started:
    """A running program, and the host's ends of its pipes."""

    pid: int  # with namespaces, the first process of its pid namespace, so all end with it
    # stdin, stdout, stderr, errors before the program started, orders, answers; -1 for missing ones
    pipes: list[int]
    home: str  # path of its own directory outside, "" if it has none
    mode: str  # of its isolation
    files: int = -1  # open descriptor of its directory, with namespaces if it serves; else -1
    broken: str = ""  # why it could not be isolated; "" if it was
    _ended: tuple[int, float] | None = None

    def ended(self) -> tuple[int, float] | None:
        """Its exit code, negative for a signal, and seconds of processor time; None if it runs."""
        if self._ended is None:
            pid, status, used = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self._ended = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        return self._ended

    def end(self) -> None:
        """Kill the program and its descendants, and wait until they are gone."""
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
    """Fork a program; on return it runs, or its isolation has failed.

    `body` is called in the process, with a function that drops its remaining rights. `orders` is a
    descriptor that it takes over. A program that `serves` has pipes for orders and answers.
    """
    ends = [os.pipe() for _ in range(3)]
    ends[0] = ends[0][::-1]  # stdin has the opposite direction
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
    with socket.socket(fileno=os.dup(ours[_TOLD])) as end:  # until the program closes its end
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
    """The program's process: isolates itself, then calls `body`."""
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
            kernel.set_dumpable(True)  # changing the user has reset it
            kernel.die_with_parent()
            if _closed(_TOLD):
                os._exit(1)
        # without namespaces, the limit would count all processes of the user
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
    """Renumber descriptors to 0, 1, 2, ... and close all others; returns the last."""
    high = [os.dup2(fd, 200 + at, inheritable=False) for at, fd in enumerate(fds)]
    for at, fd in enumerate(high):
        os.dup2(fd, at, inheritable=at < _TOLD)
    os.closerange(len(fds), 4096)
    return len(fds) - 1


def _tell(word: bytes, path: str) -> None:
    """Send a message, and a descriptor of a directory."""
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY)] if path else []
    with socket.socket(fileno=os.dup(_TOLD)) as end:
        socket.send_fds(end, [word], fds)
    for fd in fds:
        os.close(fd)


def _closed(fd: int) -> bool:
    """Whether the other end is closed."""
    watch = select.poll()
    watch.register(fd, 0)
    return bool(watch.poll(0))


def _end_tree(pid: int, unreaped: bool) -> None:
    """Kill a process with its group, and its descendants in other groups."""
    if unreaped:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:  # orphans become children of this process (`adopt_orphans`)
            for other in descendants(os.getpid()):
                with suppress(OSError):
                    os.kill(other, signal.SIGKILL)
            if not os.waitpid(-1, os.WNOHANG)[0]:
                select.select([], [], [], 0.001)


def descendants(pid: int) -> list[int]:
    """Descendants of a process, by /proc."""
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
