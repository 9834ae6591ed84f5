"""What goes to the terminal beside results."""

from __future__ import annotations

import os
import sys
from typing import Any


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """One line, without the place in the code that a library would name."""
    print(f"entrostat: warning: {str(message).strip()}", file=sys.stderr)


def tell(message: str, code: int = 2) -> int:
    """One line on stderr; returns the exit code."""
    print(f"entrostat: error: {message}", file=sys.stderr)
    return code


def quiet_libraries() -> None:
    """Their progress bars and hints would break ours; their errors still come through."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
