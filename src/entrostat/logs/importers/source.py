"""What the importers share: text of any kind, a log of steps, sequences of tokens, one `Run`.

Nothing here trusts a file: lines may be cut, doubled, huge, nested without end or not text at all.
What cannot be read becomes a `Problem`; nothing is unpickled or evaluated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..run import Problem, Run

if TYPE_CHECKING:
    from ..rollouts import Rollouts

KEPT = 200
"""Problems listed one by one; further ones are counted."""
LINE = 64 * 2**20
"""Longest line that is read, in characters."""
DOCUMENT = 256 * 2**20
"""Largest JSON document that is read at once, in bytes."""
METRICS = 2000
"""Most metrics of one step."""
MAX_STEP = 2**53
MAX_TOKEN = 2**31

ANSI = re.compile(r"\x1b\[[0-9;?]{0,32}[A-Za-z]")
NUMBER = re.compile(r"(?:np\.|numpy\.)?\w{0,16}\(([^()]{1,64})\)")
WORDS = {"true", "false", "none", "null", ""}


class UnreadableError(ValueError):
    """A text that is no JSON, with the reason in words."""


def parse(text: str) -> Any:
    """JSON.

    Raises:
        UnreadableError: it is none, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise UnreadableError("JSON nested too deeply") from None
    except ValueError as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number too long"
        raise UnreadableError(f"not a whole JSON value ({reason})") from None


def number(value: Any) -> float | None:
    """A number, or a text that is one, as a float; it may be nan or inf. None for the rest."""
    if isinstance(value, str):
        text = value.strip()
        if wrapped := NUMBER.fullmatch(text):  # np.float64(0.5), tensor(0.5)
            text = wrapped[1]
        value = text if len(text) <= 64 and "_" not in text else None
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return None if value is None else float(value)
    except (ValueError, OverflowError):
        return None


def step_of(value: Any) -> int | None:
    """A step: a whole number from 0; None for anything else."""
    found = number(value)
    if found is None or not math.isfinite(found) or found != int(found):
        return None
    return int(found) if 0 <= found < MAX_STEP else None


def clean(text: Any) -> str:
    """A text that can be written as UTF-8."""
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else ""


@dataclass
class Given:
    """What was asked for, and what turned up on the way.

    Attributes:
        root: the path that the user named.
        columns: the user's names for "step", "entropy" and "score".
        notes: sentences for the run.
        count: problems found, kept or not.
    """

    root: Path
    columns: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    kept: list[Problem] = field(default_factory=list)
    count: int = 0

    def problem(self, path: Path, line: int | None, reason: str) -> None:
        """Note something that was left out."""
        self.count += 1
        if len(self.kept) < KEPT:
            name = str(path.relative_to(self.root)) if path != self.root else path.name
            self.kept.append(Problem(clean(name), line, reason))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Those kept, by file and line, and how many more there were."""
        more = self.count - len(self.kept)
        last = [Problem(clean(self.root.name), None, f"{more} more problems, not listed")]
        kept = sorted(self.kept, key=lambda p: (p.file, p.line or 0))
        return (*kept, *(last if more else []))


def lines(path: Path, given: Given) -> Iterator[tuple[int, str, bool]]:
    """Lines of a text, in UTF-8 or (with its mark) UTF-16.

    Yields:
        the number from 1, the text without its end and without NUL, whether the end was there.
    """
    try:
        with open(path, "rb") as raw:
            wide = raw.read(2) in (b"\xff\xfe", b"\xfe\xff")
        with open(path, encoding="utf-16" if wide else "utf-8-sig", errors="replace") as file:
            count = 0
            while text := file.readline(LINE):
                count += 1
                if len(text) >= LINE and not text.endswith("\n"):
                    while (rest := file.readline(LINE)) and not rest.endswith("\n"):
                        pass
                    given.problem(path, count, f"longer than {LINE} characters")
                    continue
                yield count, text.rstrip("\n").replace("\0", ""), text.endswith("\n")
    except (OSError, UnicodeError) as error:
        given.problem(path, None, f"cannot be read: {reason_of(error)}")


def reason_of(error: Exception) -> str:
    """An error of the operating system in words, without the path."""
    return getattr(error, "strerror", None) or type(error).__name__


def document(path: Path, given: Given) -> str:
    """A whole text; empty, with a problem, where it is too large or cannot be read."""
    try:
        if path.stat().st_size > DOCUMENT:
            given.problem(path, None, f"larger than {DOCUMENT} bytes: too large for one document")
            return ""
    except OSError as error:
        given.problem(path, None, f"cannot be read: {reason_of(error)}")
        return ""
    return "\n".join(text for _, text, _ in lines(path, given))


def records(path: Path, given: Given) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects of a file of one JSON object a line, or of a document that holds a list of them.

    Yields:
        the line from 1, the object.
    """
    texts = (text.strip() for _, text, _ in lines(path, Given(given.root)))
    first, *more = [*islice((text for text in texts if text), 2), ""]
    try:
        a_line = isinstance(parse(first), dict) and len(more) > 1
    except UnreadableError:
        a_line = first[:1] == "{" and len(first) > 1
    if a_line or first[:1] not in ("[", "{"):
        for count, text, _ in lines(path, given):
            if not (text := text.strip()):
                continue
            try:
                value = parse(text)
            except UnreadableError as error:
                given.problem(path, count, str(error))
                continue
            if isinstance(value, dict):
                yield count, value
            else:
                given.problem(path, count, "not a JSON object")
        return
    text = document(path, given)
    try:
        value = parse(text)
    except UnreadableError as error:
        given.problem(path, None, f"{error}; the objects before the fault are read")
        start = text.find("[")
        yield from objects(text, start + 1 if start >= 0 else len(text))
        return
    for place, row in enumerate(rows_of(value), 1):
        if isinstance(row, dict):
            yield place, row
        else:
            given.problem(path, None, f"entry {place} of the list is not a JSON object")


