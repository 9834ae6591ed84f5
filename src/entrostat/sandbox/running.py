"""Running programs: one, many, with tests, over turns; and how they are kept apart here."""

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
_VARIABLE = "ENTROSTAT_SANDBOX"  # processes started from here know it, too
_FIELDS = [field.name for field in fields(Result)]
_SLOW = 60.0  # seconds that a trial may take on a machine that is busy


@dataclass(frozen=True)
class Verdict:
    """What tests say of a program."""

    # of each test, in their order; shorter where the program ended, or one failed and `every` was
    # not asked for
    passed: tuple[bool, ...]
    error: str  # why the first that failed did
    result: Result  # of the program


def use(mode: str) -> None:
    """What "auto" means from now on, here and in processes started from here.

    Args:
        mode: "unsafe" allows programs to run without isolation; "auto" takes that back.
    """
    os.environ[_VARIABLE] = _known(mode)


def isolation(mode: str = "auto") -> str:
    """What keeps programs apart here: "namespaces", "seccomp" or "unsafe"; tried, not guessed.

    Args:
        mode: "auto" for the first of the two that works, or the one to take.
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
    """Run a Python program (the standard library alone) in the sandbox; `mode` as `isolation`."""
    return _ask("run", limits or Limits(), isolation(mode), program=program, stdin=stdin)


def run_many(
    programs: Iterable[str], stdins: Sequence[str] | None = None, limits: Limits | None = None,
    mode: str = "auto", workers: int | None = None,
) -> list[Result]:  # fmt: skip
    """Run programs at the same time, as `run`; a result each, in their order.

    `workers` says how many at once; None takes one per processor, at most 16.
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
        asserts: sources that raise where a test fails. They find the program's functions and
            classes by name, and as the module `solution`; what they do with these is done over
            there, and what they compare is plain data.
        calls: (function, arguments, expected result), as JSON has them.
        prelude: a source whose names the program finds where it has none of its own.
        every: go on after a test that failed.
        limits: what program and tests may take together.
        mode: as `isolation`.
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
    """A file that has no name, and where there are such no disk."""
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
    """Refuse a lane's answer that says that isolating a program has failed."""
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
    """Why a mode does not work here; "" where it does."""
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
    r"""A persistent interpreter: what one turn defines, the next one sees.

    A turn that takes too long, or that kills the interpreter, ends it: what it had defined and
    written is gone, and the next turn starts in a new one, in which `setup` has run.

        with Session(setup="import math") as session:
            session.run("x = math.factorial(5)")
            session.run("print(x)").stdout      # "120\n"

    Args:
        limits: what a turn may take; memory, disk and processes are the interpreter's.
        setup: a source to run first.
        mode: as `isolation`.
    """

    def __init__(self, limits: Limits | None = None, setup: str = "", mode: str = "auto") -> None:
        self._limits, self._setup = limits or Limits(), setup
        self._mode = isolation(mode)
        self._lane: Lane | None = None  # None: it is over, the next turn starts anew
        self._start()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, code: str) -> Result:
        """Execute a source; `code` is 1 after an exception, whose traceback is in stderr."""
        if self._lane is None:
            self._start()
        return self._turn(code)

    def files(self) -> dict[str, str]:
        """What was written: the files' paths, from the working directory, and texts."""
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
