"""One wording for a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(given: str, names: Iterable[str]) -> str | None:
    """The name that is spelled most like `given`, or None when none comes close."""
    close = difflib.get_close_matches(given, list(names), n=1, cutoff=0.5)
    return close[0] if close else None


def unknown(kind: str, given: str, names: Iterable[str]) -> str:
    """One line: what was given, the nearest name, what exists."""
    names = sorted(names)
    guess = nearest(given, names)
    hint = f" Did you mean {guess!r}?" if guess else ""
    return f"unknown {kind} {given!r}.{hint} There are: {', '.join(names)}."
