"""Running programs: one, many, with tests, in sessions; and the choice of isolation."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import IO, Any

from .._processors import processors
from .inside import frames
from .limits import Limits, Result
from .worker import Lane, lane

_MODES = ("auto", "unsafe", "namespaces", "seccomp")
_VARIABLE = "ENTROSTAT_SANDBOX"  # child processes inherit it
_FIELDS = [field.name for field in fields(Result)]
_SLOW = 60.0  # seconds for a trial, on a busy machine


@dataclass(frozen=True)
class Verdict:
    """Result of testing a program."""

    # by test, in order; shorter if the program ended, or after a failure without `every`
    passed: tuple[bool, ...]
    error: str  # of the first failed test
    result: Result  # of the program


def use(mode: str) -> None:
    """Set the meaning of "auto", in this process and its children.

    Args:
        mode: "unsafe" allows programs to run without isolation; "auto" revokes that.
    """
    os.environ[_VARIABLE] = _known(mode)


def isolation(mode: str = "auto") -> str:
    """The isolation of programs on this machine: "namespaces", "seccomp" or "unsafe"; tested.

    Args:
        mode: "auto" for the first of "namespaces" and "seccomp" that works, or the one to use.
    """
    mode = _known(mode)
    if mode == "auto":
        mode = _known(os.environ.get(_VARIABLE, mode))
    if mode == "unsafe":
        return mode
    wanted = ("namespaces", "seccomp") if mode == "auto" else (mode,)
    reasons = {name: _trial(name) for name in wanted}
    for name, reason in reasons.items():
        if not reason:
            return name
    listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise ValueError(
        f"no sandbox for programs on this machine ({listed}); --sandbox unsafe runs them with your "
        "own rights, for programs that you trust"
    )


def run(program: str, stdin: str = "", limits: Limits | None = None, mode: str = "auto") -> Result:
    """Run a Python program (standard library only) in the sandbox; `mode` as in `isolation`."""
    return _ask("run", limits or Limits(), isolation(mode), program=program, stdin=stdin)


def run_many(
    programs: Iterable[str], stdins: Sequence[str] | None = None, limits: Limits | None = None,
    mode: str = "auto", workers: int | None = None,
) -> list[Result]:  # fmt: skip
    """Run programs in parallel, as `run`; returns their results in order.

    `workers` is the number of parallel programs; None for one per processor, at most 16.
    """
    programs = list(programs)
    stdins = [""] * len(programs) if stdins is None else stdins
    if len(stdins) != len(programs):
        raise ValueError(
            f"stdins must be one per program ({len(programs)}), got {len(stdins)}; None for none"
        )
    mode = isolation(mode)
    with ThreadPoolExecutor(workers or at_once()) as threads:
        both = zip(programs, stdins, strict=True)
        return list(threads.map(lambda pair: run(pair[0], pair[1], limits, mode), both))


def judge(
    program: str, asserts: Sequence[str] = (),
    calls: Sequence[tuple[str, Sequence[Any], Any]] = (), prelude: str = "", every: bool = True,
    limits: Limits | None = None, mode: str = "auto",
) -> Verdict:  # fmt: skip
    """Test the functions of a program, from a process that it cannot reach.

    Args:
        program: its source; it is imported, not run as a script (`__name__` is "solution").
        asserts: sources that raise if a test fails. They find the program's functions and classes
            by name, and in the module `solution`. Operations on these run in the program's
            process; comparisons use plain data.
        calls: (function, arguments, expected result), as JSON values.
        prelude: a source whose names the program can use unless it defines its own.
        every: continue after a failed test.
        limits: limits for program and tests together.
        mode: as in `isolation`.
    """
    with _memory() as file:
        tests = {"asserts": list(asserts), "calls": list(calls), "all": every}
        frames.send(file.fileno(), tests)
        file.seek(0)
        result = _ask(
            "judge", limits or Limits(), isolation(mode), file.fileno(), program=program,
            prelude=prelude,
        )  # fmt: skip
        file.seek(0)
        try:
            said = frames.receive(file.fileno())
        except (EOFError, ValueError):
            said = {}
    match said:
        case {"passed": [*passed], "error": str(error)}:
            return Verdict(tuple(p is True for p in passed), error, result)
    return Verdict((), result.detail or "the tests' process has ended", result)


def _memory() -> IO[bytes]:
    """An unnamed file, in memory if the system supports that."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("tests"), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _ask(
    do: str, limits: Limits, mode: str, descriptor: int | None = None, **of_what: str
) -> Result:
    order = {"do": do, "limits": asdict(limits), **of_what}
    try:
        with lane(mode) as found:
            answer = found.ask(order, limits.wall, descriptor)
    except ConnectionError as error:
        return Result(None, "", "", "killed", str(error), 0.0)
    return as_result(answer)


