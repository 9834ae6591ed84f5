"""Code of a forked process: run one program, or serve a session, in isolation."""

from __future__ import annotations

import atexit
import builtins
import gc
import io
import json
import linecache
import os
import random
import resource
import sys
import threading
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from . import frames

_STACK = 128 << 20  # most bytes of a thread's stack
OUT_OF_MEMORY = 251  # exit code
ORDERS, ANSWERS = 4, 5  # descriptors, if the process has them
_STDIN = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_OURS = os.path.dirname(__file__)


def settle(limits: dict[str, Any], home: str, processes: int | None, inherited: int) -> None:
    """Limit this process and make it look like a newly started interpreter.

    `limits` is `Limits` as a dictionary; a `cpu` of None sets no limit of processor time.
    `processes` is the limit for this user; None for no such limit. `inherited` is the address space
    that this process already has, bytes.
    """
    bounds = {
        "AS": limits["memory"] + inherited,
        "FSIZE": limits["file_size"],
        "CORE": 0,
        "NOFILE": 64,
        "MSGQUEUE": 0,
    }
    if limits["cpu"] is not None:
        bounds["CPU"] = max(1, -int(-limits["cpu"] // 1))
    if processes is not None:
        bounds["NPROC"] = processes
    for name, bound in bounds.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is not None:
            most = resource.getrlimit(kind)[1]
            if most != resource.RLIM_INFINITY:
                bound = min(bound, most)
            with suppress(ValueError, OSError):  # macOS does not implement all of them
                resource.setrlimit(kind, (bound, bound))
    os.chdir(home)
    os.environ.clear()
    os.environ |= {"HOME": home, "TMPDIR": home, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    sys.argv[:] = ["program.py"]
    sys.path.insert(0, "")
    for name in [name for name in sys.modules if name.partition(".")[0] == __package__]:
        del sys.modules[name]
    threading.stack_size = _stack_size
    random.seed(0)  # makes programs reproducible
    gc.enable()


def run(source: str, harden: Callable[[], None]) -> NoReturn:
    """Drop the remaining rights with `harden`, then run a program like `python program.py`."""
    harden()
    builtins.open = io.open = _open  # /dev/stdin does not exist here
    _end(execute(source, "<program>", module("__main__")))


def _open(file: Any, *arguments: Any, _plain: Any = open, **named: Any) -> Any:
    return _plain(os.dup(0) if str(file) in _STDIN else file, *arguments, **named)


def _stack_size(size: int = 0, _plain: Any = threading.stack_size) -> int:
    """Cap the stack size so that it fits in memory; Python's own calls do not use that stack."""
    return _plain(min(size, _STACK))


def module(name: str) -> dict[str, Any]:
    """Create a module in `sys.modules`; returns its namespace."""
    made = types.ModuleType(name)
    sys.modules[name] = made
    return vars(made)


def execute(source: str, name: str, namespace: dict[str, Any]) -> int:
    """Execute source code; returns the exit code, 1 after an exception (traceback on stderr)."""
    lines = [f"{line}\n" for line in source.splitlines()]
    linecache.cache[name] = (len(source), None, lines, name)
    try:
        exec(compile(source, name, "exec", dont_inherit=True), namespace)  # noqa: S102
    except SystemExit as error:
        return _exit_code(error.code)
    except MemoryError as error:
        traceback.clear_frames(error.__traceback__)
        os.write(2, b"MemoryError\n")
        return OUT_OF_MEMORY
    except BaseException as error:
        say(error)
        return 1
    return 0


def say(error: BaseException) -> None:
    """Print an exception with its traceback, without the sandbox's own frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    with suppress(Exception):  # printing may run the program's code
        traceback.print_exception(type(error), error, trace)


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    with suppress(Exception):
        sys.stderr.write(f"{code}\n")
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):  # closed, replaced, or without a reader
            stream.flush()


def _end(code: int) -> NoReturn:
    """Exit as an interpreter does: join threads, run exit functions, flush."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException as error:
        say(error)
    _flush()
    os._exit(code)


def serve(harden: Callable[[], None]) -> NoReturn:
    """Drop the remaining rights with `harden`, then execute sources in one namespace."""
    harden()
    here, namespace, turn = os.getpid(), module("__main__"), 0
    while True:
        try:
            source = frames.receive(ORDERS)
        except EOFError:
            _end(0)
        code = execute(source, f"<turn {turn}>" if turn else "<setup>", namespace)
        turn += 1
        if os.getpid() != here:  # a child that the program forked has returned
            _end(code)
        _flush()
        os.write(ANSWERS, json.dumps({"code": code}).encode() + b"\n")
