"""The process that forks workers, and what a worker does.

Workers are forked from a process that has imported what they need and holds nothing else: it has
one thread, no GPU, no model. So a new worker is there in milliseconds, and shares its memory with
the others. The process that trains is never forked.

The server ends with the process that started it, however that ended: the control socket closes.
It kills its workers first. Should the server itself be killed, Linux kills them.
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

ORDER = struct.Struct("!cq")  # what to do: START, with a socket; END, with a worker's pid
ANSWER = struct.Struct("!q")  # the new worker's pid; the exit code, negative for a signal
START, END = b"s", b"e"
OUT_OF_MEMORY = 77  # exit code of a worker
_PR_SET_PDEATHSIG = 1


def main(control_fd: int, prepare: list[tuple[str, list[Any]]], memory: int, limit: int) -> None:
    """Prepare, then fork and end workers as told through a socket, until whoever tells is gone.

    The calls `prepare` are made here, so that what they import and cache is there in every worker;
    after `limit` seconds the kernel ends this process. `memory` as of `Pool`.
    """
    parent = os.getppid()
    control = socket.socket(fileno=control_fd)
    signal.alarm(limit)
    try:
        for function, arguments in prepare:
            find_function(function)(*arguments)
    except BaseException as error:  # also what a module raises to end the program
        control.sendall(_line({"raised": in_one_line(error)}))
        return
    signal.alarm(0)
    gc.collect()
    gc.freeze()  # a collection would touch, and so copy, every shared page
    control.sendall(_line({"raised": None}))
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    workers: set[int] = set()
    try:
        while True:
            ready, _, _ = select.select([control], [], [], 1.0)
            if os.getppid() != parent:  # a fork of it may still hold the other end
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
            os.setpgid(pid, pid)  # here as well, so that it has happened whoever comes first
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
    """Bound this process' private memory; what it inherited does not count."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere it is another thing
        with open("/proc/self/statm") as file:
            inherited = int(file.read().split()[5]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = inherited + memory
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _end(pid: int) -> int:
    """Kill a worker and its group; its exit code if it had ended by itself, else that of SIGKILL.

    The pid is ours until it is waited for, so nothing else can bear it.
    """
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def work(connection: socket.socket) -> NoReturn:
    """Answer calls, one after the other, until the connection closes."""
    calls = connection.makefile("rb")
    while True:
        header = calls.read(HEADER.size)
        if len(header) < HEADER.size:
            os._exit(0)
        try:
            call = decode_call(calls.read(HEADER.unpack(header)[0]))
            reply = encode_reply(find_function(call.function)(*call.arguments))
        except MemoryError:  # what is left may be too little for any other call
            os._exit(OUT_OF_MEMORY)
        except BaseException as error:  # SystemExit too: a call does not end a worker
            reply = encode_reply(raised=f"{in_one_line(error)}{_place(error)}")
        connection.sendall(reply)


@cache
def find_function(name: str) -> Callable[..., Any]:
    """The function that MODULE:FUNCTION names, its module imported."""
    module, _, function = name.partition(":")
    found: Any = importlib.import_module(module)
    return reduce(getattr, function.split("."), found)


def _place(error: BaseException) -> str:
    """Where it was raised, if not in a call's own machinery."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code.co_filename == __file__:
        return ""
    return f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}, line {trace.tb_lineno})"
