"""Terminal output other than results: warnings, errors, wrapped text."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from .._text import say
from ..errors import MissingExtraError


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one line, without file and line number."""
    say(f"entrostat: warning: {_line(message)}", sys.stderr)


def tell(message: str, code: int = 2) -> int:
    """Print an error as one line on stderr; returns the exit code."""
    say(f"entrostat: error: {_line(message)}", sys.stderr)
    return code


def _line(message: Warning | str) -> str:
    return " ".join(str(message).strip().splitlines())


def say_page(write: Callable[..., object], *args: Any) -> None:
    """Write a page and print its path; a missing extra only prints a message."""
    try:
        say(f"report: {write(*args)}")
    except MissingExtraError as error:
        say(f"no page: {error}")


def quiet_libraries() -> None:
    """Turn off other libraries' progress bars and hints, which break ours; errors still show."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def wrapped(text: str, indent: int = 0, most: int = 100) -> str:
    """Wrap a text to the terminal's width, at most `most` columns, with an indent."""
    blank = " " * indent
    return textwrap.fill(
        text, min(shutil.get_terminal_size().columns, most), initial_indent=blank,
        subsequent_indent=blank, break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


def say_entry(name: str, *lines: str, width: int = 16, most: int = 100) -> None:
    """Print a list entry: a name, and wrapped lines beside it."""
    text = "\n".join(wrapped(line, width + 3, most) for line in lines)
    say(f"  {name:<{width}} {text.lstrip()}")
