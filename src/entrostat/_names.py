"""One wording for a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def close(given: str, names: Iterable[str], most: int = 3) -> list[str]:
    """The names that are spelled most like `given`, whatever its case; the closest first."""
    lower: dict[str, str] = {}
    for name in names:
        lower.setdefault(name.lower(), name)
    found = difflib.get_close_matches(given.lower(), list(lower), n=most, cutoff=0.5)
    return [lower[name] for name in found]


def nearest(given: str, names: Iterable[str]) -> str | None:
    """The name that is spelled most like `given`, or None when none comes close."""
    return next(iter(close(given, names, 1)), None)


def unknown(kind: str, given: str, names: Iterable[str], listed: str | None = None) -> str:
    """One line: what was given, the nearest name, what exists.

    Where there are too many names for a line, `listed` is a sentence that says where they are; the
    line then names the closest few.
    """
    names = sorted(names)
    guesses = close(given, names)
    hint = f" Did you mean {guesses[0]!r}?" if guesses else ""
    if listed is None:
        return f"unknown {kind} {given!r}.{hint} There are: {', '.join(names)}."
    also = f" Also close: {', '.join(guesses[1:])}." if guesses[1:] else ""
    return f"unknown {kind} {given!r}.{hint}{also} {listed}"


def refuse_options(words: Iterable[str], verb: str, known: Iterable[str]) -> None:
    """Refuse what looks like an option and is none.

    Raises:
        ValueError: names the option and the nearest.
    """
    for word in words:
        if word.startswith("-") and word != "-":
            flag = word.split("=")[0]
            guess = nearest(flag.lstrip("-").replace("-", "_"), known)
            hint = f" Did you mean '--{guess}'?" if guess else ""
            raise ValueError(f"unknown option {flag!r}.{hint} `{verb} --help` lists them all.")
