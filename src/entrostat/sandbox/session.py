"""A Python interpreter in the sandbox that keeps what it is told, one turn after the other."""

from __future__ import annotations

from .limits import Limits, Result
from .running import Mode, as_result, isolation, refuse_broken
from .worker import Lane, plain


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

    def __init__(self, limits: Limits | None = None, setup: str = "", mode: Mode = "auto") -> None:
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
            order = {"do": "open", "limits": plain(self._limits)}
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
