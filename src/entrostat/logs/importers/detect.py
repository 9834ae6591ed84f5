"""The format of a file, by what is in it and not by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import forms, prime_rl, slime, tensorboard, trl, verl, wandb
from .source import Given, UnreadableError, clean, lines, opener_of, parse

RANKED = ("trl", "verl", "prime_rl", "slime", "wandb", "tensorboard", "table")
"""Of several formats in a directory and under it the first is read."""


HEAD = 64 * 1024
VOTES = 5
"""Lines that must speak for a format, unless the file is shorter."""
UNSUPPORTED = {
    b"\x28\xb5\x2f\xfd": "Zstandard, which is not supported: unpack it first",
    b"PAR1": "Parquet, which is not supported (it needs pyarrow): export CSV or JSONL",
}
PICKLE, OTHER = "pickle", "other"


def nearest(path: Path) -> str:
    """What an unknown text has that comes nearest to a log."""
    texts = [text for _, text, _ in lines(path, Given(path)) if text.strip()]
    for text in texts[:200]:
        for word in ("entropy", "reward", "step"):
            if word in text.lower():
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
    kinds = {"tensorboard": tensorboard, "wandb": wandb}
    return next((name for name, kind in kinds.items() if kind.is_file(head)), None)


def unsupported(path: Path, given: Given) -> str | None:
    """Kind of a file that is no text, with a problem; None for a text."""
    try:
        with opener_of(path)(path, "rb") as file:
            head = file.read(8192)
    except (EOFError, OSError) as error:
        if opener_of(path) is open:
            raise
        given.problem(path, None, f"a compressed file that cannot be unpacked ({error})")
        return OTHER
    for magic, reason in UNSUPPORTED.items():
        if head.startswith(magic):
            given.problem(path, None, reason)
            return OTHER
    if head[:4] == b"PK\x03\x04":
        if b"data.pkl" in head or path.suffix in (".pt", ".pth"):
            given.problem(path, None, slime.PICKLE)
            return PICKLE
        given.problem(path, None, "a zip file, which is not supported: unpack it first")
        return OTHER
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05" and len(head) > 1:
        given.problem(path, None, slime.PICKLE)
        return PICKLE
    wide = head[:2] in (b"\xff\xfe", b"\xfe\xff")
    text = head.replace(b"\0", b"")
    control = sum(byte < 32 and byte not in (9, 10, 12, 13, 27) for byte in text)
    if not wide and control > 0.1 * len(text):
        given.problem(path, None, "not text")
        return OTHER
    return None


def detect(path: Path, columns: Mapping[str, str] | None = None) -> str | None:
    """Format of a text file by its contents; None where no format fits."""
    quiet = Given(path, columns or {})
    votes: dict[str, int] = dict.fromkeys(RANKED, 0)
    head: list[str] = []
    size = 0
    for _, text, _ in lines(path, quiet):
        if size < HEAD:
            head.append(text)
            size += len(text)
        if (name := _vote(text)) is not None:
            votes[name] += 1
            if votes[name] >= VOTES:
                break
    if path.name == trl.STATE or trl.is_document("\n".join(head)):
        return "trl"
    # a table fits most of what is an object: the others come first
    best = max((n for n in votes if n != "table"), key=lambda n: votes[n])
    if votes[best] and votes[best] >= 0.1 * votes["table"] and not forms.notebook(path):
        return best
    if votes["table"] or forms.found_in(path, quiet) or forms.header(path, quiet) is not None:
        return "table"
    return None


def _vote(text: str) -> str | None:
    if verl.is_line(text):
        return "verl"
    if slime.is_line(text):
        return "slime"
    if "loss" in text and trl.is_row(text):
        return "trl"
    if text.lstrip()[:1] != "{":
        return "table" if forms.is_line(text) else None
    try:
        record = parse(text)
    except UnreadableError:
        return None
    if not isinstance(record, dict):
        return None
    known: dict[str, Callable[[Mapping[str, Any]], bool]] = {
        "verl": verl.is_record, "prime_rl": prime_rl.is_record, "slime": slime.is_record,
        "wandb": wandb.is_record, "table": forms.is_record,
    }  # fmt: skip
    return next((name for name, fits in known.items() if fits(record)), None)
