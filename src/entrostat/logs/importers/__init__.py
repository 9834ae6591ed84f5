"""Runs of other trainers, read as ours: `read("outputs/checkpoint-500")`, `read_all("outputs")`.

`names` has the names of every trainer's quantities, `source` how a file is read safely, `rows`
which lines are of one run; one file a format. Formats are told by what is in the files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..run import MOST, Run, called
from . import entrostat, prime_rl, slime, table, tensorboard, trl, verl, wandb
from .names import KINDS
from .rows import Group, Piece, Row, groups_of, pieces_of
from .source import Given, UnreadableError, clean, lines, opener_of, parse, records, step_of
from .steps import Dumped

FORMATS: dict[str, str] = {
    "entrostat": "a run directory of entrostat",
    "trl": "TRL's or ms-swift's trainer_state.json, logging.jsonl, console, output directory",
    "verl": "veRL's console log, file logger's JSONL, rollout dumps",
    "prime_rl": "prime-rl's token export or annotations, JSONL",
    "slime": "slime's console log, or samples exported to JSONL",
    "tensorboard": "TensorBoard's event files",
    "wandb": "W&B's run-ID.wandb, wandb-history.jsonl",
    "table": "CSV, JSON, Markdown, HTML, a notebook or a console with step, entropy, score",
}
RANKED = ("trl", "verl", "prime_rl", "slime", "wandb", "tensorboard", "table")
"""Of several formats in a directory and under it the first is read."""

HEAD = 64 * 1024
VOTES = 5
"""Lines that must speak for a format, unless the file is shorter."""
MAX_FILES = 20_000
MAX_DEPTH = 6
BINARY = (
    ".safetensors", ".bin", ".distcp", ".npy", ".npz", ".png", ".jpg", ".pdf", ".so", ".arrow",
)  # fmt: skip
UNSUPPORTED = {
    b"\x28\xb5\x2f\xfd": "Zstandard, which is not supported: unpack it first",
    b"PAR1": "Parquet, which is not supported (it needs pyarrow): export CSV or JSONL",
}
PICKLE, OTHER = "pickle", "other"


def read(
    path: str | Path, format: str | None = None, columns: Mapping[str, str] | None = None
) -> Run:
    """Read a run that any known trainer left; of several the longest, with a note on the others.

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
    runs, skipped = read_all(path, format, columns)
    run = max(runs, key=lambda each: len(each.metrics))
    others = [each.name for each in runs if each is not run]
    notes = list(run.notes)
    if others:
        notes.append(
            f"Read {run.name}; other runs beside it are not, name their directories: "
            f"{', '.join(others[:5])}{', ...' if others[5:] else ''}."
        )
    return replace(run, notes=(*notes, *skipped))


def read_all(
    path: str | Path, format: str | None = None, columns: Mapping[str, str] | None = None
) -> tuple[list[Run], tuple[str, ...]]:
    """Read every run that lies in a file or a directory.

    Args:
        path: as of `read`.
        format: as of `read`.
        columns: as of `read`.

    Returns:
        the runs, at least one, each under a name of its own; a sentence for each that has no steps
        or cannot be read.

    Raises:
        ValueError: as `read`.
    """
    columns = dict(columns or {})
    if format is not None and format not in FORMATS:
        raise ValueError(f"format {format!r} is unknown; choose from {', '.join(FORMATS)}")
    if wrong := [kind for kind in columns if kind not in KINDS]:
        raise ValueError(f"columns: {wrong[0]!r} is unknown; choose from {', '.join(KINDS)}")
    if columns and format not in (None, "table"):
        raise ValueError(f"columns are for tables; format is {format!r}")
    path, format = Path(path), "table" if columns else format
    given = Given(path, columns)
    try:
        if not path.is_dir() and not path.is_file():
            raise ValueError(f"{str(path)!r} is neither a file nor a directory")
        ours, skipped = _ours(path, format, given)
        found = _Found(path, format, given, [run.path for run in ours])
        runs, more = found.runs()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(f"{str(path)!r} cannot be read: {reason}") from None
    runs, skipped = [*ours, *runs], [*skipped, *more]
    if not runs and entrostat.is_begun(path):
        raise ValueError(
            f"{clean(str(path))!r} has no iteration yet; if it was stopped, "
            "`entrostat train --resume` goes on with it"
        )
    if not runs and len(found.refused) == 1:
        raise ValueError(found.refused[0])
    if not runs:
        raise ValueError(_nothing(path, format, given, skipped))
    return runs, tuple(clean(" ".join(text.split())) for text in skipped)


