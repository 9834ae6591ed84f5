"""Any table: CSV, JSON lines or a JSON list, Markdown, HTML, a notebook, and a console's figures.

A table has columns for step, entropy, score (`names`); `columns` names them instead. Whose figures
they are the names say: what is TRL's or veRL's is read as theirs. Which entropy another table has
cannot be known from it, unless the column has one of our own names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..run import Run
from . import trl, verl
from .forms import complete, guess, lacking
from .names import (
    ENTROPY,
    OURS,
    SCORE,
    STEP,
    bare,
    choose,
    find,
    fold,
    folded,
    trainer_of,
)  # fmt: skip
from .rows import Row
from .source import Given, clean, step_of
from .steps import Log, finish

KNOWN = {
    "entropy/exact": "exact by its name, entropy/exact: the full next-token entropy, in nats",
    "entropy/nll": "sampled by its name, entropy/nll: the mean of -log p of the sampled tokens",
}
UNKNOWN = (
    "it cannot be known: the source says neither whether {name} is the full entropy or the NLL of "
    "sampled tokens, nor its temperature, nor whether it is per token or per sequence"
)
NONE = "none: the source has no entropy"
SEVERAL = "none that is surely it: several columns mention entropy ({names}); choose by --entropy"
EXACT = "exact: the mean over tokens of the full next-token entropy (entrostat)"
NEGATED = "{name} is below 0 throughout, as a loss: its negative is taken for the entropy."


def run_of(rows: Sequence[Row], given: Given, through: str = "") -> Run | None:
    """The run of rows whose trainer their names tell.

    Args:
        rows: in their order, of one run.
        given: with the user's columns; takes the problems.
        through: the tracker that kept them; "" for a table, of which more has to be said.

    Raises:
        ValueError: they have neither entropy nor score, or not what the user named.
    """
    if not rows:
        return None
    names = dict.fromkeys(key for row in rows for key in row.values)
    trainer = trainer_of(names, 1 if through else 2)
    if given.columns:
        run = _of_table(rows, given, None)
    elif trainer in ("TRL", "ms-swift"):
        run = trl.run_of(_spelled(rows, trl.NAMES), given)
    elif trainer == "veRL":
        run = verl.run_of(_spelled(rows, verl.NAMES), given)
    elif trainer == "entrostat":
        log = Log(given, {})
        for row in rows:
            log.add(row.path, row.line, row.step, row.values)
        planned = step_of(rows[-1].settings.get("iterations")) or None
        run = finish(given, trainer, EXACT, log.metrics(), planned=planned)
    else:
        run = _of_table(rows, given, trainer)
    if run is None or not through:
        return run
    who = run.source.removeprefix("a table")
    return replace(run, source=f"{who} through {through}" if who else through)


def _spelled(rows: Sequence[Row], known: Mapping[str, str]) -> list[Row]:
    """Rows whose names are spelled as their trainer does: a file's name has "_" for "/"."""
    theirs = {fold(name): name for name in known}
    names = {key for row in rows for key in row.values if bare(key) not in known}
    other = {key: theirs[fold(key)] for key in names if fold(key) in theirs}
    if not other:
        return list(rows)
    return [
        row._replace(values={other.get(key, key): v for key, v in row.values.items()})
        for row in rows
    ]


def _of_table(rows: Sequence[Row], given: Given, trainer: str | None) -> Run | None:
    names = list(dict.fromkeys(key for row in rows for key in row.values))
    columns = {k: v.rpartition(" - ")[2] if k != STEP else v for k, v in given.columns.items()}
    found = {STEP: ""} | guess(names, {k: v for k, v in columns.items() if k != STEP})
    if not complete(found, {k: v for k, v in columns.items() if k != STEP}):
        raise ValueError(lacking(found, names, given))
    renamed: dict[str, str] = {}
    entropy = found.get(ENTROPY)
    ours = entropy if entropy in KNOWN else "entropy/logged"
    if entropy is not None:
        renamed[entropy] = ours
    if (score := found.get(SCORE)) is not None:
        renamed[score] = OURS[SCORE]
    by_name = folded(names)
    for quantity, name in OURS.items():
        theirs = None if quantity == SCORE else find(quantity, by_name)
        if theirs is not None and name not in names:
            renamed.setdefault(theirs, name)
    log = Log(given, renamed)
    for row in rows:
        log.add(row.path, row.line, row.step, row.values)
    metrics = log.metrics()
    values = [row[ours] for row in metrics if ours in row]
    if values and max(values) <= 0 and min(values) < 0 and "loss" in str(entropy).lower():
        metrics = [row | {ours: -row[ours]} if ours in row else row for row in metrics]
        given.notes.append(NEGATED.format(name=clean(entropy)))
    if entropy is None:
        several = choose(ENTROPY, names)[1]
        listed = ", ".join(clean(name) for name in several[:8])
        entropy_is = SEVERAL.format(names=listed) if several else NONE
    else:
        entropy_is = KNOWN.get(ours, UNKNOWN.format(name=clean(entropy)))
    return finish(given, trainer or "a table", entropy_is, metrics)
