"""Watching a program: its output, time and memory."""

from __future__ import annotations

import json
import math
import os
import resource
import selectors
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from .bodies import OUT_OF_MEMORY
from .start import Started, descendants

_STDIN, _STDOUT, _STDERR, _ANSWERS, _END, _HOST = 0, 1, 2, 5, -1, -2
_ANSWER = 1024  # most bytes of a session's answer
_LOOK = 0.05  # seconds between checks of the memory of all processes
_PAGE = resource.getpagesize()


class HostGone(Exception):  # noqa: N818 - not an error
    """The host no longer waits for the result."""


@dataclass
class Watch:
    """One run of a program, or one turn of a session."""

    started: Started  # the program
    limits: dict[str, Any]  # `Limits` as a dictionary
    host: int  # descriptor that becomes readable when the host has gone
    inherited: int  # bytes of private memory that each process shares with this one
    _texts: dict[int, bytearray] = field(default_factory=dict)
    _said: bytearray = field(default_factory=bytearray)
    _cut: bool = False

    def run(self, stdin: bytes | None) -> dict[str, Any]:
        """Feed a program until it ends or exceeds a limit; returns `Result` as a dictionary.

        Without `stdin`, wait for a session's answer to an order; "over" is True if it has ended.
        """
        serves = stdin is None
        began, wall = time.monotonic(), self.limits["wall"]
        pipes, self._said = self.started.pipes, bytearray()
        self._texts, self._cut = {_STDOUT: bytearray(), _STDERR: bytearray()}, False
        failure, left, looked = None, memoryview(stdin or b""), began
        running = hasattr(os, "pidfd_open") and not self.started.ended()
        end = os.pidfd_open(self.started.pid) if running else -1
        with selectors.DefaultSelector() as ready:
            for at in (_STDOUT, _STDERR, *((_ANSWERS,) if serves else ())):
                ready.register(pipes[at], selectors.EVENT_READ, at)
            ready.register(self.host, selectors.EVENT_READ, _HOST)
            if end >= 0:
                ready.register(end, selectors.EVENT_READ, _END)
            if not serves:
                os.set_blocking(pipes[_STDIN], False)
                ready.register(pipes[_STDIN], selectors.EVENT_WRITE, _STDIN)
            while failure is None and not self.started.ended() and b"\n" not in self._said:
                now = time.monotonic()
                if now >= began + wall:
                    failure = "timed out", f"it took longer than {wall:g} s"
                    break
                if now >= looked + _LOOK:
                    looked, failure = now, self._memory()
                for key, _ in ready.select(min(began + wall - now, _LOOK)):
                    if key.data == _HOST:
                        raise HostGone
                    if key.data == _STDIN:
                        left = self._feed(left)
                        if not left:
                            ready.unregister(key.fd)
                            os.close(key.fd)
                            pipes[_STDIN] = -1
                    elif key.data != _END and not self._read(key.data):
                        ready.unregister(key.fd)
                if self._cut and not serves:
                    failure = "too much output", self._words_of_output()
        if end >= 0:
            os.close(end)
        if serves and failure is None and b"\n" not in self._said:
            os.set_blocking(pipes[_ANSWERS], False)
            with suppress(BlockingIOError):  # the session may have answered and then ended
                while b"\n" not in self._said and len(self._said) <= _ANSWER:
                    if not self._read(_ANSWERS):
                        break
            os.set_blocking(pipes[_ANSWERS], True)
        return self._drained(self._result(failure) | {"seconds": time.monotonic() - began})

    def _drained(self, result: dict[str, Any]) -> dict[str, Any]:
        """Add the output that is still in the pipes."""
        for at in (_STDOUT, _STDERR):
            os.set_blocking(self.started.pipes[at], False)
            with suppress(BlockingIOError):
                while self._read(at):
                    if len(self._texts[at]) > self.limits["output"]:
                        break
        for name, at in (("stdout", _STDOUT), ("stderr", _STDERR)):
            kept = self._texts[at][: self.limits["output"]]
            result[name] = kept.decode(errors="replace")
        if self._cut and result["failure"] is None:
            result |= {"failure": "too much output", "detail": self._words_of_output()}
        return result

    def _feed(self, left: memoryview) -> memoryview:
        try:
            return left[os.write(self.started.pipes[_STDIN], left[: 1 << 16]) :]
        except BlockingIOError:
            return left
        except OSError:  # the program has closed its stdin
            return left[:0]

    def _read(self, at: int) -> int:
        """Read from a pipe and keep the data up to its limit; returns the number of bytes read."""
        data = os.read(self.started.pipes[at], 1 << 16)
        kept = self._texts.get(at, self._said)
        most = self.limits["output"] if at in self._texts else _ANSWER
        kept += data[: max(0, most + 1 - len(kept))]
        self._cut |= at in self._texts and len(kept) > most
        return len(data)

    def _words_of_output(self) -> str:
        return f"it wrote more than {self.limits['output']} bytes"

    def _memory(self) -> tuple[str, str] | None:
        """Failure if all processes together exceed the memory; the kernel limits each one."""
        pids, total = [self.started.pid, *descendants(self.started.pid)], 0
        if len(pids) > self.limits["processes"]:  # with namespaces the kernel enforces this
            return "killed", f"it had more than {self.limits['processes']} processes"
        if len(pids) > 1:
            for pid in pids:
                with suppress(OSError, ValueError, IndexError):
                    with open(f"/proc/{pid}/statm") as file:
                        numbers = file.read().split()
                    total += max(0, (int(numbers[1]) - int(numbers[2])) * _PAGE - self.inherited)
        if total <= self.limits["memory"]:
            return None
        return "out of memory", f"its {len(pids)} processes took {total >> 20} MiB together"

    def _result(self, failure: tuple[str, str] | None) -> dict[str, Any]:
        """How the program ended, or the session's answer."""
        result: dict[str, Any] = {"code": None, "failure": None, "detail": "", "over": True}
        if failure is not None:
            return result | {"failure": failure[0], "detail": failure[1]}
        if b"\n" not in self._said:
            code, seconds = self.started.ended() or (0, 0.0)
            return result | self._ended(code, seconds)
        try:
            code = json.loads(self._said)["code"]
            assert isinstance(code, int)
        except (ValueError, KeyError, TypeError, AssertionError):
            return result | {"failure": "killed", "detail": "it wrote to our pipes"}
        ended = self._ended(code, 0.0) if code == OUT_OF_MEMORY else {"code": code}
        return result | {"over": False} | ended

    def _ended(self, code: int, seconds: float) -> dict[str, Any]:
        limits = self.limits
        if code == OUT_OF_MEMORY:
            words = f"it took more than {limits['memory'] >> 20} MiB"
            return {"failure": "out of memory", "detail": words}
        if code >= 0:
            return {"code": code}
        by = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        # the limit counts whole ticks, these seconds do not; they differ much on a busy machine
        if by in ("SIGKILL", "SIGXCPU") and seconds >= 0.5 * (limits["cpu"] or math.inf):
            words = f"it took more than {limits['cpu']:g} s of processor time"
            return {"failure": "timed out", "detail": words}
        return {"failure": "killed", "detail": f"by {by}"}
