"""The format of a file, by what is in it and not by its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import forms, prime_rl, slime, table, tensorboard, trl, verl, wandb
from .source import Given, UnreadableError, clean, lines, opener_of, parse

# Of several formats in a directory and under it the first is read. A reader has `scan` and
# `run_of`, and tells its files by their first bytes (`is_file`), a line or a record.
READERS: dict[str, Any] = {
    "trl": trl, "verl": verl, "prime_rl": prime_rl, "slime": slime, "wandb": wandb,
    "tensorboard": tensorboard, "table": table,
}  # fmt: skip
_FILES, _LINES, _RECORDS = (
    [(name, getattr(reader, tells)) for name, reader in READERS.items() if hasattr(reader, tells)]
    for tells in ("is_file", "is_line", "is_record")
)
_HEAD = 64 * 1024
_VOTES = 5  # lines that must speak for a format, unless the file is shorter
_UNSUPPORTED = {
    b"\x28\xb5\x2f\xfd": "Zstandard, which is not supported: unpack it first",
    b"PAR1": "Parquet, which is not supported (it needs pyarrow): export CSV or JSONL",
    b"PK\x03\x04": "a zip file, which is not supported: unpack it first",
    **{b"\x80" + bytes([protocol]): slime.PICKLE for protocol in (2, 3, 4, 5)},
}


def nearest(path: Path) -> str:
    """What an unknown text has that comes nearest to a log."""
    texts = [text for _, text, _ in lines(path, Given(path)) if text.strip()]
    for text in texts[:200]:
        if any(word in text.lower() for word in ("entropy", "reward", "step")):
            shown = " ".join(clean(text).split())[:80]
            return (
                f": the nearest is {shown!r}; a line needs a step and an entropy or a reward "
                "under their names (step, entropy, reward), or name columns by --entropy"
            )
    return ": no line names a step, an entropy or a reward" if texts else ": it is empty"


def tracker(path: Path) -> str | None:
    """The format of a tracker's file that is no text; None for another."""
    with open(path, "rb") as file:
        head = file.read(512)
    return next((name for name, is_file in _FILES if is_file(head)), None)


def unsupported(path: Path) -> str | None:
    """Why a file is no text that can be read; None for a text."""
    try:
        with opener_of(path)(path, "rb") as file:
            head = file.read(8192)
    except (EOFError, OSError) as error:
        if opener_of(path) is open:
            raise
        return f"a compressed file that cannot be unpacked ({error})"
    for magic, reason in _UNSUPPORTED.items():
        if head.startswith(magic):
            torch = b"data.pkl" in head or path.suffix in (".pt", ".pth")
            return slime.PICKLE if torch and magic.startswith(b"PK") else reason
    text = head.replace(b"\0", b"")
    control = sum(byte < 32 and byte not in (9, 10, 12, 13, 27) for byte in text)
    wide = head[:2] in (b"\xff\xfe", b"\xfe\xff")
    return "not text" if not wide and control > 0.1 * len(text) else None


def detect(path: Path, columns: Mapping[str, str] | None = None) -> str | None:
    """Format of a text file by its contents; None where no format fits."""
    quiet = Given(path, columns or {})
    votes: dict[str, int] = dict.fromkeys(READERS, 0)
    head: list[str] = []
    size = 0
    for _, text, _ in lines(path, quiet):
        if size < _HEAD:
            head.append(text)
            size += len(text)
        if (name := _vote(text)) is not None:
            votes[name] += 1
            if votes[name] >= _VOTES:
                break
    if path.name == trl.STATE or trl.is_document("\n".join(head)):
        return "trl"
    # a table fits most of what is an object: the others come first
    best = max((n for n in votes if n != "table"), key=lambda n: votes[n])
    if votes[best] and votes[best] >= 0.1 * votes["table"]:
        return best
    if votes["table"] or table.found_in(path, quiet) or forms.header(path, quiet) is not None:
        return "table"
    return None


def _vote(text: str) -> str | None:
    if (name := next((name for name, is_line in _LINES if is_line(text)), None)) is not None:
        return name
    if text.lstrip()[:1] != "{":
        return None
    try:
        record = parse(text)
    except UnreadableError:
        return None
    told = _RECORDS if isinstance(record, dict) else ()
    return next((name for name, is_record in told if is_record(record)), None)
