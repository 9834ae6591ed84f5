"""How a run stops when something outside it is wrong. Bad arguments are plain `ValueError`s."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


def in_one_line(error: BaseException) -> str:
    """Kind and message of an exception that somebody else's code raised."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class RunStopped(RuntimeError):  # noqa: N818 - it says what happened, as KeyboardInterrupt does
    """A run that cannot go on: nothing written before is lost, the message says what to do."""


class MissingExtraError(ValueError):
    """A package of an extra is not installed; the message names the extra."""


def need(name: str, what: str, package: str) -> None:
    """Ask for an extra before work begins that would fail for the lack of it later.

    Args:
        name: the extra, as in `pip install 'entrostat[NAME]'`.
        what: what the user asked for; begins the message.
        package: the module that it takes.

    Raises:
        MissingExtraError: the package is not installed.
    """
    if find_spec(package) is None:
        raise MissingExtraError(f"{what} needs {package}: pip install 'entrostat[{name}]'")


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Say in one line which extra a feature needs; for `with`, around its imports.

    Args:
        name: the extra, as in `pip install 'entrostat[NAME]'`.
        what: what the user asked for; begins the message.

    Raises:
        MissingExtraError: a package that is imported within is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "entrostat":
            raise
        raise MissingExtraError(
            f"{what} needs {error.name}: pip install 'entrostat[{name}]'"
        ) from None
