"""The sandbox: what a program may try, and what remains of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builders import refused
from entrostat import sandbox
from entrostat.sandbox import Limits, Result, Session, running
from entrostat.sandbox import worker as lane
from entrostat.sandbox.inside.start import descendants

LIMITS = Limits(cpu=5, wall=20)  # the wall clock of a machine that may be busy


ISOLATED = [
    pytest.param(mode, marks=pytest.mark.skipif(bool(reason), reason=reason))
    for mode in ("namespaces", "seccomp")
    for reason in [running._trial(mode)]
]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


def run(program: str, mode: str, limits: Limits = LIMITS, stdin: str = "") -> Result:
    return sandbox.run(textwrap.dedent(program), stdin, limits, mode)


def alive(mode: str) -> bool:
    """Whether the sandbox does its work still."""
    return run("print(6 * 7)", mode).stdout == "42\n"


@pytest.fixture(params=ISOLATED)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    assert alive(request.param)


namespaces = pytest.mark.parametrize("mode", ISOLATED[:1], indirect=True)
seccomp = pytest.mark.parametrize("mode", ISOLATED[1:], indirect=True)


def test_what_skips_the_tests_below_is_the_machine() -> None:
    """A filter needs no rights; and what util-linux can keep apart, so can we."""
    assert running._trial("seccomp") == ""
    apart = "unshare --user --map-root-user --mount --pid --net --ipc --uts --fork".split()
    try:
        theirs = subprocess.run([*apart, "mount", "-t", "tmpfs", "none", "/mnt"], check=False)
    except FileNotFoundError:
        pytest.skip("no unshare to compare with")
    assert theirs.returncode or running._trial("namespaces") == ""


@pytest.mark.parametrize("mode", [*ISOLATED, "unsafe"])
def test_a_program_reads_writes_and_ends(mode: str) -> None:
    result = run("import sys\nprint(input()[::-1])\nprint('e', file=sys.stderr)\nexit(3)", mode,
                 stdin="abc\n")  # fmt: skip
    assert (result.code, result.stdout, result.stderr) == (3, "cba\n", "e\n")
    assert (result.failure, result.detail) == (None, "")
    assert 0 < result.seconds < LIMITS.wall


def test_a_traceback_names_the_programs_lines_and_none_of_ours(mode: str) -> None:
    result = run("def f(x):\n    return 1 / x\nf(0)", mode)
    assert result.code == 1
    assert result.failure is None
    assert result.stderr == (
        "Traceback (most recent call last):\n"
        '  File "<program>", line 3, in <module>\n    f(0)\n'
        '  File "<program>", line 2, in f\n    return 1 / x\n           ~~^~~\n'
        "ZeroDivisionError: division by zero\n"
    )


def test_a_program_ends_as_pythons_would(mode: str) -> None:
    program = """
        import atexit, threading, time
        atexit.register(print, "exit")
        threading.Thread(target=lambda: (time.sleep(.05), print("thread"))).start()
        raise SystemExit("said")
    """
    result = run(program, mode)
    assert (result.code, result.stdout, result.stderr) == (1, "thread\nexit\n", "said\n")


def test_an_endless_loop(mode: str) -> None:
    by_clock = run("while True: pass", mode, Limits(cpu=60, wall=0.4))
    assert (by_clock.code, by_clock.failure) == (None, "timed out")
    assert by_clock.detail == "it took longer than 0.4 s"
    by_processor = run("while True: pass", mode, Limits(cpu=1, wall=60))
    assert by_processor.failure == "timed out"
    assert by_processor.detail == "it took more than 1 s of processor time"


def test_a_loop_that_is_deaf_to_signals(mode: str) -> None:
    program = """
        import signal
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        while True: pass
    """
    assert run(program, mode, Limits(cpu=60, wall=1)).failure == "timed out"
    assert run(program, mode, Limits(cpu=1, wall=60)).failure in ("killed", "timed out")


def test_a_memory_bomb(mode: str) -> None:
    result = run("x = bytearray(1 << 30)", mode)
    assert (result.code, result.failure) == (None, "out of memory")
    assert result.detail == "it took more than 512 MiB"
    slow = run("x = []\nwhile True: x.append(bytearray(1 << 20))", mode)
    assert slow.failure == "out of memory"
    caught = run("try: bytearray(1 << 30)\nexcept MemoryError: print('none')", mode)
    assert (caught.code, caught.stdout) == (0, "none\n")


@namespaces
def test_memory_of_many_processes_counts_together(mode: str) -> None:
    program = """
        import os, time
        for _ in range(8):
            if not os.fork():
                x = bytearray(b"x") * (50 << 20)
                time.sleep(30)
        time.sleep(30)
    """
    result = run(program, mode, Limits(wall=25, memory=128 << 20))
    assert result.failure == "out of memory"
    assert "processes took" in result.detail


@namespaces
def test_a_fork_bomb(mode: str) -> None:
    program = """
        import os, sys
        made = 0
        try:
            while True:
                if not os.fork():
                    import time; time.sleep(30)
                made += 1
        except OSError as error:
            print(made, type(error).__name__, flush=True)
    """
    result = run(program, mode, Limits(wall=20, processes=16))
    assert result.stdout == "15 BlockingIOError\n"  # and the program itself
    bomb = run("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", mode,
               Limits(cpu=30, wall=1))  # fmt: skip
    assert bomb.failure == "timed out"


@seccomp
def test_without_namespaces_no_process_is_forked(mode: str) -> None:
    result = run("import os\nos.fork()", mode)
    assert "PermissionError" in result.stderr
    thread = "import threading\nt = threading.Thread(target=print, args=(1,)); t.start(); t.join()"
    assert run(thread, mode).stdout == "1\n"


@namespaces
def test_filling_the_disk(mode: str) -> None:
    program = """
        written = 0
        try:
            for i in range(100):
                with open(f"f{i}", "wb") as file:
                    written += file.write(b"x" * (1 << 20))
        except OSError as error:
            print(written >> 20, error.strerror)
        try:
            with open("f0", "wb") as file:
                file.write(b"x" * ((1 << 20) + 1))
        except OSError as error:
            print(error.strerror)
    """
    result = run(program, mode)
    # a page or two of the 16 MiB hold the directory
    assert result.stdout in (f"{n} No space left on device\nFile too large\n" for n in (15, 16))
    many = run("for i in range(10**6): open(str(i), 'w')", mode)
    assert "No space left on device" in many.stderr


@pytest.mark.parametrize(
    "path",
    ["/etc/shadow", "/etc/passwd", "~", str(Path(__file__)), "/proc/2/environ", "/root", "/home"],
)
def test_reading_outside(mode: str, path: str) -> None:
    path = os.path.expanduser(path)
    result = run(f"""
        import os
        for read in (lambda: open({path!r}).read(), lambda: os.listdir({path!r})):
            try: print("read", read())
            except OSError as error: print(type(error).__name__)
    """, mode)  # fmt: skip
    assert result.code == 0
    assert "read" not in result.stdout or path in ("/root", "/home")
    if path in ("/root", "/home"):  # may be there for Python's sake, and hold nothing else
        assert not any(name in result.stdout for name in os.listdir(path) if name != ".pyenv")


def test_writing_outside(mode: str, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    os.chmod(tmp_path.parent, 0o777)
    places = [str(tmp_path / "x"), "/x", "/usr/lib/x", "/etc/x", "/dev/shm/x", "/proc/x"]
    result = run(f"""
        for path in {places!r}:
            try:
                open(path, "w").write("x"); print("wrote", path)
            except OSError as error: pass
    """, mode)  # fmt: skip
    assert result.code == 0
    assert result.stdout == ""
    assert not any(map(os.path.exists, places))


@namespaces
def test_each_program_has_an_empty_directory_of_its_own(mode: str) -> None:
    first = run("open('a', 'w').write('1')\nimport os; print(os.getcwd(), os.listdir())", mode)
    assert first.stdout == "/tmp ['a']\n"
    assert run("import os; print(os.listdir(), os.listdir('/'))", mode).stdout.startswith("[] ")


def test_the_environment_is_empty(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-of-mine")
    lane.close_idle()
    result = run("import json, os; print(json.dumps(dict(os.environ)))", mode)
    assert "secret-of-mine" not in result.stdout
    assert sorted(json.loads(result.stdout)) == ["HOME", "LANG", "PATH", "TMPDIR"]


@pytest.mark.enable_socket
def test_the_network(mode: str, tmp_path: Path) -> None:
    with socket.socket() as server, socket.socket(socket.AF_UNIX) as local:
        server.bind(("127.0.0.1", 0))
        server.listen()
        local.bind(f"\0entrostat-{os.getpid()}")  # in no file system
        local.listen()
        port = server.getsockname()[1]
        result = run(f"""
            import socket
            for family, address in ((socket.AF_INET, ("127.0.0.1", {port})),
                                    (socket.AF_UNIX, "\\0entrostat-{os.getpid()}")):
                try: socket.socket(family).connect(address); print("connected")
                except OSError as error: print(type(error).__name__)
        """, mode)  # fmt: skip
    assert result.code == 0
    assert "connected" not in result.stdout
    assert len(result.stdout.split()) == 2


def test_killing_its_parent(mode: str) -> None:
    """With namespaces it is the first process, which no process in there can kill."""
    program = f"""
        import os, signal
        print(os.getppid(), flush=True)
        for pid in (os.getppid(), 1, -1, {os.getpid()}, {os.getppid()}, 0):
            for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
                try: os.kill(pid, number)
                except OSError: pass
        print("lives")
    """
    result = run(program, mode)
    assert (result.code, result.failure, result.stdout.split()[1]) == (0, None, "lives")
    assert (result.stdout.split()[0] == "0") == (mode == "namespaces")


def test_looking_into_others(mode: str) -> None:
    parent = max(2, os.getppid())  # where these tests have lost theirs; 1 is the program's own
    program = f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        for pid in ({os.getpid()}, {parent}):
            print(libc.ptrace(16, pid, 0, 0))           # PTRACE_ATTACH
            try: open(f"/proc/{{pid}}/mem", "rb"); print("opened")
            except OSError: pass
        print(libc.unshare(0x10000000), libc.mount(b"none", b"/tmp", b"tmpfs", 0, 0))
        print(libc.prlimit({os.getpid()}, 7, ctypes.byref((ctypes.c_ulong * 2)(3, 3)), None))
    """
    result = run(program, mode)
    assert result.stdout.split() == ["-1"] * 5


