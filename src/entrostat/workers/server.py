"""The server process that forks workers, and the worker's loop.

The server has imported what workers need and holds nothing else: one thread, no GPU, no model. So a
fork takes milliseconds, and workers share memory. The training process is never forked.

The server ends when the process that started it ends, in any way, because the control socket
closes. It kills its workers first. If the server itself is killed, Linux kills them.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, reduce
from typing import Any, NoReturn

from ..errors import in_one_line
from .wire import HEADER, decode_call, encode_reply

ORDER = struct.Struct("!cq")  # order: START, with a socket; END, with a worker's pid
ANSWER = struct.Struct("!q")  # the new worker's pid, or the exit code, negative for a signal
START, END = b"s", b"e"
OUT_OF_MEMORY = 77  # exit code of a worker
_PR_SET_PDEATHSIG = 1


def main(control_fd: int, prepare: list[tuple[str, list[Any]]], memory: int, limit: int) -> None:
    """Prepare, then fork and end workers on orders from a socket, until its other end is gone.

    The `prepare` calls are made here, so every worker inherits their imports and caches. If they
    take longer than `limit` seconds, the kernel ends this process. `memory` as in `Pool`.
    """
    parent = os.getppid()
    control = socket.socket(fileno=control_fd)
    signal.alarm(limit)
    try:
        for function, arguments in prepare:
            find_function(function)(*arguments)
    except BaseException as error:  # includes SystemExit raised by a module
        control.sendall(_line({"raised": in_one_line(error)}))
        return
    signal.alarm(0)
    gc.collect()
    gc.freeze()  # a garbage collection would write to, and so copy, every shared page
    control.sendall(_line({"raised": None}))
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    workers: set[int] = set()
    try:
        while True:
            ready, _, _ = select.select([control], [], [], 1.0)
            if os.getppid() != parent:  # a fork of the parent may still hold the other end
                return
            if not ready:
                continue
            data, fds, _, _ = socket.recv_fds(control, ORDER.size, 1)
            if len(data) < ORDER.size:
                return
            order, pid = ORDER.unpack(data)
            if order == START:
                pid = _start(control, fds[0], memory, libc)
                workers.add(pid)
                control.sendall(ANSWER.pack(pid))
            else:
                code = _end(pid) if pid in workers else -signal.SIGKILL
                workers.discard(pid)
                control.sendall(ANSWER.pack(code))
    finally:
        for pid in workers:
            _end(pid)


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data).encode() + b"\n"


def _start(control: socket.socket, fd: int, memory: int, libc: Any) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid:
        os.close(fd)
        with suppress(OSError):  # the child may have ended
            os.setpgid(pid, pid)  # in both processes, to avoid a race
        return pid
    try:
        control.close()
        os.setpgid(0, 0)
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:
                os._exit(1)
        _limit(memory)
        work(socket.socket(fileno=fd))
    finally:
        os._exit(1)


def _limit(memory: int) -> None:
    """Limit this process's private memory, beyond the inherited part."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # RLIMIT_DATA means something else on other systems
        with open("/proc/self/statm") as file:
            inherited = int(file.read().split()[5]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = inherited + memory
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _end(pid: int) -> int:
    """Kill a worker and its group; returns its own exit code if it had ended, else SIGKILL's.

    The pid cannot be reused before `waitpid`.
    """
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def work(connection: socket.socket) -> NoReturn:
    """Answer calls, one after another, until the connection closes."""
    calls = connection.makefile("rb")
    while True:
        header = calls.read(HEADER.size)
        if len(header) < HEADER.size:
            os._exit(0)
        try:
            call = decode_call(calls.read(HEADER.unpack(header)[0]))
            reply = encode_reply(find_function(call.function)(*call.arguments))
        except MemoryError:  # too little memory may be left for other calls
            os._exit(OUT_OF_MEMORY)
        except BaseException as error:  # includes SystemExit: a call must not end the worker
            reply = encode_reply(raised=f"{in_one_line(error)}{_place(error)}")
        connection.sendall(reply)


@cache
def find_function(name: str) -> Callable[..., Any]:
    """Import the module of MODULE:FUNCTION and return the function."""
    module, _, function = name.partition(":")
    found: Any = importlib.import_module(module)
    return reduce(getattr, function.split("."), found)


def _place(error: BaseException) -> str:
    """File and line of an error; "" if it was raised in this module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code.co_filename == __file__:
        return ""
    return f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}, line {trace.tb_lineno})"
