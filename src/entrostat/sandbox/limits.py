"""Resource limits of a program, and its result."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

MIB = 1 << 20
Failure = Literal["timed out", "out of memory", "killed", "too much output"]


@dataclass(frozen=True)
class Limits:
    """Resource limits of a program, or of a session's turn.

    Attributes:
        cpu: seconds of processor time of each process, rounded up; sessions only use `wall`.
        wall: wall-clock seconds.
        memory: bytes of address space of each process beyond the interpreter's own; also a limit
            for the memory of all processes together.
        file_size: bytes of a file.
        disk: bytes of all files together.
        processes: processes and threads at the same time.
        output: bytes kept of stdout and of stderr, each. A program that writes more is killed; a
            session continues.
    """

    cpu: float = 10.0
    wall: float = 10.0
    memory: int = 512 * MIB
    file_size: int = MIB
    disk: int = 16 * MIB
    processes: int = 16
    output: int = 64 * 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise ValueError(f"sandbox limit {field.name} must be above 0, got {value}")


@dataclass(frozen=True)
class Result:
    """Result of a program.

    Attributes:
        code: the exit code; None if the program was killed.
        stdout: the output, up to `Limits.output`.
        stderr: the same for stderr, which has the traceback.
        failure: None, or why the program was killed or its output cut. An exception is not a
            failure: its code is 1.
        detail: the failure in words.
        seconds: wall-clock time.
    """

    code: int | None
    stdout: str
    stderr: str
    failure: Failure | None
    detail: str
    seconds: float