def test_sending_signals_by_other_means(mode: str) -> None:
    """Without namespaces: SIGIO to whoever is named the owner of a descriptor."""
    result = run(f"""
        import fcntl, os
        r, w = os.pipe()
        try: fcntl.fcntl(r, fcntl.F_SETOWN, {os.getpid()}); print("set")
        except OSError as error: print(type(error).__name__)
    """, mode)  # fmt: skip
    expected = {"namespaces": "ProcessLookupError\n", "seccomp": "PermissionError\n"}
    assert result.stdout == expected[mode]


def test_a_hundred_megabytes_of_output(mode: str) -> None:
    result = run("for _ in range(100): print('x' * (1 << 20))", mode)
    assert (result.code, result.failure) == (None, "too much output")
    assert result.detail == "it wrote more than 65536 bytes"
    assert result.stdout == "x" * 65536
    exact = run("print('x' * 65535)", mode)
    assert (exact.failure, len(exact.stdout)) == (None, 65536)
    both = run("import sys; sys.stderr.write('e' * 10**8)", mode)
    assert (both.failure, both.stderr) == ("too much output", "e" * 65536)


@pytest.mark.parametrize("mode", [*ISOLATED[:1], "unsafe"])
def test_a_grandchild_that_detaches_ends_with_its_program(mode: str) -> None:
    mark = f"{time.time_ns() % 10**9 + 10**9}.5"  # seconds that nobody else sleeps
    program = f"""
        import os, sys, time
        if not os.fork():
            os.setsid()
            if not os.fork():
                os.closerange(0, 3)
                os.execv(sys.executable, ["python", "-S", "-c", "import time; time.sleep({mark})"])
            os._exit(0)
        time.sleep(.5)
        print("done")
    """
    result = run(program, mode)
    assert result.stdout == "done\n"
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and mark in command(pid)]


