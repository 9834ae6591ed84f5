"""What goes to the terminal beside results."""

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
    """One line, without the place in the code that a library would name."""
    say(f"entrostat: warning: {_line(message)}", sys.stderr)


def tell(message: str, code: int = 2) -> int:
    """One line on stderr; returns the exit code."""
    say(f"entrostat: error: {_line(message)}", sys.stderr)
    return code


def _line(message: Warning | str) -> str:
    return " ".join(str(message).strip().splitlines())


def say_page(write: Callable[..., object], *args: Any) -> None:
    """Write a page, and say where it is; without the extra, what is done stays done."""
    try:
        say(f"report: {write(*args)}")
    except MissingExtraError as error:
        say(f"no page: {error}")


def quiet_libraries() -> None:
    """Their progress bars and hints would break ours; their errors still come through."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def wrapped(text: str, indent: int = 0, most: int = 100) -> str:
    """A text in lines as wide as the terminal, at most `most` columns, each indented."""
    blank = " " * indent
    return textwrap.fill(
        text, min(shutil.get_terminal_size().columns, most), initial_indent=blank,
        subsequent_indent=blank, break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


def say_entry(name: str, *lines: str, width: int = 16, most: int = 100) -> None:
    """One of a list: a name, and beside it lines that are wrapped."""
    text = "\n".join(wrapped(line, width + 3, most) for line in lines)
    say(f"  {name:<{width}} {text.lstrip()}")
