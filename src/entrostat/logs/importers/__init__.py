"""Runs of other trainers, read as ours: `read("outputs/checkpoint-500")`.

One file a format, and `source` for what they share. Formats are told by what is in the files,
not by their names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ..run import Run
from . import entrostat, prime_rl, slime, table, tensorboard, trl, verl, wandb
from .source import Given, UnreadableError, clean, lines, parse, records

FORMATS: dict[str, str] = {
    "entrostat": "a run directory of entrostat",
    "trl": "TRL's trainer_state.json, a checkpoint or an output directory",
    "verl": "veRL's console log, file logger's JSONL, rollout dumps",
    "prime_rl": "prime-rl's token export or annotations, JSONL",
    "slime": "slime's console log, or samples exported to JSONL",
    "tensorboard": "TensorBoard's event files",
    "wandb": "W&B's run-ID.wandb, wandb-history.jsonl",
    "table": "CSV, JSONL or a JSON list with columns for step, entropy, score",
}
READERS: dict[str, ModuleType] = {
    "trl": trl, "verl": verl, "prime_rl": prime_rl, "slime": slime, "tensorboard": tensorboard,
    "wandb": wandb, "table": table,
}  # fmt: skip

HEAD = 64 * 1024
VOTES = 5
"""Lines that must speak for a format, unless the file is shorter."""
MAX_FILES = 20_000
MAX_DEPTH = 6
BINARY = (
    ".safetensors", ".bin", ".distcp", ".npy", ".npz", ".png", ".jpg", ".pdf", ".so", ".arrow",
)  # fmt: skip
UNSUPPORTED = {
    b"\x1f\x8b": "gzip, which is not supported: unpack it first",
    b"BZh": "bzip2, which is not supported: unpack it first",
    b"\xfd7zXZ": "xz, which is not supported: unpack it first",
    b"\x28\xb5\x2f\xfd": "Zstandard, which is not supported: unpack it first",
    b"PAR1": "Parquet, which is not supported (it needs pyarrow): export CSV or JSONL",
}
PICKLE, OTHER = "pickle", "other"


def read(
    path: str | Path, format: str | None = None, columns: Mapping[str, str] | None = None
) -> Run:
    """Read a run that any known trainer left.

    Args:
        path: a file or a directory.
        format: a key of `FORMATS`; None tells it by the contents.
        columns: for tables, the source's names of "step", "entropy" and "score", any of them.

    Returns:
        the run: exact entropies as `entropy/exact`, sampled ones as `entropy/nll`, others as
        `entropy/logged`; `Run.entropy_is` says which, `Run.problems` what could not be read.

    Raises:
        ValueError: nothing in it can be read, or an argument is wrong; one line.
    """
    columns = dict(columns or {})
    if format is not None and format not in FORMATS:
        raise ValueError(f"format {format!r} is unknown; choose from {', '.join(FORMATS)}")
    if wrong := [kind for kind in columns if kind not in table.KINDS]:
        raise ValueError(f"columns: {wrong[0]!r} is unknown; choose from {', '.join(table.KINDS)}")
    if columns and format not in (None, "table"):
        raise ValueError(f"columns are for tables; format is {format!r}")
    path, format = Path(path), "table" if columns else format
    given = Given(path, columns)
    try:
        if path.is_dir():
            run = _directory(path, format, given)
        elif path.is_file():
            run = _file(path, format, given)
        else:
            raise ValueError(f"{str(path)!r} is neither a file nor a directory")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(f"{str(path)!r} cannot be read: {reason}") from None
    if run is None and entrostat.is_begun(path):
        raise ValueError(
            f"{clean(str(path))!r} has no iteration yet; if it was stopped, "
            "`entrostat train --resume` goes on with it"
        )
    if run is None:
        raise ValueError(_nothing(path, format, given))
    return run


def _nothing(path: Path, format: str | None, given: Given) -> str:
    wanted = [format] if format else list(FORMATS)
    looked = "; ".join(f"{name}: {FORMATS[name]}" for name in wanted)
    first = given.kept[0] if given.kept else None
    where = f"{first.file}:{first.line}" if first and first.line else first.file if first else ""
    because = f" (first of {given.count} problems: {where}: {first.reason})" if first else ""
    message = f"{str(path)!r} holds nothing that can be read{because}; looked for {looked}"
    return " ".join(clean(message).split())


def _file(path: Path, format: str | None, given: Given) -> Run | None:
    ours = path.name == "metrics.jsonl" and format in (None, "entrostat")
    if ours and entrostat.is_run(path.parent) and _is_ours(path):
        return entrostat.read(path.parent)
    if format == "entrostat":
        raise ValueError(f"{str(path)!r} is a file; name the directory of the run")
    kept = _tracker(path)
    if kept is not None and (format in (None, kept) or given.columns):
        return READERS[kept].read([path], given)
    kind = _unsupported(path, given)
    if kind is not None:
        return None
    found = format or detect(path)
    if found is None:
        given.problem(path, None, "not recognised")
        return None
    return READERS[found].read([path], given)


def _tracker(path: Path) -> str | None:
    """The format of a tracker's file that is no text; None for another."""
    with open(path, "rb") as file:
        head = file.read(512)
    return next((n for n in ("tensorboard", "wandb") if READERS[n].is_file(head)), None)


def _is_ours(path: Path) -> bool:
    first = next((record for _, record in records(path, Given(path))), {})
    return "iteration" in first and any(key.startswith("entropy/") for key in first)


