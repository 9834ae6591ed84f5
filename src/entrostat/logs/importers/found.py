"""Find log files under a path, detect their formats by content, and read them into runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..run import MOST, Run, called
from . import forms, prime_rl, slime, table, tensorboard, trl, verl, wandb
from .names import trainer_of
from .places import BINARY, walk
from .rows import Group, Row, groups_of, pieces_of
from .source import BROKEN, Given, UnreadableError, clean, lines, opener_of, parse, step_of
from .steps import Dumped, Rollout, reader_of

# In order of detection. A reader has `scan`, `run_of` if it belongs to one trainer, and detects
# files by first bytes, a line or an object (`RECORDS`).
READERS: dict[str, Any] = {
    "trl": trl, "verl": verl, "prime_rl": prime_rl, "slime": slime, "wandb": wandb,
    "tensorboard": tensorboard, "table": table,
}  # fmt: skip
_FILES, _LINES = (
    [(name, getattr(reader, tells)) for name, reader in READERS.items() if hasattr(reader, tells)]
    for tells in ("is_file", "is_line")
)
# formats that any trainer may have written, and the tracker behind each
_ANYONES = {"table": "", "verl": "", "wandb": "W&B", "tensorboard": "TensorBoard"}
_NAMED = {"TRL": trl, "ms-swift": trl, "veRL": verl}
_HEAD = 64 * 1024
_VOTES = 5  # lines that must match a format, unless the file is shorter
_UNSUPPORTED = {
    b"\x28\xb5\x2f\xfd": "Zstandard, which is not supported: unpack it first",
    b"PAR1": "Parquet, which is not supported (it needs pyarrow): export CSV or JSONL",
    b"PK\x03\x04": "a zip file, which is not supported: unpack it first",
    **{b"\x80" + bytes([protocol]): slime.PICKLE for protocol in (2, 3, 4, 5)},
}
_LOGS = {".log", ".out", ".err", ".jsonl"}


def detect(path: Path, columns: Mapping[str, str] | None = None) -> str | None:
    """Detect the format of a text file by its contents; None if no format fits."""
    quiet = Given(path, columns or {})
    votes: Counter[str | None] = Counter()
    head = ""
    for _, text, _ in lines(path, quiet):
        if len(head) < _HEAD:
            head += text + "\n"
        votes[name := _vote(text)] += 1
        if name is not None and votes[name] >= _VOTES:
            break
    if path.name == trl.STATE or trl.is_document(head):
        return "trl"
    # most objects also fit a table, so the other formats come first
    best = max((name for name in READERS if name != "table"), key=votes.__getitem__)
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
    for name, reader in READERS.items():
        if reader_of(getattr(reader, "RECORDS", ()), record):
            return name
    return "table" if isinstance(record, dict) and table.is_record(record) else None


def _unsupported(path: Path) -> str | None:
    try:
        with opener_of(path)(path, "rb") as file:
            head = file.read(8192)
    except BROKEN as error:
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


def _nearest(path: Path) -> str:
    texts = [text for _, text, _ in lines(path, Given(path)) if text.strip()]
    for text in texts[:200]:
        if any(word in text.lower() for word in ("entropy", "reward", "step")):
            shown = " ".join(clean(text).split())[:80]
            return (
                f": the nearest is {shown!r}; a line needs a step and an entropy or a reward "
                "under their names (step, entropy, reward), or name columns by --entropy"
            )
    return ": no line names a step, an entropy or a reward" if texts else ": it is empty"


class Found:
    """Files of a path by format, and the runs read from them."""

    def __init__(self, path: Path, format: str | None, given: Given, ours: Sequence[Path]) -> None:
        self.root, self.given = path, given
        self.by_format: dict[str, list[Path]] = defaultdict(list)
        self.left: dict[str, list[Path]] = defaultdict(list)  # files of formats that are not read
        self.others, self.pickles = list[Path](), list[Path]()
        self.refused, self.skipped = list[str](), list[str]()  # reasons
        for file in [path] if path.is_file() else walk(path, given):
            if path.is_dir() and file.suffix in BINARY:
                self.others.append(file)
            elif not any(place in file.parents for place in ours):
                try:
                    found = self._format(file, format)
                except OSError as error:
                    given.problem(file, None, f"cannot be read: {error.strerror}")
                    continue
                if found is not None:
                    self.by_format[found].append(file)
        if not self.by_format or "slime" in self.by_format:
            for file in self.pickles:
                given.problem(file, None, slime.PICKLE)
        if path.is_dir():
            self._leave_out()

    def _format(self, file: Path, format: str | None) -> str | None:
        with open(file, "rb") as binary:
            head = binary.read(512)
        if kept := next((name for name, is_file in _FILES if is_file(head)), None):
            return kept if format in (None, kept) or self.given.columns else None
        if (reason := _unsupported(file)) is not None:
            if reason == slime.PICKLE:
                self.pickles.append(file)
            else:
                self.given.problem(file, None, reason)
            return None
        if self.root.is_file() and format is not None:
            return format
        found = detect(file, self.given.columns)
        if found is None:
            self.others.append(file)
            if self.root.is_file():
                self.given.problem(file, None, f"not recognised{_nearest(file)}")
        return found if format in (None, found) else None

    def _leave_out(self) -> None:
        """Leave out tracker files and tables beside or above a better format: they log that run.

        Logs of two trainers belong to two runs.
        """
        # of a W&B run, only its log: the console and summary beside it contain less
        logged = {_home(file) for file in self.by_format["wandb"] if file.suffix == ".wandb"}
        better: list[Path] = []
        for name in READERS:
            files = self.by_format.pop(name, [])
            files = [f for f in files if f.suffix == ".wandb" or _home(f) not in logged]
            for file in files:
                home = _home(file)
                near = any(home.is_relative_to(h) or h.is_relative_to(home) for h in better)
                left = near and name in ("wandb", "tensorboard", "table")
                (self.left if left else self.by_format)[name].append(file)
            better += map(_home, files)

    def runs(self) -> tuple[list[Run], list[str]]:
        """Return the runs, each under its own name, and what was skipped."""
        made: list[tuple[Group, Run]] = []
        kinds = {file.suffix for files in self.by_format.values() for file in files} & _LOGS
        for file in [file for file in self.others if file.suffix in kinds]:
            self.others.remove(file)
            self._skip(file, "no step is logged")  # a run that ended before its first step
        for name in READERS:
            files = self.by_format.get(name, [])
            groups, dumps = self._scanned(name, files)
            only = dumps.get("") if len(groups) == 1 else None
            for group, dumped in [(group, only) for group in groups] or [
                (Group(self.root, run, files), dumped) for run, dumped in dumps.items()
            ]:
                try:
                    run = self._run_of(name, group, dumped)
                except ValueError as error:
                    self.refused.append(str(error))
                    self._skip(group.sources[0], str(error))
                    continue
                if run is not None and not groups and len(dumps) > 1:
                    run = replace(run, label=clean(group.run))
                if run is not None:
                    made.append((group, run))
        if not made:
            several = self.root.is_dir() and len(self.skipped) > 1
            return [], self.skipped if several else []
        return self._named(made), self.skipped

    def _skip(self, file: Path, reason: str) -> None:
        self.skipped.append(f"{self.given.short(file)}: {reason}")

    def _scanned(self, name: str, files: list[Path]) -> tuple[list[Group], dict[str, Dumped]]:
        scanned: Iterable[tuple[Path, Iterable[Row | Rollout]]]
        if name == "trl":
            scanned = _newest_states(files, self.given).items()
        elif name == "tensorboard":  # oldest first: values that a restarted run logged later win
            ordered = sorted(files, key=lambda p: (p.stat().st_mtime, str(p)))
            scanned = [(files[0], tensorboard.scan(ordered, self.given))] if files else []
        else:
            scanned = [(file, READERS[name].scan(file, self.given)) for file in files]
        dumps: dict[str, Dumped] = {}
        pieces: list[Group] = []
        for file, found in scanned:
            try:
                rows = list(found)
            except ValueError as error:
                self.refused.append(str(error))
                continue
            if not rows and self.root.is_dir() and name != "prime_rl":
                self._skip(file, "no step is logged")
            by_file: dict[Path, list[Row]] = defaultdict(list)
            for row in rows:
                if isinstance(row, Rollout):
                    dumps.setdefault(row.run, Dumped(row.run, READERS[name].scan)).add(row)
                else:
                    by_file[row.path].append(row)
            for path, some in by_file.items():
                steps = (step for row in some if (step := step_of(row.step)) is not None)
                order = (min(steps, default=MOST), path.stat().st_mtime, str(path))
                pieces += pieces_of(some, _home(path), order)
        shown = {run: dumped for run, dumped in dumps.items() if dumped.where}
        return groups_of(pieces), shown or dumps

    def _run_of(self, name: str, group: Group, dumped: Dumped | None) -> Run | None:
        given, inside = self.given, {self.given.short(file) for file in group.sources}
        known = self.root.is_file()
        kept = [p for p in given.kept if known or p.file in inside or not p.line]
        count = given.count - (len(given.kept) - len(kept))
        own = replace(given, kept=kept, count=count, notes=[*given.notes], broken={})
        reader, who = READERS[name], None
        if group.rows and name in _ANYONES:
            names = dict.fromkeys(key for row in group.rows for key in row.values)
            who = None if given.columns else trainer_of(names, 2 if name == "table" else 1)
            console = name == "verl" and who in (None, "entrostat")
            reader = verl if console else _NAMED.get(who or "", table)
        if reader is table:
            found = table.run_of(group.rows, own, who)
        else:
            found = reader.run_of(group.rows, own, dumped)
        if found is None or not _ANYONES.get(name):
            return found
        source = f"{found.source} through {_ANYONES[name]}"
        return replace(found, source=source.removeprefix("a table through "))

    def _named(self, made: Sequence[tuple[Group, Run]]) -> list[Run]:
        """Give runs unique names; the first run gets the notes on other files."""
        runs = [run for _, run in made]
        (group, run), *more = made
        if more:
            names = [self._name(group, run, made) for group, run in made]
            for place, name in enumerate(names):
                number, of = names[: place + 1].count(name), names.count(name)
                label = clean(f"{name}, run {number} of {of}" if of > 1 else name)
                path = made[place][0].sources[0] if made[place][0].rows else runs[place].path
                runs[place] = replace(runs[place], label=label, path=path)
        elif group.run and run.source.endswith("W&B"):
            runs = [replace(run, label=_called(group))]
        notes = [
            f"Not read, of another format ({name}): {clean(files[0].name)}"
            + (f" and {len(files) - 1} more." if files[1:] else ".")
            for name, files in self.left.items()
        ]
        if self.others and self.root.is_dir():
            notes.append(f"{len(self.others)} other files are no logs, and were not read.")
        return [replace(runs[0], notes=(*runs[0].notes, *notes)), *runs[1:]]

    def _name(self, group: Group, run: Run, made: Sequence[tuple[Group, Run]]) -> str:
        """Name a run as its source does, else by its file or directory."""
        file = group.sources[0]
        if group.run:
            return _called(group)
        if not group.rows:
            return run.name
        if file == self.root:
            return file.name
        one = len({group.sources[0].name for group, _ in made if group.rows}) == 1
        inside = (_home(file) if file.name == trl.STATE or one else file).relative_to(self.root)
        return str(inside) if inside.parts else called(file)


def _home(file: Path) -> Path:
    """Return the directory that stands for a run: the parent for checkpoints and W&B's `files`."""
    parent = file.parent
    if (run := forms.mlflow(file)) is not None:  # MLflow has one file per metric
        return run
    above = parent.name == "files" and "run-" in parent.parent.name
    return parent.parent if above or parent.name.startswith("checkpoint-") else parent


def _newest_states(files: Sequence[Path], given: Given) -> dict[Path, list[Row]]:
    """Rows of TRL's logs, without states of checkpoints older than the newest readable one."""
    found = {file: list(trl.scan(file, given)) for file in files if file.name != trl.STATE}
    states: dict[Path, list[Path]] = defaultdict(list)
    for file in files:
        if file.name == trl.STATE:
            states[_home(file)].append(file)
    for home, some in states.items():
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


def _called(group: Group) -> str:
    name = next((row.settings.get(wandb.CALLED) for row in reversed(group.rows)), None)
    return f"{name} ({group.run})" if name else group.run