def _ours(path: Path, format: str | None, given: Given) -> tuple[list[Run], list[str]]:
    """Runs of entrostat at or under a path, and why others cannot be read."""
    if format not in (None, "entrostat"):
        return [], []
    if path.is_file():
        if path.name == "metrics.jsonl" and entrostat.is_run(path.parent) and _is_ours(path):
            return [entrostat.read(path.parent)], []
        if format == "entrostat":
            raise ValueError(f"{str(path)!r} is a file; name the directory of the run")
        return [], []
    if entrostat.is_run(path):
        return [entrostat.read(path)], []
    note = ""
    if next(trl.states(path), None) is not None and format is None:
        if (beside := entrostat.under(path.resolve())) is not None:
            note = f"Read from {clean(beside.name)}/, which has more than TRL's own log beside it."
            run = entrostat.read(beside)
            return [replace(run, notes=(*run.notes, note))], []
        return [], []
    places = [f.parent for f in _walk(path, Given(path)) if f.name == "metrics.jsonl"]
    runs, skipped = [], []
    for place in places:
        if entrostat.is_run(place):
            try:
                runs.append(entrostat.read(place))
            except ValueError as error:
                skipped.append(str(error))
    if format == "entrostat" and not runs:
        raise ValueError(f"{str(path)!r} holds no metrics.jsonl of entrostat")
    return runs, skipped


def _is_ours(path: Path) -> bool:
    first = next((record for _, record in records(path, Given(path))), {})
    return "iteration" in first and any(key.startswith("entropy/") for key in first)


def _nothing(path: Path, format: str | None, given: Given, skipped: Sequence[str]) -> str:
    wanted = [format] if format else list(FORMATS)
    looked = "; ".join(f"{name}: {FORMATS[name]}" for name in wanted)
    first = given.kept[0] if given.kept else None
    where = f"{first.file}:{first.line}" if first and first.line else first.file if first else ""
    because = f" (first of {given.count} problems: {where}: {first.reason})" if first else ""
    if skipped:
        because = f" ({'; '.join(skipped[:3])})"
    message = f"{str(path)!r} holds nothing that can be read{because}; looked for {looked}"
    return " ".join(clean(message).split())


