"""Any table: CSV, one JSON object per line, or a JSON list, with columns for step, entropy, score.

Columns are guessed by name, whatever their case; `columns` names them instead. Which entropy a
table has cannot be known from it, unless the column has one of our own names.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ..run import Run
from .source import Given, clean, lines, records, short, step_of
from .steps import Log, finish

STEPS = (
    "iteration", "step", "global_step", "_step", "train/global_step", "trainer/global_step",
    "training/global_step", "train/step", "trainer/step", "rollout/step", "global_steps",
    "training_step", "train_step", "iter", "update", "num_updates", "progress/batch",
)  # fmt: skip
ENTROPIES = (
    "entropy/exact", "entropy/nll", "entropy/logged", "actor/entropy", "policy/entropy",
    "train/entropy", "entropy", "policy_entropy", "train/policy_entropy", "mean_entropy",
    "entropy_mean", "entropy/mean", "avg_entropy", "entropy_avg", "token_entropy",
    "entropy/all/mean", "actor/entropy_loss",
)  # fmt: skip
SCORES = (
    "reward/mean", "critic/score/mean", "critic/rewards/mean", "train/reward", "reward",
    "reward_mean", "mean_reward", "rewards/mean", "rollout/raw_reward", "rollout/reward",
    "env/all/reward/total", "reward/all/mean", "rewards", "score", "score/mean", "mean_score",
    "accuracy", "train/accuracy", "acc", "pass@1", "return", "mean_return",
)  # fmt: skip
OTHERS = {
    "rollout/length_mean": (
        "response_length/mean", "completions/mean_length", "train/completions/mean_length",
        "response_length", "completion_length", "mean_length", "length",
    ),
    "grad/norm": ("actor/grad_norm", "train/grad_norm", "grad_norm", "optim/grad_norm"),
}  # fmt: skip
KINDS = ("step", "entropy", "score")
KNOWN = {
    "entropy/exact": "exact by its name, entropy/exact: the full next-token entropy, in nats",
    "entropy/nll": "sampled by its name, entropy/nll: the mean of -log p of the sampled tokens",
}
UNKNOWN = (
    "it cannot be known: the source says neither whether {name} is the full entropy or the NLL of "
    "sampled tokens, nor its temperature, nor whether it is per token or per sequence"
)
NONE = "none: the source has no entropy"
HEADER_WITHIN = 50
DEPTH = 4


def folded(name: str) -> str:
    """A column's name without case, blanks and the run's name that W&B puts before it."""
    name = name.rpartition(" - ")[2].strip().lower()
    return re.sub(r"[\s.-]+", "_", name)


def guess(names: Iterable[str], columns: Mapping[str, str]) -> dict[str, str]:
    """Which column is which: kind of `KINDS` -> the source's name; kinds not found are absent.

    Args:
        names: the source's columns.
        columns: the user's choice, kind -> name, exact or in another case.
    """
    by_name: dict[str, str] = {}
    for name in names:
        by_name.setdefault(folded(name), name)
    wanted = dict(zip(KINDS, (STEPS, ENTROPIES, SCORES), strict=True))
    found: dict[str, str] = {}
    for kind, known in wanted.items():
        if kind in columns:
            name = columns[kind]
            exact = [each for each in by_name.values() if each == name]
            other = by_name.get(folded(name))
            if exact or other is not None:
                found[kind] = exact[0] if exact else str(other)
            continue
        name = next((by_name[each] for each in known if each in by_name), None)
        if name is None and kind == "entropy":
            last = [v for k, v in by_name.items() if k.rpartition("/")[2] == "entropy"]
            name = last[0] if len(last) == 1 else None
        if name is not None:
            found[kind] = name
    return found


def complete(found: Mapping[str, str], columns: Mapping[str, str]) -> bool:
    """Whether there is a step and an entropy or a score, and all that the user named."""
    return "step" in found and len(found) > 1 and columns.keys() <= found.keys()


def is_record(record: Mapping[str, Any]) -> bool:
    """Whether a JSON object looks like a row."""
    if len(record) < 2 or len(record) > 5000:
        return False
    flat = flatten(record)
    found = guess(flat, {})
    return complete(found, {}) and step_of(flat[found["step"]]) is not None


def flatten(record: Mapping[str, Any]) -> dict[str, Any]:
    """Nested objects as names with "/", down to a depth."""
    flat: dict[str, Any] = {}
    stack = [("", record, 0)]
    while stack:
        prefix, values, depth = stack.pop()
        for key, value in values.items():
            name = prefix + str(key)
            if isinstance(value, dict) and depth < DEPTH:
                stack.append((name + "/", value, depth + 1))
            else:
                flat.setdefault(name, value)
    return flat


def header(path: Path, given: Given) -> tuple[int, str, list[str]] | None:
    """Line, delimiter and names of a CSV's header; None where there is none in the first lines."""
    quiet = Given(given.root)
    for count, text, _ in islice(lines(path, quiet), HEADER_WITHIN):
        if len(text) > 200_000 or text.lstrip()[:1] in ("{", "["):
            continue
        for delimiter in ",;\t":
            if delimiter not in text:
                continue
            names = [name.strip() for name in cells(text, delimiter) or []]
            if complete(guess(names, given.columns), given.columns):
                return count, delimiter, names
    return None


