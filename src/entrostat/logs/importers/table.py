"""Read any table: CSV, JSON lines or list, Markdown, HTML, a notebook, and console output.

A table has columns for step, entropy and score (`names`); `columns` overrides their names. Tables
with TRL's or veRL's metric names are read as those formats. For any other table the kind of entropy
is unknown, unless the column has one of our own names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ..run import Run
from . import forms
from .forms import Cells
from .names import KINDS, choose, complete, fold, guess, renamed
from .rows import Row
from .source import Given, clean, number, short, step_of
from .steps import finish, metrics_of

PEEK = 1000  # rows searched for a file's columns: an early row may lack one
RUN_NAMES = {
    "run", "run_id", "run_name", "experiment", "experiment_name", "exp_name", "seed", "dir_name",
}  # fmt: skip
KNOWN = {
    "entropy/exact": "exact by its name, entropy/exact: the full next-token entropy, in nats",
    "entropy/nll": "sampled by its name, entropy/nll: the mean of -log p of the sampled tokens",
}
UNKNOWN = (
    "it cannot be known: the source says neither whether {name} is the full entropy or the NLL of "
    "sampled tokens, nor its temperature, nor whether it is per token or per sequence"
)
OTHER = "none: no column is called so; if it is one of {names}: --entropy NAME"
SEVERAL = "none that is surely it: several columns mention entropy ({names}); choose by --entropy"
EXACT = "exact: the mean over tokens of the full next-token entropy (entrostat)"
NEGATED = "{name} is below 0 throughout, as a loss: its negative is taken for the entropy."


def found_in(path: Path, given: Given) -> bool:
    rows = islice(forms.rows_in(path, Given(given.root, given.columns)), PEEK)
    return any(
        [*row.values] == ["step", "Value"]
        or complete(guess(row.values, given.columns), given.columns)
        for row in rows
    )


def scan(path: Path, given: Given) -> Iterator[Row]:
    """Yield rows of a table, each under the source's name of its run.

    Raises:
        ValueError: there are rows, but no column for the step.
    """
    rows = [*forms.rows_in(path, given)]
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    if not names:
        return
    found = guess(names, given.columns)
    if "step" not in found:
        raise ValueError(_lacking(found, names, given))
    titles = len({row.title for row in rows if row.title}) > 1
    charts = any(" - " in name for name in names)
    by = _run_columns(rows, names, found)
    for count, row, title in rows:
        if found["step"] not in row:
            given.problem(path, count, f"no {clean(found['step'])}")
            continue
        step = row.pop(found["step"])
        told = " ".join(str(row[name]) for name in by if name in row)
        run = told if by else title if titles or not charts else ""
        several = _by_chart(row, given.columns) if charts else {run: row}
        for name, figures in several.items():
            if figures or not charts:
                yield Row(path, count, step, figures, {}, clean(name)[:200])


def _by_chart(values: dict[str, Any], columns: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Group metrics by W&B's run prefix of their columns; for a chosen column, only its run."""
    chosen = [columns[kind] for kind in ("entropy", "score") if " - " in columns.get(kind, "")]
    found: dict[str, dict[str, Any]] = {}
    shared = {name: value for name, value in values.items() if " - " not in name}
    for name, value in values.items():
        run, mark, metric = name.rpartition(" - ")
        if mark and (not chosen or any(each.startswith(f"{run} - ") for each in chosen)):
            found.setdefault(run, {**shared})[metric] = value
    return found


def _run_columns(
    rows: Sequence[Cells], names: Sequence[str], found: Mapping[str, str]
) -> list[str]:
    """Columns that name a row's run: a run column, and text that separates rows of equal step."""
    called, texts = list[str](), list[str]()
    for name in names:
        values = [row.values[name] for row in rows if name in row.values]
        named, text = fold(name) in RUN_NAMES, all(number(value) is None for value in values)
        if (named or text) and 1 < len(set(map(str, values))) <= len(values) / 3:
            (called if named else texts).append(name)
    by = called[:1]
    for name in [*called[1:], *texts]:
        if 2 * _clashes(rows, found, [*by, name]) < _clashes(rows, found, by):
            by.append(name)
    return sorted(by, key=names.index)


def _clashes(rows: Sequence[Cells], found: Mapping[str, str], by: Sequence[str]) -> int:
    """Count entropies and scores that differ from the first one of their step and run."""
    first: dict[tuple[str, ...], str] = {}
    step, *figures = (found[kind] for kind in KINDS if kind in found)
    return sum(
        first.setdefault((figure, *(str(row.get(name)) for name in (step, *by))), told) != told
        for _, row, _ in rows if step in row
        for figure in figures if (told := str(row.get(figure, "")))
    )  # fmt: skip


def _lacking(found: Mapping[str, str], names: Iterable[str], given: Given) -> str:
    listed = ", ".join(short(name) for name in list(names)[:20]) or "none"
    asked = [f"{kind} {name!r}" for kind, name in given.columns.items() if kind not in found]
    missing = ", ".join(asked) or ("step" if "step" not in found else "entropy, and no score")
    if not asked and "step" in found and choose("entropy", names)[1]:
        missing = "entropy that is surely it, and no score"
    more = " (TensorBoard's own CSV: --entropy Value)" if "'Value'" in listed else ""
    if "step" not in found:
        more += "; a row that is a whole run has its last values only: export its history"
    return (
        f"{clean(str(given.root))!r} has no column for {missing}; its columns: {listed}; name them "
        f"with --step, --entropy and --score{more}"
    )


is_line, is_record = forms.is_line, forms.is_record


def run_of(rows: Sequence[Row], given: Given, trainer: str | None) -> Run | None:
    """Build the run from rows of any source but TRL and veRL.

    Raises:
        ValueError: the rows have neither entropy nor score, or lack a column that the user named.
    """
    names = list(dict.fromkeys(key for row in rows for key in row.values))
    columns = {k: v.rpartition(" - ")[2] for k, v in given.columns.items() if k != "step"}
    found = {"step": ""} | guess(names, columns)
    if not complete(found, columns):
        raise ValueError(_lacking(found, names, given))
    entropy, score = found.get("entropy"), found.get("score")
    ours = entropy if entropy in KNOWN else "entropy/logged"
    chosen = {} if entropy is None else {entropy: ours}
    chosen |= {} if score is None else {score: "reward/mean"}
    known = {key: name for key, name in renamed(names, {}).items() if name not in chosen.values()}
    metrics = metrics_of(given, known | chosen, rows)
    values = [row[ours] for row in metrics if ours in row]
    if values and max(values) <= 0 and min(values) < 0 and "loss" in str(entropy).lower():
        metrics = [row | {ours: -row[ours]} if ours in row else row for row in metrics]
        given.notes.append(NEGATED.format(name=clean(entropy)))
    entropy_is = KNOWN.get(ours, UNKNOWN.format(name=clean(entropy)))
    if entropy is None:
        several = choose("entropy", names)[1]
        listed = ", ".join(clean(name) for name in several[:8])
        entropy_is = SEVERAL.format(names=listed) if several else entropy_is
        rest = [clean(name) for name in names if name not in found.values()]
        if not several and trainer is None and rest:
            entropy_is = OTHER.format(names=", ".join(rest[:8]))
    planned = None
    if trainer == "entrostat":
        entropy_is, planned = EXACT, step_of(rows[-1].settings.get("iterations"))
    return finish(given, trainer or "a table", entropy_is, metrics, planned=planned or None)