def command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@namespaces
def test_a_detached_process_holds_nothing_up(mode: str) -> None:
    """It has stdout open still when the program ends."""
    program = "import os, time\nif not os.fork():\n    os.setsid(); time.sleep(60)\nprint('done')"
    result = run(program, mode)
    assert result.stdout == "done\n"
    assert result.seconds < 15


def test_sources_that_are_none(mode: str) -> None:
    assert run("print(1)\nif", mode).stderr.endswith("SyntaxError: invalid syntax\n")
    assert "null bytes" in run("print('\0')", mode).stderr
    assert run("x = '\ud800'", mode).code == 1
    deep = run("(" * 10_000, mode)
    assert (deep.code, deep.failure) == (1, None)


def test_dying(mode: str) -> None:
    assert run("import ctypes; ctypes.string_at(0)", mode).detail == "by SIGSEGV"
    assert run("import os; os._exit(5)", mode).code == 5
    for fds in ("0, 256", "3, 256"):
        assert run(f"import os; os.closerange({fds})", mode).code == 0


def test_standard_streams_that_a_program_breaks(mode: str) -> None:
    assert run("import sys; sys.stdout = None; sys.stderr = 5", mode).code == 0
    assert run("import sys; sys.stdout.close()", mode).code == 0
    assert run("print('\\udc80' + chr(233))", mode).stdout == "\ufffd\u00e9\n"