def cells(text: str, delimiter: str) -> list[str] | None:
    """Cells of one line of a CSV; None where it is not one."""
    try:
        return next(csv.reader([text], delimiter=delimiter, skipinitialspace=True), None)
    except csv.Error:
        return None


def read(files: Sequence[Path], given: Given) -> Run | None:
    """The run of the largest of `files`.

    Raises:
        ValueError: there are rows, but no column for the step, or neither entropy nor score, or
            not the columns that the user named.
    """
    *others, path = sorted(files, key=lambda p: (p.stat().st_size, str(p)))
    if others:
        names = ", ".join(clean(p.name) for p in others[:5]) + (", ..." if others[5:] else "")
        given.notes.append(f"Read {clean(path.name)}; other tables beside it are not: {names}.")
    return of_rows(((path, count, row) for count, row in _rows(path, given)), given.columns, given)


def of_rows(
    rows: Iterable[tuple[Path, int | None, dict[str, Any]]],
    columns: Mapping[str, str],
    given: Given,
) -> Run | None:
    """The run of a table's rows.

    Args:
        rows: (file, line from 1, name -> value), in their order.
        columns: the user's names for "step", "entropy" and "score", any of them.
        given: takes the problems.

    Raises:
        ValueError: as `read`.
    """
    found: dict[str, str] = {}
    log: Log | None = None
    seen: dict[str, None] = {}
    waiting: list[tuple[Path, int | None, dict[str, Any]]] = []
    for place in rows:
        if log is None:
            seen |= dict.fromkeys(place[2])
            waiting.append(place)
            found = guess(seen, columns)
            # an early row may lack a column; a later one has it
            if len(found) < len(KINDS) and len(waiting) < 1000:
                continue
            log = _start(found, columns, given)
            for each in waiting:
                _add(log, *each, found["step"], given)
        else:
            _add(log, *place, found["step"], given)
    if log is None:
        if not waiting:
            return None
        log = _start(found, columns, given, seen)
        for each in waiting:
            _add(log, *each, found["step"], given)
    name = found.get("entropy")
    ours = name if name in KNOWN else "entropy/logged"
    entropy_is = NONE if name is None else KNOWN.get(ours, UNKNOWN.format(name=clean(name)))
    return finish(given, "a table", entropy_is, log.metrics())


def _start(
    found: Mapping[str, str], columns: Mapping[str, str], given: Given, seen: Iterable[str] = ()
) -> Log:
    """A log of the columns found.

    Raises:
        ValueError: they are not enough.
    """
    if not complete(found, columns):
        listed = ", ".join(short(name) for name in list(seen)[:20]) or "none"
        asked = [f"{kind} {name!r}" for kind, name in columns.items() if kind not in found]
        missing = ", ".join(asked) or ("step" if "step" not in found else "entropy, and no score")
        raise ValueError(
            f"{str(given.root)!r} has no column for {missing}; its columns: {listed}; name them "
            "with --step, --entropy and --score"
        )
    names: dict[str, str] = {}
    if (entropy := found.get("entropy")) is not None:
        names[entropy] = entropy if entropy in KNOWN else "entropy/logged"
    if (score := found.get("score")) is not None:
        names[score] = "reward/mean"
    return Log(given, names)


def _add(
    log: Log, path: Path, line: int | None, row: Mapping[str, Any], step: str, given: Given
) -> None:
    if step not in row:
        given.problem(path, line, f"no {clean(step)}")
        return
    if len(log.rows) == 0:
        by_name = {folded(name): name for name in row}
        for ours, known in OTHERS.items():
            for each in known:
                if each in by_name and ours not in row:
                    log.names = {**log.names, by_name[each]: ours}
                    break
    log.add(path, line, row[step], {k: v for k, v in row.items() if k != step})


def _rows(path: Path, given: Given) -> Iterator[tuple[int, dict[str, Any]]]:
    found = header(path, given)
    if found is None:
        for count, record in records(path, given):
            yield count, flatten(record)
        return
    at, delimiter, names = found
    names = [name or f"column {i}" for i, name in enumerate(names, 1)]
    # W&B's minima and maxima of a step repeat the value
    kept = [i for i, name in enumerate(names) if not name.endswith(("__MIN", "__MAX"))]
    for count, text, _ in lines(path, given):
        if count <= at or not text.strip():
            continue
        row = cells(text, delimiter)
        if row is None or len(row) != len(names):
            has = "no" if row is None else str(len(row))
            given.problem(path, count, f"{has} cells where the header has {len(names)}")
            continue
        yield count, {names[i]: row[i] for i in kept if row[i].strip()}
