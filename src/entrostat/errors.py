"""How a run stops when something outside it is wrong. Bad arguments are plain `ValueError`s."""

from __future__ import annotations


def in_one_line(error: BaseException) -> str:
    """Kind and message of an exception that somebody else's code raised."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class RunStopped(RuntimeError):  # noqa: N818 - it says what happened, as KeyboardInterrupt does
    """A run that cannot go on: nothing written before is lost, the message says what to do."""
