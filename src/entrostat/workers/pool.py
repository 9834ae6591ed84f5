"""The pool: hands calls to workers, watches the clock, puts outcomes in order."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from .._processors import processors
from . import server
from .wire import Call, Frames, decode_reply, encode_call

Failure = Literal["raised", "timed out", "died"]
MEMORY = 2 << 30
_BOOT = (
    "import json, sys; path, arguments = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from entrostat.workers.server import main; main(*arguments)"
)
# a worker is given so many seconds of work ahead, so that it need not wait for us between calls
_AHEAD = 0.005
_MOST_AHEAD = 64


@dataclass(frozen=True)
class Outcome:
    """What became of a call."""

    value: Any = None  # what it gave
    # None; or "raised", "timed out", "died" (its worker did, while it was at this call)
    failure: Failure | None = None
    detail: str = ""  # the exception, the time limit, or how the worker ended


@dataclass(eq=False)
class _Worker:
    """A worker as the pool sees it; `busy` are the calls given to it, the first it is at."""

    pid: int
    socket: socket.socket
    frames: Frames = field(default_factory=Frames)
    outgoing: bytearray = field(default_factory=bytearray)
    busy: deque[int] = field(default_factory=deque)
    since: float = 0.0


class Pool:
    """A few worker processes, started when first needed and kept until `close`.

    Args:
        prepare: calls made once before any worker starts: what they import and cache is there in
            every worker.
        workers: processes at most; None takes one per processor, at most 16.
        memory: bytes that a worker may take beyond what it starts with; a call that takes more
            dies. Linux only.
        patience: seconds that preparing may take.
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
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._pace = _AHEAD  # seconds a call has taken of late
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def map(self, calls: Sequence[Call], timeout: float) -> list[Outcome]:
        """Make the calls; an outcome for each, in their order.

        Raises:
            ValueError: arguments that are not plain data, or preparing raised.
            RuntimeError: the process that starts workers could not be started.
        """
        if not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
        with self._one_at_a_time:
            work = _Work(calls, deque(range(len(calls))), [None] * len(calls), timeout)
            try:
                for key, _ in self._selector.select(0):  # who has died since the last calls
                    self._receive(key.data, work)
                while work.left:
                    self._hand_out(work)
                    self._listen(work)
            except BaseException:  # Ctrl-C: what workers are at concerns nobody any more
                for worker in [worker for worker in self._workers if worker.busy]:
                    self._end(worker)
                raise
            return [outcome for outcome in work.outcomes if outcome is not None]

    def close(self) -> None:
        """End all processes. The pool may be used again; it starts anew then."""
        for worker in self._workers:
            self._forget(worker)
        self._workers = []
        if self._server is not None:
            process, control = self._server
            self._server = None
            control.close()  # upon which it kills the workers and ends
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _hand_out(self, work: _Work) -> None:
        ahead = max(1, min(_MOST_AHEAD, int(_AHEAD / max(self._pace, 1e-9))))
        while work.waiting:
            worker = min(self._workers, key=lambda w: len(w.busy), default=None)
            if worker is None or (worker.busy and len(self._workers) < self._most):
                worker = self._start()
            if len(worker.busy) >= ahead:
                break
            place = work.waiting.popleft()
            frame = encode_call(work.calls[place])
            if not worker.busy:
                worker.since = time.monotonic()
            worker.busy.append(place)
            worker.outgoing += frame
        for worker in self._workers:
            if worker.outgoing:
                self._send(worker)

    def _listen(self, work: _Work) -> None:
        """Wait for answers, or for the first time limit that passes."""
        busy = [worker for worker in self._workers if worker.busy]
        first = min((worker.since for worker in busy), default=time.monotonic()) + work.timeout
        events = self._selector.select(max(0.0, first - time.monotonic()))
        for key, event in events:
            worker: _Worker = key.data
            if event & selectors.EVENT_WRITE:
                self._send(worker)
            if event & selectors.EVENT_READ:
                self._receive(worker, work)
        now = time.monotonic()
        for worker in busy:
            if worker in self._workers and worker.busy and now - worker.since > work.timeout:
                self._lose(worker, work, "timed out", f"it took longer than {work.timeout:g} s")

    def _send(self, worker: _Worker) -> None:
        with suppress(OSError):  # a full buffer empties, an end is noticed where it is read
            sent = worker.socket.send(worker.outgoing)
            del worker.outgoing[:sent]
        writes = selectors.EVENT_WRITE if worker.outgoing else 0
        events = selectors.EVENT_READ | writes
        if self._selector.get_key(worker.socket).events != events:
            self._selector.modify(worker.socket, events, worker)

    def _receive(self, worker: _Worker, work: _Work) -> None:
        try:
            data = worker.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            for payload in worker.frames.feed(data):
                returned, said = decode_reply(payload)
                if not worker.busy:
                    raise ValueError("a worker gave an answer that nobody asked for")
                now = time.monotonic()
                self._pace += 0.1 * (now - worker.since - self._pace)
                worker.since = now
                outcome = Outcome(said) if returned else Outcome(None, "raised", said)
                work.done(worker.busy.popleft(), outcome)
        except ValueError as error:
            self._lose(worker, work, "died", str(error))
            return
        if not data:
            self._lose(worker, work, "died")

    def _lose(self, worker: _Worker, work: _Work, failure: Failure, detail: str = "") -> None:
        """End a worker: the call it was at fails, those behind it go to others."""
        place = worker.busy.popleft() if worker.busy else None
        work.waiting.extendleft(reversed(worker.busy))
        code = self._end(worker)
        if place is not None:
            work.done(place, Outcome(None, failure, detail or self._how(code)))

    def _how(self, code: int | None) -> str:
        if code == server.OUT_OF_MEMORY:
            return f"its process ran out of the {self._memory / 2**20:.0f} MiB it may take"
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"its process was ended by {signal.Signals(-code).name}"
        return "its process ended" if code is None else f"its process ended with exit code {code}"

    def _start(self) -> _Worker:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                pid = self._tell(server.START, 0, theirs)
                if pid is None:  # the server has died since: once more with a new one
                    pid = self._tell(server.START, 0, theirs)
            if pid is None:
                raise RuntimeError("the process that starts workers has died twice")
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        worker = _Worker(pid, ours)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return worker

    def _end(self, worker: _Worker) -> int | None:
        """Kill a worker and its group; its exit code, if anyone knows."""
        self._workers.remove(worker)
        self._forget(worker)
        if self._server is None:
            return None
        return self._tell(server.END, worker.pid)

    def _forget(self, worker: _Worker) -> None:
        self._selector.unregister(worker.socket)
        worker.socket.close()

    def _tell(self, order: bytes, pid: int, theirs: socket.socket | None = None) -> int | None:
        """What the server answers; None where it has died, and all its workers with it."""
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
        for worker in self._workers:  # Linux has ended them already
            with suppress(OSError):
                os.killpg(worker.pid, signal.SIGKILL)
        control.close()
        process.kill()
        process.wait()
        self._server = None
        return None

    def _start_server(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        path = [entry or os.getcwd() for entry in sys.path]
        arguments = [theirs.fileno(), self._prepare, self._memory, self._patience]
        command = [sys.executable, "-I", "-c", _BOOT, json.dumps([path, arguments])]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        quiet = subprocess.DEVNULL  # what a scorer prints is not for our terminal
        with theirs:
            process = subprocess.Popen(
                command, stdin=quiet, stdout=quiet, stderr=quiet, pass_fds=[theirs.fileno()],
                env=os.environ | threads, start_new_session=True,  # Ctrl-C is for us alone
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


@dataclass
class _Work:
    """The calls of one `map`, and what has become of them."""

    calls: Sequence[Call]
    waiting: deque[int]
    outcomes: list[Outcome | None]
    timeout: float
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = len(self.calls)

    def done(self, place: int, outcome: Outcome) -> None:
        self.outcomes[place] = outcome
        self.left -= 1
