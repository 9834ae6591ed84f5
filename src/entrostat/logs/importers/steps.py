"""Common output of all formats: a log of steps, token sequences, and the run built from them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..run import Run, broken, broken_notes
from .rows import Row
from .source import Given, UnreadableError, clean, finite, lines, number, parse, short, step_of

if TYPE_CHECKING:
    from ..rollouts import Rollouts

MAX_TOKEN = 2**31
NO_ENTROPY = "none: the source has no entropy"
_WORDS = {"true", "false", "none", "null", "no log", ""}  # No Log: notebooks of transformers


def metrics_of(given: Given, names: Mapping[str, str], rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Build one object per step, sorted, from a run's rows in any order; problems go to `given`.

    Rows of one step are merged (an evaluation, say, or a second file of the same run). For a metric
    that occurs twice in a step, the later value wins. `names` maps the source's names to ours.
    """
    given.renamed = {**names}
    found: dict[int, dict[str, float]] = {}
    infinite: dict[int, dict[str, float]] = defaultdict(dict)
    again: set[int] = set()
    disordered, path, last = False, None, -1
    for row in rows:
        step = step_of(row.step)
        if step is None:
            reason = f"step {short(row.step)} is not a whole number from 0"
            given.problem(row.path, row.line, reason)
            continue
        figures = _figures(row, names, given)
        known = {name: value for name, value in figures.items() if math.isfinite(value)}
        infinite[step] |= {k: value for k, value in figures.items() if k not in known}
        if not known:
            given.problem(row.path, row.line, f"step {step} has no finite number")
            continue
        disordered |= row.path == path and step < last
        path, last = row.path, step
        before = found.setdefault(step, {})
        if any(before.get(k, v) != v for k, v in known.items() if k != "epoch"):
            again.add(step)
        before |= known
    if again:
        which = f"{len(again)} steps ({min(again)} to {max(again)}) are"
        which = which if len(again) > 1 else f"Step {min(again)} is"
        given.notes.append(f"{which} logged more than once (a restart?); the later values count.")
    if disordered:
        given.notes.append("Steps were not in order in the log; they are sorted here.")
    if count := sum(map(len, infinite.values())):
        given.notes.append(f"Values that were not finite are left out: {count}.")
        given.broken = broken(
            [{"iteration": i, **infinite[i], **found.get(i, {})} for i in sorted(infinite)]
        )
    return [{"iteration": step, **found[step]} for step in sorted(found)]


def _figures(row: Row, names: Mapping[str, str], given: Given) -> dict[str, float]:
    ours = set(names.values())
    figures: dict[str, float] = {}
    for key, value in row.values.items():
        name = names.get(key, clean(key)[:200])
        if name == "iteration" or (name in ours and key not in names):
            continue
        if (figure := number(value)) is not None:
            figures[name] = figure
        elif key in names and str(value).strip().lower() not in _WORDS:
            given.problem(row.path, row.line, f"{clean(key)} {short(value)} is not a number")
    return figures