def test_stdin_longer_than_a_pipe_and_never_read(mode: str) -> None:
    long = "x" * 10**6
    assert run("print(len(input()))", mode, stdin=long).stdout == "1000000\n"
    assert run("print(1)", mode, stdin=long).stdout == "1\n"


def test_five_hundred_programs_in_their_order(mode: str) -> None:
    programs = [f"print(input(), {i})" for i in range(500)]
    programs[250] = "import os; os._exit(9)"
    results = sandbox.run_many(programs, [str(i) for i in range(500)], LIMITS, mode, workers=8)
    said = [result.stdout for result in results]
    expected = [f"{i} {i}\n" for i in range(500)]
    assert said[250] == ""
    assert [*said[:250], *said[251:]] == [*expected[:250], *expected[251:]]


def test_the_interpreter_that_forks_dies(mode: str) -> None:
    run("1", mode)
    victim = next(each for each in lane._idle if each.mode == mode)
    victim._process.kill()
    victim._process.wait()
    result = run("print(1)", mode)
    assert (result.failure, result.stdout) == ("killed", "") or result.stdout == "1\n"


def test_nothing_outlives_who_asked(mode: str) -> None:
    words = f"'import time; time.sleep(1e6)', limits=sandbox.Limits(wall=1e6), mode={mode!r}"
    source = f"from entrostat import sandbox; sandbox.run({words})"
    host = subprocess.Popen([sys.executable, "-c", source])
    below: set[int] = set()
    with_patience(lambda: bool(below.update(settled(host.pid)) or below))
    os.kill(host.pid, signal.SIGKILL)
    host.wait()
    with_patience(lambda: not any(map(running_still, below)))


def settled(host: int) -> set[int]:
    """The interpreter that forks and the program; a trial before it is soon gone."""
    found = set(descendants(host))
    time.sleep(0.5)
    return found if len(found) >= 2 and found == set(descendants(host)) else set()


