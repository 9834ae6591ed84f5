"""Which files of a path are logs, of which format, and the runs that they are of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ..run import MOST, Run, called
from . import forms, slime, table, tensorboard, trl, wandb
from .detect import READERS, detect, nearest, tracker, unsupported
from .names import trainer_of
from .places import BINARY, walk
from .rows import Group, Piece, Row, groups_of, pieces_of
from .source import Given, clean, step_of
from .steps import Dumped, Rollout

Made = tuple[Group | None, Run]
_LOGS = (".log", ".out", ".err", ".jsonl")


class Found:
    """Files of a path by format, read into the runs that they are of."""

    def __init__(self, path: Path, format: str | None, given: Given, ours: Sequence[Path]) -> None:
        self.root, self.given, self.refused = path, given, list[str]()
        self.others, self.left = list[Path](), dict[str, list[Path]]()
        self.pickles: list[Path] = []
        self.by_format: dict[str, list[Path]] = {}
        files: Iterable[Path] = [path] if path.is_file() else walk(path, given)
        for file in files:
            binary = path.is_dir() and file.suffix in BINARY
            if binary or any(place in file.parents for place in ours):
                self.others += [file] * binary
                continue
            try:
                found = self._format(file, format)
            except OSError as error:
                given.problem(file, None, f"cannot be read: {error.strerror}")
                continue
            if found is not None:
                self.by_format.setdefault(found, []).append(file)
        if self.pickles and (not self.by_format or "slime" in self.by_format):
            for file in self.pickles:
                given.problem(file, None, slime.PICKLE)
        if path.is_dir():
            self._leave_out_copies()
            self._rank()

    def _format(self, file: Path, format: str | None) -> str | None:
        """The format that a file is to be read in; None where it is not to be read."""
        kept = tracker(file)
        if kept is not None:
            return kept if format in (None, kept) or self.given.columns else None
        if (reason := unsupported(file)) is not None:
            if reason == slime.PICKLE:
                self.pickles.append(file)
            else:
                self.given.problem(file, None, reason)
            return None
        if self.root.is_file() and format is not None:
            return format
        found = detect(file, self.given.columns)
        self.others += [file] * (found is None)
        if found is None and self.root.is_file():
            self.given.problem(file, None, f"not recognised{nearest(file)}")
        return found if format in (None, found) else None

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
        better: list[Path] = []
        for name in READERS:
            kept = []
            for file in self.by_format.get(name, ()):
                home = _home(file)
                covered = any(home == h or home in h.parents or h in home.parents for h in better)
                (self.left.setdefault(name, []) if covered else kept).append(file)
            self.by_format[name] = kept
            better += homes.get(name, ())

    def runs(self) -> tuple[list[Run], list[str]]:
        """The runs, each under its own name, and what was skipped."""
        made: list[Made] = []
        skipped: list[str] = []
        kinds = {f.suffix for files in self.by_format.values() for f in files} & {*_LOGS}
        begun = [file for file in self.others if file.suffix in kinds]  # a run that ended at once
        self.others = [file for file in self.others if file not in begun]
        for name in READERS:
            files = self.by_format.get(name, [])
            groups, dumps, empty = self._scanned(name, files)
            empty, begun = [*begun, *empty], []
            skipped += [f"{self._short(file)}: no step is logged" for file in empty]
            if not groups:
                for run_id, dumped in dumps.items():
                    if (run := self._run_of(name, [], files, dumped)) is not None:
                        label = clean(run_id) if len(dumps) > 1 else None
                        made.append((None, replace(run, label=label)))
            for group in groups:
                dumped = dumps.get("") if len(groups) == 1 else None
                try:
                    run = self._run_of(name, group.rows, group.sources, dumped)
                except ValueError as error:
                    self.refused.append(str(error))
                    skipped.append(f"{self._short(group.sources[0])}: {error}")
                    continue
                if run is not None:
                    made.append((group, run))
        if not made:
            return [], skipped if self.root.is_dir() and len(skipped) > 1 else []
        return self._named(made), skipped

    def _scanned(
        self, name: str, files: Sequence[Path]
    ) -> tuple[list[Group], dict[str, Dumped], list[Path]]:
        """Rows of the runs that files are of, rollouts by run, and files without either."""
        dumps: dict[str, Dumped] = {}
        pieces: list[Piece] = []
        empty: list[Path] = []
        for file, scanned in self._rows(name, files):
            try:
                rows = list(scanned)
            except ValueError as error:
                self.refused.append(str(error))
                continue
            if not rows and self.root.is_dir() and name != "prime_rl":
                empty.append(file)
            by_file: dict[Path, list[Row]] = {}
            for row in rows:
                if isinstance(row, Rollout):
                    dumps.setdefault(row.run, Dumped(row.run)).add(row)
                else:
                    by_file.setdefault(row.path, []).append(row)
            for path, some in by_file.items():
                steps = (found for row in some if (found := step_of(row.step)) is not None)
                order = (min(steps, default=MOST), path.stat().st_mtime, str(path))
                pieces += pieces_of(some, _home(path), order)
        shown = {run: dumped for run, dumped in dumps.items() if dumped.where}
        return groups_of(pieces), shown or dumps, empty

    def _rows(
        self, name: str, files: Sequence[Path]
    ) -> Iterable[tuple[Path, Iterable[Row | Rollout]]]:
        if name == "trl":
            return _newest_states(files, self.given).items()
        if name == "tensorboard":  # oldest first: what a restarted run logged later counts
            ordered = sorted(files, key=lambda p: (p.stat().st_mtime, str(p)))
            return [(files[0], tensorboard.scan(ordered, self.given))] if files else []
        return [(file, READERS[name].scan(file, self.given)) for file in files]

    def _run_of(
        self, name: str, rows: list[Row], files: Sequence[Path], dumped: Dumped | None
    ) -> Run | None:
        reader = READERS[name]
        if name == "verl" and rows:  # others log through its console
            who = trainer_of({key for row in rows for key in row.values})
            reader = reader if who in (None, "veRL", "entrostat") else table
        return reader.run_of(rows, self._own(files), dumped)

    def _own(self, files: Sequence[Path]) -> Given:
        """What was asked for, with the problems of these files."""
        inside = {self._short(file) for file in files}
        known = self.root.is_file()
        kept = [p for p in self.given.kept if known or p.file in inside or not p.line]
        count = self.given.count - (len(self.given.kept) - len(kept))
        return replace(self.given, kept=kept, count=count, notes=[*self.given.notes], broken={})

    def _short(self, file: Path) -> str:
        return clean(str(file.relative_to(self.root)) if file != self.root else file.name)

    def _named(self, made: Sequence[Made]) -> list[Run]:
        """Runs under names that tell them apart; the first has the notes on other files."""
        group, run = made[0]
        labels = [run.label]
        if made[1:]:
            labels = _told_apart(made, self.root)
        elif group and group.run and run.source.endswith("W&B"):
            labels = [_called(group)]
        runs = [
            replace(run, label=label, path=group.sources[0] if group and made[1:] else run.path)
            for (group, run), label in zip(made, labels, strict=True)
        ]
        notes = [
            f"Not read, of another format ({name}): {clean(files[0].name)}"
            + (f" and {len(files) - 1} more." if files[1:] else ".")
            for name, files in self.left.items()
        ]
        if self.others and self.root.is_dir():
            notes.append(f"{len(self.others)} other files are no logs, and were not read.")
        return [replace(runs[0], notes=(*runs[0].notes, *notes)), *runs[1:]]


def _home(file: Path) -> Path:
    """The directory that stands for a run: of a checkpoint, or of W&B's files, the one above."""
    parent = file.parent
    if (run := forms.mlflow(file)) is not None:  # which has a file a metric
        return run
    if parent.name.startswith("checkpoint-"):
        return parent.parent
    return parent.parent if parent.name == "files" and "run-" in parent.parent.name else parent


