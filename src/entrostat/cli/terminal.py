"""What goes to the terminal beside results."""

from __future__ import annotations

import os
import sys
from typing import Any

from .._text import say


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """One line, without the place in the code that a library would name."""
    say(f"entrostat: warning: {_line(message)}", sys.stderr)


def tell(message: str, code: int = 2) -> int:
    """One line on stderr; returns the exit code."""
    say(f"entrostat: error: {_line(message)}", sys.stderr)
    return code


def _line(message: Warning | str) -> str:
    return " ".join(str(message).strip().splitlines())


def quiet_libraries() -> None:
    """Their progress bars and hints would break ours; their errors still come through."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
