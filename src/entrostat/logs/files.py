"""Write files atomically: a crash or a full disk leaves the previous content."""

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
    """Turn an OSError from the disk into `RunStopped`, whose message says what to do."""
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
    """Replace a file of a run atomically (`atomic`, `writing`)."""
    with writing(path), atomic(path) as part:
        yield part


def replace_text(path: Path, text: str) -> None:
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path` that replaces `path` on success, whole or not at all.

    This process creates the file under a random name, so it never writes through a link that
    someone else planted. A link at `path` itself is replaced, not followed. On an OSError (a full
    disk, say) `path` keeps its content.
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
    """Yield a temporary directory beside `path` that replaces `path` on success (see `atomic`).

    An existing `path` is first moved to `aside`, in the same directory. Without `aside`, `path`
    must not exist or be an empty directory.
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
    """Make a directory and its parents, and sync their names to the disk."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """Sync a file's content, or a directory's names, to the disk."""
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system without fsync
            raise
    finally:
        os.close(place)


def dump_files(folder: Path) -> dict[int, Path]:
    """Map each iteration to its rollout file in a folder."""
    files = [p for p in folder.glob("*.safetensors") if p.stem.isascii() and p.stem.isdecimal()]
    return {int(p.stem): p for p in sorted(files, key=lambda p: int(p.stem))}


def in_bytes(count: float) -> str:
    """Format a size for people: 540 MB, 1.6 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            value = count / size
            return f"{value:.0f} {unit}" if value >= 99.5 else f"{value:.2g} {unit}"
    return f"{count:.0f} bytes"