def finish(
    given: Given,
    source: str,
    entropy_is: str,
    metrics: list[dict[str, Any]],
    dumped: Dumped | None = None,
    planned: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> Run | None:
    if not metrics:
        return None
    if not any(name.startswith("entropy/") for row in metrics for name in row):
        entropy_is = entropy_is if entropy_is.startswith("none") else NO_ENTROPY
    done = metrics[-1]["iteration"]
    notes = [*broken_notes(given.broken), *given.notes]
    if planned is not None and done < planned:
        notes = [f"Unfinished: {done} of {planned} iterations are logged.", *notes]
    config = {} if planned is None else {"iterations": planned}
    return Run(
        given.root, config, "", "", metrics, [], tuple(dict.fromkeys(notes)),
        dumps={} if dumped is None else dumped.readers(given.root), source=source,
        entropy_is=entropy_is, problems=given.problems, broken=given.broken,
        settings=dict(settings or {}), renamed=given.renamed,
    )  # fmt: skip


@dataclass
class Rollout:
    """One sequence of another trainer's dump; lists are as long as `tokens`, None means unknown."""

    path: Path
    step: int
    reward: float = math.nan  # NaN if unknown
    group: Hashable = None  # the prompt's group; None if the rollout cannot be displayed
    prompt: str = ""
    completion: str = ""
    tokens: Sequence[int] = ()
    logp: Sequence[float | None] = ()
    sampler_logp: Sequence[float | None] = ()
    entropy: Sequence[float | None] = ()
    advantage: Sequence[float | None] = ()
    extra: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # averaged too
    run: str = ""  # the source's name of the run


# required keys and their types, and the function that reads such an object
Records = Sequence[tuple[Mapping[str, type], Callable[[Path, int, Any], Any]]]


def reader_of(records: Records, record: Any) -> Callable[[Path, int, Any], Any] | None:
    """Return the reader of a JSON object: the first of `records` whose keys and types match."""
    for keys, read in records:
        if isinstance(record, dict) and all(
            key in record and isinstance(record[key], kind) for key, kind in keys.items()
        ):
            return read
    return None


def recorded(
    records: Records, given: Given, path: Path, line: int, text: str
) -> Iterator[Row | Rollout]:
    """Parse one JSON line; record a problem if it cannot be read."""
    try:
        record = parse(text)
        if (read := reader_of(records, record)) is None:
            known = " or ".join(", ".join(keys) for keys, _ in records)
            raise UnreadableError(f"not an object with {known}")
        found = read(path, line, record)
        yield from found if isinstance(found, list) else [found]
    except UnreadableError as error:
        given.problem(path, line, str(error))


def all_recorded(records: Records, path: Path, given: Given) -> Iterator[Row | Rollout]:
    for line, text, _ in lines(path, given):
        if text.strip():
            yield from recorded(records, given, path, line, text)


def trained(
    record: Mapping[str, Any], ids: Sequence[int], mask: Sequence[Any], names: Mapping[str, str]
) -> dict[str, Any]:
    """A record's tokens at mask 1, and their values in the lists of `names` (ours, theirs)."""
    lists = {"tokens": ids} | {
        name: column(record, theirs, len(ids)) for name, theirs in names.items()
    }
    return {
        name: [value for value, keep in zip(values, mask, strict=True) if keep == 1]
        for name, values in lists.items()
    }


def column(record: Mapping[str, Any], key: str, length: int) -> list[float | None]:
    """Return a record's list as [length] numbers; all None if absent or of another length."""
    values = record.get(key)
    if not isinstance(values, list) or len(values) != length:
        return [None] * length
    return [
        float(v) if isinstance(v, bool) else None if isinstance(v, str) else number(v)
        for v in values
    ]


def token_ids(values: Any) -> list[int]:
    if isinstance(values, list) and all(type(v) is int and 0 <= v < MAX_TOKEN for v in values):
        return values
    raise UnreadableError("its tokens are not all ids")


class Dumped:
    """Rollouts of one run's dumps: means by step, and the files that `scan` reads."""

    def __init__(self, run: str, scan: Callable[[Path, Given], Iterable[Row | Rollout]]) -> None:
        self.run, self.scan = run, scan
        self.sums: dict[int, dict[str, tuple[float, int]]] = defaultdict(dict)
        self.where: dict[int, dict[Path, None]] = defaultdict(dict)

    def add(self, rollout: Rollout) -> None:
        """Add a rollout to the means; unknown and non-finite values are skipped."""
        told: dict[str, Sequence[float | None]] = {"reward/mean": [rollout.reward]}
        if rollout.tokens:
            told["rollout/length_mean"] = [float(len(rollout.tokens))]
            told["entropy/exact"] = rollout.entropy
            told["entropy/nll"] = [-v for v in finite(rollout.logp)]
        sums = self.sums[rollout.step]
        for name, values in {**told, **rollout.extra}.items():
            if known := finite(values):
                total, count = sums.get(name, (0.0, 0))
                sums[name] = (total + math.fsum(known), count + len(known))
        if rollout.group is not None:
            self.where[rollout.step][rollout.path] = None

    def metrics(self) -> list[dict[str, Any]]:
        return [
            {"iteration": step, **{k: total / count for k, (total, count) in sums.items()}}
            for step, sums in sorted(self.sums.items())
        ]

    def readers(self, root: Path) -> dict[int, Callable[[], Rollouts]]:
        """Map steps to rollout loaders; they raise ValueError if the files are gone or changed."""
        return {step: partial(self._read, root, step) for step in sorted(self.where)}

    def _read(self, root: Path, step: int) -> Rollouts:
        import torch

        from ..rollouts import Rollouts

        given = Given(root)
        rows = (row for file in self.where[step] for row in self.scan(file, given))
        found = [
            row for row in rows if isinstance(row, Rollout)
            and (row.step, row.run) == (step, self.run) and row.group is not None
        ]  # fmt: skip
        if not found:
            raise ValueError(f"{str(root)!r} no longer holds rollouts of step {step}")
        order: dict[Hashable, int] = {}
        group = [order.setdefault(r.group, len(order)) for r in found]
        flat = {
            name: torch.tensor(
                [math.nan if v is None else v for r in found for v in getattr(r, name)],
                dtype=torch.float32,
            )
            for name in ("logp", "sampler_logp", "entropy", "advantage")
        }
        return Rollouts(
            iteration=step,
            prompts=[r.prompt for r in found],
            completions=[r.completion for r in found],
            rewards=torch.tensor([r.reward for r in found], dtype=torch.float32),
            group=torch.tensor(group, dtype=torch.int32),
            finished=torch.zeros(len(found), dtype=torch.bool),
            trained=torch.ones(len(found), dtype=torch.bool),
            start=torch.tensor([0, *(len(r.tokens) for r in found)]).cumsum(0),
            tokens=torch.tensor([t for r in found for t in r.tokens], dtype=torch.int32),
            pieces={},
            **flat,
        )
