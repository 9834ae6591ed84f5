"""What a program may take, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

MIB = 1 << 20
Failure = Literal["timed out", "out of memory", "killed", "too much output"]


@dataclass(frozen=True)
class Limits:
    """What a program, or a session's turn, may take.

    Attributes:
        cpu: seconds of processor time of each process, rounded up; a session is bounded by `wall`.
        wall: seconds by the clock.
        memory: bytes of address space of each process beyond the interpreter's own, and of all
            together.
        file_size: bytes of a file.
        disk: bytes of all files together.
        processes: processes and threads at once.
        output: bytes kept of stdout and of stderr, each. A program that writes more is ended, a
            session goes on.
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
    """What became of a program.

    Attributes:
        code: its exit code; None where it was ended.
        stdout: what it wrote, as far as `Limits.output` goes.
        stderr: the same; its traceback is here.
        failure: None, or why it was ended, or its output cut. An exception is no failure: its code
            is 1.
        detail: the same in words.
        seconds: how long it ran, by the clock.
    """

    code: int | None
    stdout: str
    stderr: str
    failure: Failure | None
    detail: str
    seconds: float
