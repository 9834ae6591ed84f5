"""The pool: one thread per worker sends it one call after another and enforces the time limit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from .._processors import processors
from ..errors import in_one_line
from . import server
from .wire import HEADER, Call, decode_reply, encode_call, reply_length

Failure = Literal["raised", "timed out", "died"]
MEMORY = 2 << 30
LONGEST = 10**6  # seconds of a call; sockets take no more than some 290 years
_BOOT = (
    "import json, sys; path, arguments = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from entrostat.workers.server import main; main(*arguments)"
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call."""

    value: Any = None  # the returned value
    # None; or "raised", "timed out", "died" (the worker died during this call)
    failure: Failure | None = None
    detail: str = ""  # the exception, the time limit, or how the worker ended


def tried(call: Callable[..., Any], *arguments: Any) -> Outcome:
    """Make a call in this process; only KeyboardInterrupt propagates."""
    try:
        return Outcome(call(*arguments))
    except (Exception, SystemExit) as error:
        return Outcome(None, "raised", in_one_line(error))


class _Worker:
    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid, self._socket = pid, connection

    def quiet(self) -> bool:
        """Whether the worker is alive and has sent nothing unasked."""
        self._socket.setblocking(False)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def ask(self, frame: bytes, timeout: float) -> tuple[bool, Any]:
        """Send a call; returns (True, the value) or (False, the exception as text).

        Raises:
            TimeoutError: no whole reply within `timeout` seconds.
            OSError: the worker has ended.
            ValueError: the worker sent something other than a reply.
        """
        end = time.monotonic() + timeout
        self._socket.settimeout(timeout)
        self._socket.sendall(frame)
        length = reply_length(self._receive(HEADER.size, end))
        return decode_reply(self._receive(length, end))

    def _receive(self, count: int, end: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            piece = self._socket.recv(min(count - len(data), 1 << 16))
            if not piece:
                raise ConnectionError
            data += piece
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


class Pool:
    """Worker processes, started when first needed and kept until `close`.

    Args:
        prepare: calls made once before any worker starts; every worker inherits their imports and
            caches.
        workers: most processes; None for one per processor, at most 16.
        memory: bytes that a worker may use beyond those it starts with; a call that needs more
            fails. Linux only.
        patience: time limit of the `prepare` calls, seconds.
    """

    def __init__(
        self,
        prepare: Sequence[Call] = (),
        workers: int | None = None,
        memory: int = MEMORY,
        patience: int = 300,
    ) -> None:
        self._prepare = list(prepare)
        self._most = workers or min(16, processors())
        self._memory, self._patience = memory, patience
        self._server: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._idle: list[_Worker] = []
        self._pids: set[int] = set()  # of all workers
        self._one_at_a_time = threading.Lock()
        self._with_server = threading.Lock()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def map(self, calls: Sequence[Call], timeout: float) -> list[Outcome]:
        """Make the calls; returns an outcome for each, in order.

        Raises:
            ValueError: arguments are not plain data, or a `prepare` call raised.
            RuntimeError: the server process could not be started.
        """
        if not 0 < timeout <= LONGEST:
            raise ValueError(f"timeout must be in (0, {LONGEST}] seconds, got {timeout}")
        waiting = deque(enumerate(map(encode_call, calls)))
        outcomes = [Outcome()] * len(calls)
        at_once = min(self._most, len(calls))
        with self._one_at_a_time, ThreadPoolExecutor(max(1, at_once)) as threads:
            work = [threads.submit(self._work, waiting, outcomes, timeout) for _ in range(at_once)]
            try:
                for each in work:
                    each.result()
            except BaseException:  # Ctrl-C: abandon the running calls
                waiting.clear()
                for pid in list(self._pids):
                    self._kill(pid)  # ends the wait of the worker's thread
                raise
        return outcomes

    def close(self) -> None:
        """End all processes. Using the pool again restarts them."""
        for worker in self._idle:
            worker.close()
        self._idle, self._pids = [], set()
        if self._server is not None:
            process, control = self._server
            self._server = None
            control.close()  # the server then kills the workers and ends
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _work(
        self, waiting: deque[tuple[int, bytes]], outcomes: list[Outcome], timeout: float
    ) -> None:
        while waiting:
            worker = self._take()
            try:
                place, frame = waiting.popleft()
            except IndexError:
                self._idle.append(worker)
                return
            outcomes[place] = self._make(worker, frame, timeout)

    def _make(self, worker: _Worker, frame: bytes, timeout: float) -> Outcome:
        """Make one call; the worker is kept unless it hung or died."""
        try:
            returned, said = worker.ask(frame, timeout)
        except TimeoutError:
            self._end(worker)
            return Outcome(None, "timed out", f"it took longer than {timeout:g} s")
        except OSError:
            return Outcome(None, "died", self._how(self._end(worker)))
        except ValueError as error:
            self._end(worker)
            return Outcome(None, "died", str(error))
        self._idle.append(worker)
        return Outcome(said) if returned else Outcome(None, "raised", said)

    def _how(self, code: int | None) -> str:
        if code == server.OUT_OF_MEMORY:
            return f"its process ran out of the {self._memory / 2**20:.0f} MiB it may take"
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"its process was ended by {signal.Signals(-code).name}"
        return "its process ended" if code is None else f"its process ended with exit code {code}"

    def _take(self) -> _Worker:
        with suppress(IndexError):
            while not (worker := self._idle.pop()).quiet():
                self._end(worker)
            return worker
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._with_server:
                pid = self._tell(server.START, 0, theirs)
                if pid is None:  # the server has died: retry with a new one
                    pid = self._tell(server.START, 0, theirs)
                if pid is None:
                    raise RuntimeError("the process that starts workers has died twice")
                self._pids.add(pid)
        except BaseException:
            ours.close()
            raise
        return _Worker(pid, ours)

    def _end(self, worker: _Worker) -> int | None:
        """Kill a worker and its process group; returns its exit code, if known."""
        worker.close()
        return self._kill(worker.pid)

    def _kill(self, pid: int) -> int | None:
        with self._with_server:
            self._pids.discard(pid)
            return None if self._server is None else self._tell(server.END, pid)

    def _tell(self, order: bytes, pid: int, theirs: socket.socket | None = None) -> int | None:
        """Send an order; returns the server's answer, or None if it died, with all its workers."""
        process, control = self._server or self._start_server()
        message, answer = [server.ORDER.pack(order, pid)], b""
        with suppress(OSError):
            if theirs is None:
                control.sendall(message[0])
            else:
                socket.send_fds(control, message, [theirs.fileno()])
            answer = control.recv(server.ANSWER.size, socket.MSG_WAITALL)
        if len(answer) == server.ANSWER.size:
            return server.ANSWER.unpack(answer)[0]
        for pid in self._pids:  # needed elsewhere; Linux has ended them already
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        self._pids.clear()
        control.close()
        process.kill()
        process.wait()
        self._server = None
        return None

    def _start_server(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        path = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
        arguments = [theirs.fileno(), self._prepare, self._memory, self._patience]
        command = [sys.executable, "-I", "-c", _BOOT, json.dumps([path, arguments])]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        quiet = subprocess.DEVNULL  # discard what scorers print
        with theirs:
            process = subprocess.Popen(
                command, stdin=quiet, stdout=quiet, stderr=quiet, pass_fds=[theirs.fileno()],
                env=os.environ | threads, start_new_session=True,  # no Ctrl-C for workers
            )  # fmt: skip
        try:
            with ours.makefile("rb") as lines:
                said = lines.readline()
            late = f"it took over {self._patience} s, or died"
            raised = json.loads(said)["raised"] if said else late
            if raised is not None:
                names = ", ".join(call.function for call in self._prepare) or "nothing"
                kind = ValueError if said else RuntimeError
                raise kind(f"a process for workers, preparing {names}: {raised}")
        except BaseException:
            process.kill()
            process.wait()
            ours.close()
            raise
        self._server = process, ours
        return self._server