class _Found:
    """Files of a path by format, read into the runs that they are of."""

    def __init__(self, path: Path, format: str | None, given: Given, ours: Sequence[Path]) -> None:
        self.root, self.given, self.refused = path, given, list[str]()
        self.others, self.left = 0, dict[str, list[Path]]()
        self.pickles = Given(path)
        self.by_format: dict[str, list[Path]] = {}
        files: Iterable[Path] = [path] if path.is_file() else _walk(path, given)
        for file in files:
            if any(place in file.parents for place in ours) or (
                path.is_dir() and file.suffix in BINARY
            ):
                self.others += file.suffix in BINARY
                continue
            try:
                found = self._format(file, format)
            except OSError as error:
                given.problem(file, None, f"cannot be read: {error.strerror}")
                continue
            if found is None:
                self.others += 1
            elif found:
                self.by_format.setdefault(found, []).append(file)
        if path.is_dir():
            self._leave_out_copies()
            self._rank()
        if self.pickles.kept and (not self.by_format or "slime" in self.by_format):
            given.kept += self.pickles.kept
            given.count += self.pickles.count

    def _format(self, file: Path, format: str | None) -> str | None:
        """Its format; "" where it is not to be read, None where it is no log."""
        kept = _tracker(file)
        if kept is not None:
            return kept if format in (None, kept) or self.given.columns else ""
        kind = Given(self.root)
        if (sort := _unsupported(file, kind)) is not None:
            chosen = self.pickles if sort == PICKLE else self.given
            chosen.problem(file, None, kind.kept[0].reason)
            return ""
        if self.root.is_file() and format is not None:
            return format
        found = detect(file, self.given.columns)
        if found is None and self.root.is_file():
            self.given.problem(file, None, f"not recognised{_nearest(file)}")
        return found if format in (None, found) or found is None else ""

    def _leave_out_copies(self) -> None:
        """Of a run of W&B's its log alone: the console and the summary beside it say less."""
        logs = [file for file in self.by_format.get("wandb", ()) if file.suffix == ".wandb"]
        homes = {_home(file) for file in logs}
        for name, files in self.by_format.items():
            kept = [file for file in files if file in logs or _home(file) not in homes]
            self.by_format[name] = kept

    def _rank(self) -> None:
        """Leave out files of a lower format where a better one is beside or beneath them."""
        homes = {name: {_home(f) for f in files} for name, files in self.by_format.items()}
        for place, name in enumerate(RANKED):
            better = [h for each in RANKED[:place] for h in homes.get(each, ())]
            kept = []
            for file in self.by_format.get(name, ()):
                home = _home(file)
                covered = any(home == h or home in h.parents or h in home.parents for h in better)
                (self.left.setdefault(name, []) if covered else kept).append(file)
            self.by_format[name] = kept

    def runs(self) -> tuple[list[Run], list[str]]:
        """The runs, each under its own name, and what was skipped."""
        made: list[tuple[Group | None, Run]] = []
        skipped: list[str] = []
        for name in RANKED:
            if not (files := self.by_format.get(name, [])):
                continue
            if name == "prime_rl":
                made += [(None, run) for run in prime_rl.runs_of(files, self.given)]
                continue
            groups, dumped, empty = self._scanned(name, files)
            skipped += [f"{self._short(file)}: no step is logged" for file in empty]
            if not groups and dumped:
                run = (verl if name == "verl" else slime).run_of([], self._own(files), dumped)
                made += [] if run is None else [(None, run)]
            for group in groups:
                own = self._own(group.sources)
                try:
                    run = _run_of(name, group.rows, own, dumped if len(groups) == 1 else None)
                except ValueError as error:
                    self.refused.append(str(error))
                    skipped.append(f"{self._short(group.sources[0])}: {error}")
                    continue
                if run is not None:
                    made.append((group, run))
        if not made:
            return [], skipped if self.root.is_dir() and len(skipped) > 1 else []
        notes = self._notes(len(made))
        if len(made) == 1:
            group, run = made[0]
            named = group and group.run and run.source.endswith(wandb.TITLE)
            label = _called(group) if named and group else run.label
            return [replace(run, label=label, notes=(*run.notes, *notes))], skipped
        names = _told_apart([(group, run) for group, run in made], self.root)
        runs = [
            replace(run, path=group.sources[0] if group else run.path, label=label)
            for (group, run), label in zip(made, names, strict=True)
        ]
        runs[0] = replace(runs[0], notes=(*runs[0].notes, *notes))
        return runs, skipped

    def _scanned(
        self, name: str, files: Sequence[Path]
    ) -> tuple[list[Group], Dumped | None, list[Path]]:
        dumped = Dumped() if name in ("verl", "slime") else None
        pieces: list[Piece] = []
        empty: list[Path] = []
        if name == "tensorboard":
            scanned: list[tuple[Path, Callable[[], Iterable[Row]]]] = [
                (files[0], lambda: tensorboard.scan(_ordered(files), self.given))
            ]
        else:
            scanned = [(file, lambda file=file: self._scan(name, file, dumped)) for file in files]
        if name == "trl":
            read = _newest_states(files, self.given)
            scanned = [(file, lambda rows=rows: rows) for file, rows in read.items()]
        for file, scan in scanned:
            try:
                rows = list(scan())
            except ValueError as error:
                self.refused.append(str(error))
                continue
            if not rows and not (dumped and any(file in each for each in dumped.where.values())):
                empty.append(file)
            by_file: dict[Path, list[Row]] = {}
            for row in rows:
                by_file.setdefault(row.path, []).append(row)
            for path, some in by_file.items():
                steps = (found for row in some if (found := step_of(row.step)) is not None)
                order = (min(steps, default=MOST), path.stat().st_mtime, str(path))
                pieces += pieces_of(some, _home(path), order)
        return groups_of(pieces), dumped, empty if self.root.is_dir() else []

    def _scan(self, name: str, file: Path, dumped: Dumped | None) -> Iterable[Row]:
        if name == "verl" and dumped is not None:
            return verl.scan(file, self.given, dumped)
        if name == "slime" and dumped is not None:
            return slime.scan(file, self.given, dumped)
        return (wandb if name == "wandb" else table).scan(file, self.given)

    def _own(self, files: Sequence[Path]) -> Given:
        """What was asked for, with the problems of these files."""
        inside = {self._short(file) for file in files}
        known = self.root.is_file()
        kept = [p for p in self.given.kept if known or p.file in inside or not p.line]
        count = self.given.count - (len(self.given.kept) - len(kept))
        return replace(self.given, kept=kept, count=count, notes=[*self.given.notes], broken={})

    def _short(self, file: Path) -> str:
        return clean(str(file.relative_to(self.root)) if file != self.root else file.name)

    def _notes(self, runs: int) -> list[str]:
        notes = []
        for name, files in self.left.items():
            if files:
                which = clean(files[0].name) + (f" and {len(files) - 1} more" if files[1:] else "")
                notes.append(f"Not read, of another format ({name}): {which}.")
        if self.others and self.root.is_dir():
            notes.append(f"{self.others} other files are no logs, and were not read.")
        return notes