def _unsupported(path: Path, given: Given) -> str | None:
    """Kind of a file that is no text, with a problem; None for a text."""
    with open(path, "rb") as file:
        head = file.read(8192)
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


def detect(path: Path) -> str | None:
    """Format of a text file by its contents; None where no format fits."""
    quiet = Given(path)
    votes: dict[str, int] = dict.fromkeys(READERS, 0)
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
    if trl.is_document("\n".join(head)):
        return "trl"
    # a table fits most of what is an object: the others come first
    best = max((n for n in votes if n != "table"), key=lambda n: votes[n])
    if votes[best] and votes[best] >= 0.1 * votes["table"]:
        return best
    if votes["table"] or table.header(path, quiet) is not None:
        return "table"
    rows: Iterator[tuple[int, dict[str, Any]]] = records(path, quiet)
    for place, (_, record) in enumerate(rows):
        if table.is_record(record):
            return "table"
        if place > 1000:
            break
    return None


def _vote(text: str) -> str | None:
    if verl.is_line(text):
        return "verl"
    if slime.is_line(text):
        return "slime"
    if text.lstrip()[:1] != "{":
        return None
    try:
        record = parse(text)
    except UnreadableError:
        return None
    if not isinstance(record, dict):
        return None
    known: dict[str, Callable[[Mapping[str, Any]], bool]] = {
        "verl": verl.is_record, "prime_rl": prime_rl.is_record, "slime": slime.is_record,
        "wandb": wandb.is_record, "table": table.is_record,
    }  # fmt: skip
    return next((name for name, fits in known.items() if fits(record)), None)


def _directory(path: Path, format: str | None, given: Given) -> Run | None:
    if format in (None, "entrostat"):
        if entrostat.is_run(path):
            return entrostat.read(path)
        if format == "entrostat":
            raise ValueError(f"{str(path)!r} holds no metrics.jsonl of entrostat")
    if format in (None, "trl") and (files := list(trl.states(path))):
        if format is None and (ours := entrostat.under(path.resolve())) is not None:
            note = f"Read from {clean(ours.name)}/, which has more than TRL's own log beside it."
            run = entrostat.read(ours)
            return replace(run, notes=(*run.notes, note))
        run = trl.read(files, given)
        if run is not None or format == "trl":
            return run
    by_format: dict[str, list[Path]] = {}
    pickles, others = Given(path), 0
    for file in _walk(path, given):
        kind = Given(path)
        if file.suffix in BINARY:
            others += 1
            continue
        try:
            if (kept := _tracker(file)) is not None:
                if format in (None, kept) or given.columns:
                    by_format.setdefault(kept, []).append(file)
                continue
            if (sort := _unsupported(file, kind)) is not None:
                chosen = pickles if sort == PICKLE else given
                chosen.problem(file, None, kind.kept[0].reason)
                continue
            found = detect(file)
        except OSError as error:
            given.problem(file, None, f"cannot be read: {error.strerror}")
            continue
        if found is None:
            others += 1
        elif format in (None, found):
            by_format.setdefault(found, []).append(file)
    for name in READERS:
        if not (files := by_format.pop(name, [])):
            continue
        if name == "slime":
            _take(pickles, given)
        if (run := READERS[name].read(_ordered(files), given)) is not None:
            return _with_notes(run, by_format, others)
    _take(pickles, given)
    return None


def several(root: Path) -> list[Path]:
    """Directories under `root` with a run each that TensorBoard or W&B kept.

    Empty where they are not several, or where a run of W&B's went on in a second directory: all of
    `root` is then one run.
    """
    events: dict[Path, None] = {}
    logs: dict[str, list[Path]] = {}
    for file in _walk(root, Given(root)):
        if "tfevents" in file.name:
            events[file.parent] = None
        elif file.suffix == ".wandb":
            logs.setdefault(file.name, []).append(file.parent)
    if len(logs) > 1 and all(len(folders) == 1 for folders in logs.values()):
        return sorted(folder for (folder,) in logs.values())
    return sorted(events) if len(events) > 1 else []


def _take(pickles: Given, given: Given) -> None:
    given.kept += pickles.kept
    given.count += pickles.count


def _with_notes(run: Run, left: Mapping[str, Sequence[Path]], others: int) -> Run:
    notes = list(run.notes)
    for name, files in left.items():
        which = clean(files[0].name) + (f" and {len(files) - 1} more" if files[1:] else "")
        notes.append(f"Not read, of another format ({name}): {which}.")
    if others:
        notes.append(f"{others} other files are no logs, and were not read.")
    return replace(run, notes=tuple(notes))


def _ordered(files: Sequence[Path]) -> list[Path]:
    """Oldest first, so that what a restarted run logged later counts."""
    return sorted(files, key=lambda p: (p.stat().st_mtime, str(p)))


def _walk(root: Path, given: Given) -> Iterator[Path]:
    """Files under a directory; links to directories are not followed."""
    count = 0
    for folder, names, files in os.walk(root):
        depth = len(Path(folder).relative_to(root).parts)
        names[:] = sorted(n for n in names if not n.startswith(".")) if depth < MAX_DEPTH else []
        for name in sorted(files):
            file = Path(folder, name)
            if name.startswith(".") or not file.is_file():
                continue
            count += 1
            if count > MAX_FILES:
                given.problem(root, None, f"more than {MAX_FILES} files; the rest is not read")
                return
            yield file
