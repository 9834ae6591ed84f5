"""The process that forks programs, one at a time, on orders from the host."""

from __future__ import annotations

import base64
import ctypes
import gc
import importlib
import os
import resource
import socket
import stat
import sys
import time
from contextlib import suppress
from typing import Any

from . import frames, jail, kernel
from .bodies import run, serve
from .judge import judge
from .start import Isolation, Started, start
from .watch import HostGone, Watch

# imported before forking; with the filter alone programs can import nothing else
PRELOADED = """
abc argparse array ast base64 binascii bisect builtins calendar cmath codecs collections
collections.abc colorsys contextlib copy csv ctypes dataclasses datetime decimal difflib enum errno
fractions functools gc getpass glob graphlib hashlib heapq hmac html io ipaddress itertools json
keyword linecache locale logging math numbers operator os os.path pathlib pickle platform pprint
queue random re secrets select shlex shutil signal site socket sqlite3 stat statistics string
stringprep struct subprocess sys tempfile textwrap threading time timeit token tokenize traceback
types typing unicodedata unittest urllib.parse uuid warnings weakref zlib zoneinfo
""".split()

_DEEPEST = 30  # deepest nesting of directories that are read


def main(fd: int, mode: str, code: str) -> None:
    for name in PRELOADED:
        with suppress(ImportError):  # some may be missing in an interpreter
            importlib.import_module(name)
    sys.modules["site"].setquit()  # exit() and quit(), which -S omits
    time.tzset()
    "".encode("idna")  # loads an encoding that is imported on use
    if sys.platform == "linux":
        kernel.adopt_orphans()
    isolation = Isolation(mode, jail.visible(), base64.b64decode(code), 0)
    gc.collect()
    gc.disable()
    gc.freeze()  # a garbage collection would write to, and so copy, every shared page
    zygote = _Zygote(fd, isolation)
    try:
        while True:
            order = frames.receive(fd)
            frames.send(fd, zygote.obey(order))
    except (EOFError, OSError, HostGone):
        pass
    finally:
        zygote.close()


class _Zygote:
    def __init__(self, fd: int, isolation: Isolation) -> None:
        self._fd, self._isolation = fd, isolation
        self._session: Started | None = None
        self._limits: dict[str, Any] = {}
        self._inherited = 0
        if sys.platform == "linux":
            with open("/proc/self/statm") as file:
                size, resident, shared = map(int, file.read().split()[:3])
            isolation.inherited = size * resource.getpagesize()
            self._inherited = (resident - shared) * resource.getpagesize()

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        kind = order.pop("do")
        return getattr(self, f"do_{kind}")(**order)

    def do_run(self, program: str, stdin: str, limits: dict[str, Any]) -> dict[str, Any]:
        started = start(self._isolation, limits, lambda harden: run(program, harden))
        return self._one(started, limits, stdin)

    def do_judge(self, program: str, prelude: str, limits: dict[str, Any]) -> dict[str, Any]:
        """Run a program and tests; the tests' file is passed on without being read here."""
        with socket.socket(fileno=os.dup(self._fd)) as host:
            _, fds, _, _ = socket.recv_fds(host, 1, 1)
        limits = limits | {"processes": limits["processes"] + 1}
        started = start(
            self._isolation, limits, lambda harden: judge(program, prelude, harden), orders=fds[0]
        )
        return self._one(started, limits, "")

    def _one(self, started: Started, limits: dict[str, Any], stdin: str) -> dict[str, Any]:
        watch = Watch(started, limits, self._fd, self._inherited)
        try:
            if started.broken:
                return {"broken": started.broken}
            return watch.run(stdin.encode(errors="replace"))
        finally:
            started.end()

    def do_open(self, limits: dict[str, Any]) -> dict[str, Any]:
        self.close()
        self._limits = limits | {"cpu": None}
        self._session = start(self._isolation, self._limits, serve, serves=True)
        return {"broken": self._session.broken} if self._session.broken else {}

    def do_turn(self, code: str) -> dict[str, Any]:
        session = self._session
        assert session is not None
        watch = Watch(session, self._limits, self._fd, self._inherited)
        with suppress(BrokenPipeError):
            frames.send(session.pipes[4], code)
        result = watch.run(None)
        if result["over"]:
            self.close()
        return result

    def do_files(self) -> dict[str, str]:
        """Texts of the regular files that the session has written, by path."""
        found: dict[str, str] = {}
        if self._session is not None:
            home = self._session.home
            fd = os.open(home, os.O_RDONLY) if home else self._session.files
            if fd >= 0:
                _read_files(fd, "", found, self._limits["disk"])
            if home:
                os.close(fd)
        return found

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.end()


def _read_files(folder: int, prefix: str, found: dict[str, str], left: int) -> int:
    """Read a program's untrusted directory into `found`; returns the remaining byte budget."""
    for name in sorted(os.listdir(folder)) if prefix.count("/") < _DEEPEST else ():
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with suppress(OSError):
            fd = os.open(name, flags, dir_fd=folder)
            try:
                status = os.fstat(fd)
                if stat.S_ISDIR(status.st_mode) and status.st_dev == os.fstat(folder).st_dev:
                    left = _read_files(fd, f"{prefix}{name}/", found, left)
                elif stat.S_ISREG(status.st_mode) and status.st_size <= left:  # it may be sparse
                    with open(fd, "rb", closefd=False) as file:
                        found[prefix + name] = file.read().decode(errors="replace")
                    left -= status.st_size
            finally:
                os.close(fd)
    return left


assert ctypes  # imported before forking, for the filter