def _run_of(name: str, rows: list[Row], given: Given, dumped: Dumped | None) -> Run | None:
    if name == "verl":
        return verl.run_of(rows, given, dumped)
    if name == "slime":
        return slime.run_of(rows, given, dumped)
    if name == "trl":
        return trl.run_of(rows, given)
    through = {"tensorboard": tensorboard.TITLE, "wandb": wandb.TITLE}.get(name, "")
    return table.run_of(rows, given, through)


def _home(file: Path) -> Path:
    """The directory that stands for a run: of a checkpoint, or of W&B's files, the one above."""
    parent = file.parent
    if parent.name.startswith("checkpoint-"):
        return parent.parent
    return parent.parent if parent.name == "files" and "run-" in parent.parent.name else parent


def _newest_states(files: Sequence[Path], given: Given) -> dict[Path, list[Row]]:
    """Rows of TRL's logs, without the states of checkpoints older than the newest that is whole."""
    states: dict[Path, list[Path]] = {}
    found: dict[Path, list[Row]] = {}
    for file in files:
        if file.name == trl.STATE:
            states.setdefault(_home(file), []).append(file)
        else:
            found[file] = list(trl.scan(file, given))
    for home, some in states.items():
        best: tuple[int, Path, list[Row]] | None = None
        for file in [file for file in trl.states(home) if file in some] or some:
            rows = list(trl.scan(file, given))
            last = max((step_of(row.step) or 0 for row in rows), default=-1)
            if rows and (best is None or last > best[0]):
                best = last, file, rows
                if file.parent != home:
                    break  # the other checkpoints are older
        if best is not None:
            found[best[1]] = best[2]
    return found


def _told_apart(made: Sequence[tuple[Group | None, Run]], root: Path) -> list[str]:
    """A name for each run: what its source calls it, else its file or directory; a number last."""
    found = []
    files = [group.sources[0] if group else None for group, _ in made]
    same = len({file.name for file in files if file is not None}) == 1
    for (group, run), file in zip(made, files, strict=True):
        if group is None or file is None:
            found.append(run.label or run.name)
        elif group.run:
            found.append(_called(group))
        elif file == root:
            found.append(file.name)
        else:
            place = _home(file) if file.name == trl.STATE or same else file
            inside = place.relative_to(root)
            found.append(str(inside) if inside.parts else called(file))
    counts = {name: found.count(name) for name in found}
    numbers: dict[str, int] = {}
    names = []
    for name in found:
        numbers[name] = numbers.get(name, 0) + 1
        more = f", run {numbers[name]} of {counts[name]}" if counts[name] > 1 else ""
        names.append(clean(name + more))
    return names


def _called(group: Group) -> str:
    """What the source calls a run; W&B has an id, and a name that need not be its own."""
    name = next((row.settings.get(wandb.CALLED) for row in reversed(group.rows)), None)
    return f"{name} ({group.run})" if name else group.run


def _nearest(path: Path) -> str:
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


def _tracker(path: Path) -> str | None:
    """The format of a tracker's file that is no text; None for another."""
    with open(path, "rb") as file:
        head = file.read(512)
    kinds = {"tensorboard": tensorboard, "wandb": wandb}
    return next((name for name, kind in kinds.items() if kind.is_file(head)), None)


def _unsupported(path: Path, given: Given) -> str | None:
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
    if votes[best] and votes[best] >= 0.1 * votes["table"] and not table.notebook(path):
        return best
    if votes["table"] or table.found_in(path, quiet) or table.header(path, quiet) is not None:
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


def several(root: Path) -> list[Path]:
    """Directories under `root` with a run each that TensorBoard or W&B kept; empty for one run."""
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