def rows_of(value: Any) -> Iterable[Any]:
    """Rows of a document: a list, the only list of objects in it, columns, or one object."""
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        return [value]
    columns = {k: v for k, v in value.items() if isinstance(v, list)}
    tables = [v for v in columns.values() if v and isinstance(v[0], dict)]
    if len(tables) == 1:
        return tables[0]
    if len(columns) > 1 and len({len(v) for v in columns.values()}) == 1:
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [value]


def objects(text: str, start: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects of a list that begins at `start`, up to the first that is not whole.

    Yields:
        the line from 1, the object.
    """
    decoder, line, counted = json.JSONDecoder(), 1, 0
    while start < len(text):
        if text[start] in " \t\r\n,":
            start += 1
            continue
        line, counted = line + text.count("\n", counted, start), start
        try:
            value, start = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            yield line, value


class Log:
    """Numbers of steps, from lines in any order.

    Lines of one step are joined (an evaluation, say, or a second file of the same run); of a
    metric that a step has twice the later value counts.

    Args:
        given: takes the problems.
        names: source's name -> ours; where several of one of ours occur, the first of them.
    """

    def __init__(self, given: Given, names: Mapping[str, str]) -> None:
        self.given, self.names = given, names
        self.rows: dict[int, dict[str, float]] = {}
        self.path: Path | None = None
        self.last = -1
        self.again: set[int] = set()
        self.disordered = False
        self.infinite = 0

    def add(self, path: Path, line: int | None, step: Any, values: Mapping[str, Any]) -> None:
        """Add what a line says of a step."""
        found = step_of(step)
        if found is None:
            self.given.problem(path, line, f"step {short(step)} is not a whole number from 0")
            return
        row = self._row(path, line, values)
        if not row:
            self.given.problem(path, line, f"step {found} has no finite number")
            return
        self.disordered |= path == self.path and found < self.last
        self.path, self.last = path, found
        before = self.rows.setdefault(found, {})
        if any(before.get(name, value) != value for name, value in row.items() if name != "epoch"):
            self.again.add(found)
        before |= row

    def _row(self, path: Path, line: int | None, values: Mapping[str, Any]) -> dict[str, float]:
        row: dict[str, float] = {}
        taken: dict[str, str] = {}
        for key, name in self.names.items():
            if values.get(key) is not None:
                taken.setdefault(name, key)
        renamed = {key: name for name, key in taken.items()}
        if len(values) > METRICS:
            self.given.problem(path, line, f"more than {METRICS} metrics; the first are read")
        for key, value in list(values.items())[:METRICS]:
            name = renamed.get(key, clean(key)[:200])
            if name == "iteration" or (name in taken and key not in renamed):
                continue
            figure = number(value)
            if figure is None:
                if key in renamed and str(value).strip().lower() not in WORDS:
                    self.given.problem(path, line, f"{clean(key)} {short(value)} is not a number")
            elif math.isfinite(figure):
                row[name] = figure
            else:
                self.infinite += 1
        return row

    def metrics(self) -> list[dict[str, Any]]:
        """One object a step, sorted; notes on what was odd go to `given`."""
        notes = self.given.notes
        if self.again:
            steps = sorted(self.again)
            which = f"Step {steps[0]} is" if len(steps) == 1 else (
                f"{len(steps)} steps ({steps[0]} to {steps[-1]}) are"
            )  # fmt: skip
            notes.append(f"{which} logged more than once (a restart?); the later values count.")
        if self.disordered:
            notes.append("Steps were not in order in the log; they are sorted here.")
        if self.infinite:
            notes.append(f"Values that were not finite are left out: {self.infinite}.")
        return [{"iteration": step, **self.rows[step]} for step in sorted(self.rows)]


def short(value: Any) -> str:
    """A value for an error message: one line, a few characters."""
    if isinstance(value, list | dict):
        return f"of type {type(value).__name__}"
    try:
        text = ascii(value)
    except ValueError:  # an integer of more digits than Python prints
        text = "of very many digits"
    return text if len(text) <= 40 else text[:37] + "..."


@dataclass
class Rollout:
    """One sequence of another trainer's dump; lists are as long as `tokens`, None is unknown.

    `reward` is NaN where unknown; rollouts of one `group` had the same prompt.
    """

    reward: float
    group: Hashable
    prompt: str = ""
    completion: str = ""
    tokens: Sequence[int] = ()
    logp: Sequence[float | None] = ()
    sampler_logp: Sequence[float | None] = ()
    entropy: Sequence[float | None] = ()
    advantage: Sequence[float | None] = ()


def finite(values: Sequence[float | None]) -> list[float]:
    """Those that are known and finite."""
    return [v for v in values if v is not None and math.isfinite(v)]


class Means:
    """Means of sequences and tokens, step by step."""

    def __init__(self) -> None:
        self.sums: dict[int, dict[str, tuple[float, int]]] = {}

    def add(self, step: int, name: str, values: Sequence[float | None]) -> None:
        """Values of a step; what is unknown or not finite does not count."""
        known = finite(values)
        if known:
            total, count = self.sums.setdefault(step, {}).get(name, (0.0, 0))
            self.sums[step][name] = (total + math.fsum(known), count + len(known))

    def rollout(self, step: int, rollout: Rollout) -> None:
        """What any dump says of a sequence."""
        self.sums.setdefault(step, {})
        self.add(step, "reward/mean", [rollout.reward])
        if rollout.tokens:
            self.add(step, "rollout/length_mean", [float(len(rollout.tokens))])
            self.add(step, "entropy/exact", rollout.entropy)
            self.add(step, "entropy/nll", [-v for v in finite(rollout.logp)])

    def rows(self) -> dict[int, dict[str, float]]:
        """Step -> metric -> mean."""
        return {
            step: {name: total / count for name, (total, count) in sums.items()}
            for step, sums in self.sums.items()
        }


Sequences = Callable[[Path, Given], Iterable[tuple[int, Rollout]]]


def read_dump(path: Path, files: Sequence[Path], step: int, sequences: Sequences) -> Rollouts:
    """Rollouts of one step.

    Args:
        path: the path that the user named.
        files: those that hold rollouts of the step.
        step: which one.
        sequences: yields (step, rollout) of a file.

    Raises:
        ValueError: they are gone, or changed since they were first read.
    """
    import torch

    from ..rollouts import Rollouts

    given = Given(path)
    found = [r for file in files for at, r in sequences(file, given) if at == step]
    if not found:
        raise ValueError(f"{str(path)!r} no longer holds rollouts of step {step}")
    order: dict[Hashable, int] = {}
    group = [order.setdefault(r.group, len(order)) for r in found]
    lengths = torch.tensor([0, *(len(r.tokens) for r in found)])

    def flat(name: str) -> torch.Tensor:
        values = [v for r in found for v in getattr(r, name)]
        known = [math.nan if v is None else v for v in values]
        return torch.tensor(known, dtype=torch.float32)

    tokens = [t for r in found for t in r.tokens]
    return Rollouts(
        iteration=step,
        prompts=[r.prompt for r in found],
        completions=[r.completion for r in found],
        rewards=torch.tensor([r.reward for r in found], dtype=torch.float32),
        group=torch.tensor(group, dtype=torch.int32),
        finished=torch.zeros(len(found), dtype=torch.bool),
        trained=torch.ones(len(found), dtype=torch.bool),
        start=lengths.cumsum(0),
        tokens=torch.tensor(tokens, dtype=torch.int32),
        logp=flat("logp"),
        sampler_logp=flat("sampler_logp"),
        entropy=flat("entropy"),
        advantage=flat("advantage"),
        pieces={},
    )


def column(record: Mapping[str, Any], key: str, length: int) -> list[float | None]:
    """[length] numbers of a record's list; None where it has none, or not that many."""
    values = record.get(key)
    if not isinstance(values, list) or len(values) != length:
        return [None] * length
    return [number(v) if not isinstance(v, str) else None for v in values]


def token_ids(values: Any) -> list[int] | None:
    """A list of token ids, or None."""
    if not isinstance(values, list):
        return None
    good = all(type(v) is int and 0 <= v < MAX_TOKEN for v in values)
    return values if good else None


def finish(
    given: Given,
    source: str,
    entropy_is: str,
    metrics: list[dict[str, Any]],
    dumps: Mapping[int, Callable[[], Rollouts]] | None = None,
    planned: int | None = None,
) -> Run | None:
    """A run; None where there is no step in it."""
    if not metrics:
        return None
    done = metrics[-1]["iteration"]
    notes = given.notes
    if planned is not None and done < planned:
        notes = [f"Unfinished: {done} of {planned} steps are logged.", *notes]
    config = {} if planned is None else {"iterations": planned}
    return Run(
        given.root, config, "", "", metrics, [], tuple(dict.fromkeys(notes)),
        dumps=dict(dumps or {}), source=source, entropy_is=entropy_is, problems=given.problems,
    )  # fmt: skip
