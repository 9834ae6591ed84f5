"""How a run stops when something outside it is wrong. Bad arguments are plain `ValueError`s."""

from __future__ import annotations


class RunStopped(RuntimeError):  # noqa: N818 - it says what happened, as KeyboardInterrupt does
    """A run that cannot go on: nothing written before is lost, the message says what to do."""
