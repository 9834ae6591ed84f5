"""Settings in which the compared runs differ, other than the method that is compared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from .._text import cut
from ..config import TrainConfig, flat
from ..logs.run import Run

# settings that identify a run, or change neither its training nor its measurements
_OWN = frozenset((
    "method", "seed", "output", "title", "name", "device", "threads", "gradient_checkpointing",
    "sampling.batch", "optim.micro_batch", "scoring.workers", "scoring.memory",
))  # fmt: skip
_OWN_TABLES = ("save.", "analyze.", "log.", "alarm.")
_MOST = 60  # maximum length of a value
NOTHING = "not set"
SURROGATE = "surrogate"


# a setting, and each of its values with the labels of its runs, the most frequent first
Difference = tuple[str, tuple[tuple[str, tuple[str, ...]], ...]]


@dataclass(frozen=True)
class Differences:
    rows: tuple[Difference, ...]  # the settings, without those of the method itself
    # for each run, its settings that differ from the most frequent value (in a tie, from the first
    # run's); None if unknown
    odd: tuple[tuple[str, ...] | None, ...]
    unknown: tuple[str, ...]  # labels of the runs whose settings are not known
    known: int  # number of runs whose settings are known

    @property
    def sentence(self) -> str:
        if self.known < 2:
            return ""
        if not self.rows:
            return "Apart from the method and the seed, the known settings are equal in all runs."
        others, keys = sum(bool(odd) for odd in self.odd), [key for key, _ in self.rows]
        which = ", ".join(keys[:3] + (len(keys) > 3) * ["..."])
        return (
            f"Not the method alone: {others} of {self.known} runs "
            f"{'has' if others == 1 else 'have'} other settings than the rest ({which})."
        )


def differences_of(runs: Sequence[Run], labels: Sequence[str]) -> Differences:
    """List the settings in which runs differ; an unrecorded setting has its default."""
    table = {i: some for i, run in enumerate(runs) if (some := _settings(run)) is not None}
    columns = {
        key: {
            i: some.get(key, _defaults().get(key, NOTHING))
            for i, some in table.items()
            # another trainer's own settings do not apply to a run
            if (host := key.partition(".")[0]) not in ("trl", "verl") or some.get("host") == host
        }
        for key in dict.fromkeys(key for some in table.values() for key in some)
    }
    bases = {i: base for i in table if (base := _surrogate(runs[i])) is not None}
    # if all runs are plain surrogates, the surrogate is the compared method
    if any(above for _, above in bases.values()):
        columns[SURROGATE] = {i: text for i, (text, _) in bases.items()}
    rows: list[Difference] = []
    odd: dict[int, tuple[str, ...]] = dict.fromkeys(table, ())
    for key, values in columns.items():
        ranked = [value for value, _ in Counter(values.values()).most_common()]
        if len(ranked) < 2:
            continue
        having = {v: _once(labels[i] for i in values if values[i] == v) for v in ranked}
        rows.append((key, tuple(having.items())))
        for i, value in values.items():
            if value != ranked[0] and (key != SURROGATE or bases[i][1]):
                odd[i] += (key,)
    return Differences(
        tuple(rows),
        tuple(odd.get(i) for i in range(len(runs))),
        _once(labels[i] for i in range(len(runs)) if i not in table),
        len(table),
    )


def _once(labels: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(labels))


def _settings(run: Run) -> dict[str, str] | None:
    if run.source != "entrostat" or not run.config:
        return None
    return {
        key: _word(value)
        for key, value in flat(run.config)
        if key not in _OWN and not key.startswith(_OWN_TABLES)
    }


def _word(value: Any) -> str:
    if value is None:
        return NOTHING
    return cut(value if isinstance(value, str) else json.dumps(value, default=str), _MOST)


@cache
def _defaults() -> dict[str, str]:
    """Values of settings that a run does not record, such as an older run."""
    return {key: _word(value) for key, value in flat(asdict(TrainConfig()))}


def _surrogate(run: Run) -> tuple[str, bool] | None:
    """A run's surrogate, and whether other methods modify it; None if unknown."""
    from ..method.registry import METHODS

    try:
        tables = json.loads((run.path / "objective.json").read_text(encoding="utf-8"))["methods"]
        known = {name: method.kind for name, method in METHODS.items()}
        kinds = [(known.get(table["name"], "intervention"), table) for table in tables]
        (base,) = (table for kind, table in kinds if kind == "surrogate")
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None  # written by an older version, or with an unknown surrogate
    parts = [f"{k} {_word(v)}" for k, v in base.items() if k != "name" and v is not None]
    return " ".join((str(base["name"]), *parts)), len(kinds) > 1