def _newest_states(files: Sequence[Path], given: Given) -> dict[Path, list[Row]]:
    """Rows of TRL's logs, without the states of checkpoints older than the newest that is whole."""
    homes: dict[Path, None] = {}
    found: dict[Path, list[Row]] = {}
    for file in files:
        if file.name == trl.STATE:
            homes[_home(file)] = None
        else:
            found[file] = list(trl.scan(file, given))
    for home in homes:
        some = [file for file in files if file.name == trl.STATE and _home(file) == home]
        newest = -1
        best: dict[Path, list[Row]] = {}
        for file in [file for file in trl.states(home) if file in some] or some:
            rows = list(trl.scan(file, given))
            last = max((step_of(row.step) or 0 for row in rows), default=-1)
            if last > newest:
                newest, best = last, {file: rows}
                if file.parent != home:
                    break  # the other checkpoints are older
        found |= best
    return found


def _told_apart(made: Sequence[Made], root: Path) -> list[str | None]:
    """A name for each run: what its source calls it, else its file or directory; a number last."""
    found = []
    files = {group.sources[0].name for group, _ in made if group}
    for group, run in made:
        if group is None:
            found.append(run.name)
        elif group.run:
            found.append(_called(group))
        elif (file := group.sources[0]) == root:
            found.append(file.name)
        else:
            place = _home(file) if file.name == trl.STATE or len(files) == 1 else file
            inside = place.relative_to(root)
            found.append(str(inside) if inside.parts else called(file))
    names: list[str | None] = []
    for place, name in enumerate(found):
        number, of = found[: place + 1].count(name), found.count(name)
        names.append(clean(f"{name}, run {number} of {of}" if of > 1 else name))
    return names


def _called(group: Group) -> str:
    """What the source calls a run; W&B has an id, and a name that need not be its own."""
    name = next((row.settings.get(wandb.CALLED) for row in reversed(group.rows)), None)
    return f"{name} ({group.run})" if name else group.run