def as_result(answer: Mapping[str, Any]) -> Result:
    refuse_broken(answer)
    return Result(**{name: answer[name] for name in _FIELDS})


def refuse_broken(answer: Mapping[str, Any]) -> None:
    """Raise ValueError if a lane's answer says that isolating a program has failed."""
    if "broken" in answer:
        raise ValueError(
            f"the sandbox could not isolate a program: {answer['broken']}; --sandbox unsafe goes "
            "without, for programs that you trust"
        )


def _known(mode: str) -> str:
    if mode not in _MODES:
        raise ValueError(f'sandbox must be "auto" or "unsafe", got {mode!r}')
    return mode


@cache
def _trial(mode: str) -> str:
    """Why a mode does not work here; "" if it works."""
    if sys.platform != "linux":
        return "Linux only"
    trial = None
    try:
        trial = Lane(mode)
        limits = Limits(wall=_SLOW)
        order = {"do": "run", "program": "print(6 * 7)", "stdin": "", "limits": asdict(limits)}
        answer = trial.ask(order, limits.wall)
    except (OSError, RuntimeError) as error:
        return str(error)
    except ImportError as error:
        return f"{error}; pip install 'entrostat[code]', and the system's libseccomp2"
    finally:
        if trial is not None:
            trial.close()
    if "broken" in answer:
        return answer["broken"]
    result = as_result(answer)
    if result.stdout == "42\n" and result.code == 0:
        return ""
    return f"a trial program gave {result.stderr[-200:] or result.detail!r}"


def at_once() -> int:
    return min(16, processors())


class Session:
    r"""A persistent interpreter: later turns see the definitions of earlier ones.

    A turn that takes too long, or that kills the interpreter, ends it: definitions and files are
    lost, and the next turn starts in a new interpreter, in which `setup` has run.

        with Session(setup="import math") as session:
            session.run("x = math.factorial(5)")
            session.run("print(x)").stdout      # "120\n"

    Args:
        limits: limits of a turn; memory, disk and processes are limits of the interpreter.
        setup: a source to run first.
        mode: as in `isolation`.
    """

    def __init__(self, limits: Limits | None = None, setup: str = "", mode: str = "auto") -> None:
        self._limits, self._setup = limits or Limits(), setup
        self._mode = isolation(mode)
        self._lane: Lane | None = None  # None: ended, the next turn starts a new one
        self._start()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, code: str) -> Result:
        """Execute a source; after an exception, `code` is 1 and stderr has the traceback."""
        if self._lane is None:
            self._start()
        return self._turn(code)

    def files(self) -> dict[str, str]:
        """Texts of the files written, by path relative to the working directory."""
        if self._lane is None:
            return {}
        try:
            return self._lane.ask({"do": "files"}, self._limits.wall)
        except ConnectionError:
            self.close()
            return {}

    def close(self) -> None:
        if self._lane is not None:
            self._lane.close()
        self._lane = None

    def _start(self) -> None:
        self._lane = Lane(self._mode)
        try:
            order = {"do": "open", "limits": asdict(self._limits)}
            refuse_broken(self._lane.ask(order, self._limits.wall))
            first = self._turn(self._setup)
            if first.failure or first.code:
                reason = first.detail or first.stderr.strip().rpartition("\n")[2]
                raise ValueError(f"setup of a sandbox session failed: {reason}")
        except (ConnectionError, ValueError):
            self.close()
            raise

    def _turn(self, code: str) -> Result:
        assert self._lane is not None
        try:
            answer = self._lane.ask({"do": "turn", "code": code}, self._limits.wall)
        except ConnectionError as error:
            self.close()
            return Result(None, "", "", "killed", str(error), 0.0)
        if answer["over"]:
            self.close()
        return as_result(answer)
