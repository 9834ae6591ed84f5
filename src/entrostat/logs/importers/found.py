"""Which files of a path are logs, of which format, and the runs that they are of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..run import MOST, Run, called
from . import forms, prime_rl, slime, table, tensorboard, trl, verl, wandb
from .detect import PICKLE, RANKED, detect, nearest, tracker, unsupported
from .rows import Group, Piece, Row, groups_of, pieces_of
from .source import Given, clean, step_of
from .steps import Dumped

MAX_FILES = 20_000
MAX_DEPTH = 6
BINARY = (
    ".safetensors", ".bin", ".distcp", ".npy", ".npz", ".png", ".jpg", ".pdf", ".so", ".arrow",
)  # fmt: skip


class Found:
    """Files of a path by format, read into the runs that they are of."""

    def __init__(self, path: Path, format: str | None, given: Given, ours: Sequence[Path]) -> None:
        self.root, self.given, self.refused = path, given, list[str]()
        self.others, self.left = 0, dict[str, list[Path]]()
        self.pickles = Given(path)
        self.by_format: dict[str, list[Path]] = {}
        files: Iterable[Path] = [path] if path.is_file() else walk(path, given)
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
        kept = tracker(file)
        if kept is not None:
            return kept if format in (None, kept) or self.given.columns else ""
        kind = Given(self.root)
        if (sort := unsupported(file, kind)) is not None:
            chosen = self.pickles if sort == PICKLE else self.given
            chosen.problem(file, None, kind.kept[0].reason)
            return ""
        if self.root.is_file() and format is not None:
            return format
        found = detect(file, self.given.columns)
        if found is None and self.root.is_file():
            self.given.problem(file, None, f"not recognised{nearest(file)}")
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
        return (wandb if name == "wandb" else forms).scan(file, self.given)

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


def several(root: Path) -> list[Path]:
    """Directories under `root` with a run each that TensorBoard or W&B kept; empty for one run."""
    events: dict[Path, None] = {}
    logs: dict[str, list[Path]] = {}
    for file in walk(root, Given(root)):
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


def walk(root: Path, given: Given) -> Iterator[Path]:
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
