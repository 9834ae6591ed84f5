"""Errors for external causes that stop a run. Bad arguments are plain `ValueError`s."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


def in_one_line(error: BaseException) -> str:
    """Type and message of an exception from third-party code, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class RunStopped(RuntimeError):  # noqa: N818 - it says what happened, as KeyboardInterrupt does
    """A run cannot continue; earlier files are intact, and the message says what to do."""


class MissingExtraError(ValueError):
    """A package of an extra is not installed; the message names the extra."""


def need(name: str, what: str, package: str) -> None:
    """Check that an extra is installed, before work that needs it later.

    Args:
        name: the extra, as in `pip install 'entrostat[NAME]'`.
        what: the requested feature; begins the message.
        package: the module that it needs.

    Raises:
        MissingExtraError: the package is not installed.
    """
    if find_spec(package) is None:
        raise MissingExtraError(f"{what} needs {package}: pip install 'entrostat[{name}]'")


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Context around a feature's imports: if one is missing, name the extra in one line.

    Args:
        name: the extra, as in `pip install 'entrostat[NAME]'`.
        what: the requested feature; begins the message.

    Raises:
        MissingExtraError: a package imported within is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "entrostat":
            raise
        raise MissingExtraError(
            f"{what} needs {error.name}: pip install 'entrostat[{name}]'"
        ) from None