def with_patience(happened: Callable[[], bool], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running_still(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_session_keeps_what_it_is_told(mode: str) -> None:
    with Session(LIMITS, "import math\ndef twice(x): return 2 * x", mode) as session:
        assert session.run("x = twice(math.floor(2.5))").code == 0
        result = session.run("print(x)")
        assert (result.code, result.stdout, result.stderr) == (0, "4\n", "")
        failed = session.run("y = 1\nprint(x / 0)")
        assert (failed.code, failed.failure) == (1, None)
        assert failed.stderr == (
            'Traceback (most recent call last):\n  File "<turn 3>", line 2, in <module>\n'
            "    print(x / 0)\n          ~~^~~\nZeroDivisionError: division by zero\n"
        )
        assert session.run("print(x + y)").stdout == "5\n"
        assert session.run("x = ").stderr.endswith("SyntaxError: invalid syntax\n")
        assert session.run("raise SystemExit(7)").code == 7
        assert session.run("print(x)").stdout == "4\n"


def test_a_session_that_ends_starts_anew(mode: str) -> None:
    with Session(Limits(wall=2), "x = 1", mode) as session:
        session.run("x = 2")
        late = session.run("print('so far', flush=True)\nwhile True: pass")
        assert (late.code, late.failure, late.stdout) == (None, "timed out", "so far\n")
        assert session.run("print(x)").stdout == "1\n"
        session.run("x = 2")
        assert session.run("import os; os._exit(3)").code == 3
        assert session.run("print(x)").stdout == "1\n"
        assert session.run("import ctypes; ctypes.string_at(0)").failure == "killed"
        large = session.run("x = bytearray(1 << 30)")
        assert large.failure == "out of memory"
        session.run("x = 2")
        session._lane._process.kill()
        assert session.run("print(x)").failure == "killed"
        assert session.run("print(x)").stdout == "1\n"


def test_a_sessions_output_is_cut_and_it_goes_on(mode: str) -> None:
    with Session(LIMITS, mode=mode) as session:
        session.run("x = 3")
        result = session.run("for _ in range(10): print('y' * 100_000)")
        assert (result.code, result.failure) == (0, "too much output")
        assert result.stdout == "y" * 65536
        assert session.run("print(x)").stdout == "3\n"
    with Session(Limits(wall=20, output=2), mode=mode) as session:  # less than an answer takes
        assert session.run("print(1)").stdout == "1\n"


def test_a_session_cannot_be_misled(mode: str) -> None:
    """It writes to the pipe that answers go through, or closes it."""
    forged = "import os, json\nos.write(5, {}.encode() + b'\\n')"
    with Session(LIMITS, mode=mode) as session:
        for text in ("'nonsense'", "'[1]'", "json.dumps({'code': 'x'})"):
            assert session.run(forged.format(text)).failure == "killed"
        assert session.run("import os; os.close(4)").failure is None
        assert session.run("1").code == 1
        assert session.run("print(1)").stdout == "1\n"


def test_an_answer_is_heard_though_the_program_ended_behind_it() -> None:
    last_words = (
        "import os, json\nos.write(5, json.dumps({'code': 7}).encode() + b'\\n')\nos._exit(3)"
    )
    with Session(LIMITS) as session:
        for _ in range(10):
            assert session.run(last_words).code == 7
            assert session.run("1").code == 3  # it is gone; the next call begins anew


@namespaces
def test_the_files_of_a_session(mode: str) -> None:
    with Session(LIMITS, "open('a.txt', 'w').write('first')", mode) as session:
        assert session.files() == {"a.txt": "first"}
        session.run(r"""
import os
os.mkdir("b")
open("b/c", "wb").write(b"\xff\x00")
os.symlink("/etc/passwd", "link")
os.mkfifo("pipe")
open("hidden", "w").close(); os.chmod("hidden", 0)
with open("holes", "w") as file: file.truncate(1 << 20)
path = "deep"
for _ in range(100): os.mkdir(path); path += "/d"
""")
        files = session.files()
        assert len(files.pop("holes")) == 1 << 20
        files.pop("hidden", None)  # root reads it
        assert files == {"a.txt": "first", "b/c": "\ufffd\x00"}
        session.run("for i in range(100): open(f'h{i}', 'w').truncate(1 << 20)")
        assert sum(map(len, session.files().values())) <= 16 << 20


@namespaces
def test_a_forked_child_does_not_take_a_sessions_turn(mode: str) -> None:
    with Session(LIMITS, mode=mode) as session:
        session.run("import os\nchild = os.fork()\nif child: os.waitpid(child, 0)")
        assert session.run("print(child > 0)").stdout == "True\n"


def test_a_setup_that_raises(mode: str) -> None:
    refused(lambda: Session(LIMITS, "1 / 0", mode), "setup", "failed:")


def test_sessions_are_apart(mode: str) -> None:
    with Session(LIMITS, "x = 1", mode) as one, Session(LIMITS, "x = 2", mode) as two:
        one.run("y = 5")
        assert two.run("print(x, 'y' in globals())").stdout == "2 False\n"
        assert one.run("print(x, y)").stdout == "1 5\n"


def test_nothing_works_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_trial", lambda mode: f"no {mode} for you")
    refused(lambda: sandbox.run("print(1)"), "namespaces:", "seccomp: no", "--sandbox")
    monkeypatch.setattr(running, "_trial", lambda mode: "" if mode == "seccomp" else "no")
    assert sandbox.isolation() == "seccomp"
    monkeypatch.setenv("ENTROSTAT_SANDBOX", "auto")
    sandbox.use("unsafe")
    assert sandbox.isolation() == "unsafe"
    refused(lambda: sandbox.use("open"), '"auto"', '"unsafe"', "got 'open'")


def test_limits_that_are_none() -> None:
    refused(lambda: Limits(wall=0), "wall", "got 0")
    refused(lambda: sandbox.run_many(["1", "2"], ["a"]), "got 1")


def test_a_program_gives_the_same_twice(mode: str) -> None:
    program = "import random; print(random.random(), hash('a'), list({'x', 'y', 'z'}))"
    with lane.lane(mode):  # so that the next is run by another interpreter
        first = run(program, mode).stdout
    lane.close_idle()
    assert run(program, mode).stdout == first
