"""Writing files so that a crash or a full disk leaves what was there before."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from ..errors import RunStopped


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a disk's refusal into `RunStopped`, which says what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunStopped(
            f"could not write {path}: {reason}. What was written before is intact; make room and "
            "go on with the same command, a training with: entrostat train --resume RUN"
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file of a run under a temporary name, then put it in place: `atomic`, `writing`."""
    with writing(path), atomic(path) as part:
        yield part


def replace_text(path: Path, text: str) -> None:
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`; what was written to it takes the place, whole or not at all.

    The name is random and the file made by this process, so that a link that someone else planted
    is never written through; one under `path` itself is replaced, not followed. Where the disk is
    full or refuses (OSError), what was there before stays.
    """
    make_directory(path.parent)
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield part
        sync(part)
        os.replace(part, path)
        sync(path.parent)
    finally:
        with suppress(OSError):
            part.unlink()


@contextmanager
def atomic_directory(path: Path, aside: Path | None = None) -> Iterator[Path]:
    """A temporary directory beside `path`, then as `atomic`.

    What is at `path` goes `aside` in the same directory, a moment before; without such a place
    there must be nothing, or an empty directory.
    """
    make_directory(path.parent)
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    part.mkdir()
    try:
        yield part
        for written in (*part.rglob("*"), part):
            sync(written)
        if aside is not None and path.exists():
            os.replace(path, aside)
        os.replace(part, path)
        sync(path.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def make_directory(path: Path) -> None:
    """Make a directory and those above it, their names on the disk."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """Have a file's content, or a directory's names, on the disk before going on."""
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system without such a thing
            raise
    finally:
        os.close(place)


def dump_files(folder: Path) -> dict[int, Path]:
    """Iteration -> the file of its rollouts in a folder."""
    files = [p for p in folder.glob("*.safetensors") if p.stem.isascii() and p.stem.isdecimal()]
    return {int(p.stem): p for p in sorted(files, key=lambda p: int(p.stem))}


def in_bytes(count: float) -> str:
    """A size as people read it: 540 MB, 1.6 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            value = count / size
            return f"{value:.0f} {unit}" if value >= 99.5 else f"{value:.2g} {unit}"
    return f"{count:.0f} bytes"
