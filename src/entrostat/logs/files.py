"""Writing files so that a crash or a full disk leaves what was there before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from ..errors import RunStopped


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a disk's refusal into a message that says what to do.

    Raises:
        RunStopped: the disk is full, or refuses for another reason.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunStopped(
            f"could not write {path}: {reason}. What was written before is intact; make room and "
            "go on with: entrostat train --resume RUN"
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file under a temporary name, then put it in place: whole, or not at all.

    Raises:
        RunStopped: the disk is full or refuses; what was there before stays.
    """
    part = path.with_name(f".{path.name}.part")
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield part
            with open(part, "rb") as file:
                os.fsync(file.fileno())
            os.replace(part, path)
        except (OSError, SafetensorError):
            with suppress(OSError):
                part.unlink()
            raise


def in_bytes(count: float) -> str:
    """A size as people read it: 540 MB, 1.6 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            value = count / size
            return f"{value:.0f} {unit}" if value >= 99.5 else f"{value:.2g} {unit}"
    return f"{count:.0f} bytes"
