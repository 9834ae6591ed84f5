"""The pool: what a call may do to its worker, and what remains of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from builders import refused
from entrostat.workers import Call, Outcome, Pool, wire
from entrostat.workers.pool import _Worker

# a module that workers import: what scorers of others may do
HOSTILE = """
import os, signal, socket, subprocess, sys, threading, time
def twice(x): return 2 * x
def echo(*values): return repr(values)
def slow(seconds, value): time.sleep(seconds); return value
def spin():
    while True: pass
def integer(): return len(str(9 ** 10 ** 8))  # holds the interpreter for minutes, deaf to signals
def deaf():
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    spin()
def stop(): os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)
def deep(n): return deep(n + 1) + 1
def bad(kind):
    return {"object": object(), "set": {1}, "long": "x" * (2 << 20), "nan": float("nan")}[kind]
def fork_bomb_of_one(path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(path, "w").write(str(child.pid))
    time.sleep(600)
def who(path):
    open(path, "a").write(f"{os.getpid()}\\n")
    time.sleep(600)
def talk(): print("noise" * 1000, flush=True); print("noise", file=sys.stderr); return 1
def forge(text):  # a reply of its own making
    for fd in range(3, 64):
        try: socket.socket(fileno=os.dup(fd)).sendall(text)
        except OSError: pass
    return 1
def bomb(): return bytearray(1 << 22), bytearray(1 << 30)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("workers")
    (folder / "hostile_calls.py").write_text(HOSTILE)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[Pool]:
    with Pool(workers=2, memory=256 << 20) as pool:
        yield pool


def h(function: str, *arguments: object) -> Call:
    return Call(f"hostile_calls:{function}", arguments)


def gone(pid: int, within: float = 60.0) -> bool:
    """Whether a process ends (or is a zombie that nobody waits for)."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


def test_results_come_in_order_and_arguments_arrive_as_they_are(pool: Pool) -> None:
    calls = [h("slow", 0.003 * ((i * 7) % 5), i) for i in range(60)]
    assert [outcome.value for outcome in pool.map(calls, 10)] == list(range(60))
    given = ((1, 2), {3: b"\0"}, {4}, None, True, 2**80, -0.0, "\ud800", [1j], float("inf"))
    assert pool.map([h("echo", *given)], 10) == [Outcome(repr(given))]
    assert pool.map([], 10) == []


@pytest.mark.parametrize(
    ("call", "failure", "match"),
    [
        (h("spin"), "timed out", "longer than 1 s"),
        (h("integer"), "timed out", "longer"),
        (h("deaf"), "timed out", "longer"),
        (h("stop"), "timed out", "longer"),
        (h("bomb"), "died", "ran out of the 256 MiB"),
        (Call("os:_exit", (3,)), "died", "exit code 3"),
        (Call("os:abort"), "died", "SIGABRT"),
        (Call("sys:exit", ("over",)), "raised", "SystemExit: over"),
        (h("deep", 0), "raised", "RecursionError"),
        (Call("math:sqrt", (-1,)), "raised", "ValueError: math domain error"),
        (Call("no_such_module:f"), "raised", "ModuleNotFoundError"),
        (Call("math:no_such"), "raised", "AttributeError"),
        (h("bad", "object"), "raised", "cannot be said in JSON"),
        (h("bad", "set"), "raised", "cannot be said in JSON"),
        (h("bad", "long"), "raised", "longer than 1048576 characters"),
        (h("forge", b"\xff" * 100), "died", "announced a reply of"),
        (h("forge", b"\0\0\0\2{}"), "died", "something else than a reply"),
        (h("forge", b"\0\0\0\1["), "died", "Expecting value"),
    ],
    ids=lambda value: value.function if isinstance(value, Call) else "",
)
def test_a_bad_call_fails_alone(pool: Pool, call: Call, failure: str, match: str) -> None:
    calls = [h("twice", i) for i in range(40)]
    calls.insert(17, call)
    bad, good = (outcomes := pool.map(calls, 1.0)).pop(17), outcomes
    assert (bad.value, bad.failure) == (None, failure)
    assert match in bad.detail
    assert [outcome.value for outcome in good] == [2 * i for i in range(40)]


def test_what_a_worker_prints_goes_nowhere(pool: Pool, capfd: pytest.CaptureFixture) -> None:
    assert pool.map([h("talk")] * 3, 10) == [Outcome(1)] * 3
    assert capfd.readouterr() == ("", "")


def test_a_worker_is_killed_with_its_children(pool: Pool, tmp_path: Path) -> None:
    (outcome,) = pool.map([h("fork_bomb_of_one", str(tmp_path / "pid"))], 2.0)
    assert outcome.failure == "timed out"
    assert gone(int((tmp_path / "pid").read_text()))


def test_only_plain_data_is_sent_and_the_pool_stays_usable(pool: Pool) -> None:
    class Number(int):
        pass

    for value in (Number(1), object(), [Number(1)], {"a": {object()}}, bytearray(1)):
        with pytest.raises(ValueError, match=r"'hostile_calls:twice': its arguments must be plain"):
            pool.map([h("slow", 5, 1), h("twice", value)], 10)
    assert pool.map([h("twice", 1)], 10) == [Outcome(2)]
    refused(lambda: pool.map([h("twice", 1)], 0), "timeout", "got 0")
    refused(lambda: pool.map([h("twice", 1)], 1e10), "timeout", "got 10000000000")


def test_a_time_limit_is_each_calls_own(pool: Pool) -> None:
    """Many calls in a row may take longer together than one may alone; and one too slow is found
    when its time is over, not later."""
    calls = [h("twice", 1)] * 400 + [h("slow", 0.05, 1)] * 120
    assert all(outcome.failure is None for outcome in pool.map(calls, 2.0))
    began = time.monotonic()
    outcomes = pool.map([h("twice", 1)] * 50 + [h("spin")] + [h("twice", 1)] * 50, 2.0)
    assert [o.failure for o in outcomes] == [None] * 50 + ["timed out"] + [None] * 50
    assert time.monotonic() - began >= 2.0


def test_a_path_object_in_the_search_path_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python's own import does: sys.path is of texts."""
    monkeypatch.setattr(sys, "path", [Path("/nowhere"), *sys.path])
    with Pool(workers=1) as pool:
        assert pool.map([Call("json:loads", ("[1]",))], 10) == [Outcome([1])]


def test_workers_that_die_while_idle_cost_nothing(folder: Path) -> None:
    with Pool(workers=2) as pool:
        pids = [o.value for o in pool.map([Call("os:getpid")] * 20, 10)]
        for pid in set(pids):
            os.kill(pid, signal.SIGKILL)
            assert gone(pid)
        found = pool.map([Call("os:getpid")] * 20, 10)
        assert all(o.failure is None for o in found)
        assert not {o.value for o in found} & set(pids)


def test_the_server_may_be_killed_as_well(folder: Path) -> None:
    with Pool(workers=2) as pool:
        (worker,), (server,) = (
            {o.value for o in pool.map([Call(f"os:{name}")], 10)} for name in ("getpid", "getppid")
        )
        os.kill(server, signal.SIGKILL)
        assert gone(worker)  # Linux kills it with its parent
        outcomes = pool.map([h("twice", 1)] * 10, 10)
        assert outcomes[1:] == [Outcome(2)] * 9  # at most the call of the dead worker is lost


def test_preparing_is_done_once_and_what_it_raises_is_said(folder: Path, tmp_path: Path) -> None:
    (folder / "prepared_calls.py").write_text(
        "import os, time\nmade = []\ndef make(x): made.append((x, os.getpid()))\n"
        "def look(where):\n"
        "    open(f'{where}/{os.getpid()}', 'w').close()\n"
        "    while len(os.listdir(where)) < 2: time.sleep(0.01)  # for the other worker\n"
        "    return [*made, os.getpid(), os.getppid()]\n"
    )
    (seen := tmp_path / "seen").mkdir()
    with Pool([Call("prepared_calls:make", ("x",))], workers=2) as pool:
        looks = [o.value for o in pool.map([Call("prepared_calls:look", (str(seen),))] * 2, 100)]
    assert {tuple(map(str, made)) for made, _, _ in looks} == {("x", str(looks[0][2]))}
    assert len({pid for _, pid, _ in looks}) == 2
    refused(
        lambda: Pool([Call("math:sqrt", (-1,))]).map([h("twice", 1)], 10),
        "preparing math:sqrt: ValueError: math domain error",
    )
    refused(
        lambda: Pool([Call("time:sleep", (60,))], patience=1).map([h("twice", 1)], 10),
        "preparing time:sleep: it took over 1 s",
        error=RuntimeError,
    )


def test_closing_ends_every_process_and_it_starts_anew(folder: Path) -> None:
    pool = Pool(workers=2)
    pids = {o.value for o in pool.map([Call("os:getpid"), Call("os:getppid")] * 10, 10)}
    pool.close()
    pool.close()
    assert all(gone(pid) for pid in pids)
    assert pool.map([h("twice", 4)], 10) == [Outcome(8)]
    pool.close()


PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # some shells ignore it
sys.path.insert(0, {folder!r})
from entrostat.workers import Call, Pool
with Pool(workers=2) as pool:
    try:
        pool.map([Call("hostile_calls:who", ({file!r},))] * 6, 60)
    except KeyboardInterrupt:
        print([o.value for o in pool.map([Call("hostile_calls:twice", (3,))] * 3, 10)], flush=True)
"""


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_parent_and_outlive_ctrl_c(
    folder: Path, tmp_path: Path, way: signal.Signals
) -> None:
    file = tmp_path / "pids"
    code = PROGRAM.format(folder=str(folder), file=str(file))
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        while not file.exists() or file.read_text().count("\n") < 2:
            time.sleep(0.02)
            assert parent.poll() is None
        pids = [int(line) for line in file.read_text().split()]
        parent.send_signal(way)
        out, _ = parent.communicate(timeout=120)
    finally:
        parent.kill()
    assert all(gone(pid) for pid in pids)
    assert out == (b"" if way == signal.SIGKILL else b"[6, 6, 6]\n")


def test_frames_come_in_any_pieces() -> None:
    replies = [[True, None], [True, {"a": [1.5, "\ud800"]}], [False, "ValueError: x"]]
    frames = [
        wire.encode_reply(value) if fine else wire.encode_reply(raised=value)
        for fine, value in replies
    ]
    call = wire.encode_call(Call("f", (1,)))
    for size in (1, 2, 5, len(b"".join(frames))):
        ours, theirs = socket.socketpair()
        worker = _Worker(0, ours)

        def answer(size: int = size, theirs: socket.socket = theirs) -> None:
            for frame in frames:
                theirs.recv(len(call), socket.MSG_WAITALL)
                for i in range(0, len(frame), size):
                    theirs.sendall(frame[i : i + size])

        thread = threading.Thread(target=answer)
        thread.start()
        assert [list(worker.ask(call, 60.0)) for _ in frames] == replies
        thread.join()
        assert worker.quiet()
        theirs.sendall(b"?")
        assert not worker.quiet()
        with pytest.raises(TimeoutError):
            worker.ask(call, 0.05)
        theirs.sendall(wire.HEADER.pack(1 << 30))
        refused(partial(worker.ask, call, 60.0), "announced a reply")
        theirs.close()
        worker.close()
