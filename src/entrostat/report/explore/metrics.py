"""Which metrics of some runs can be looked at, under one name each whatever the trainer's is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...logs.lines import number
from ...logs.run import Run, is_line
from ..curves import ALIASES
from ..runs import HUGE, entropy_key

ENTROPY = "entropy"  # of each run the one that tells it best
EVALUATION = "evaluation"  # the group of what evaluations came to
FIRST = ("entropy", "reward", EVALUATION, "control", "thermostat", "flow", "clip", "kl", "loss")

# the unit of what a name fits, the first that does
_UNITS = (
    (r"entropy/logged", ""),  # of a sum, say: the notes tell what it is
    (r"entropy($|/exact|/nll|/response_mean)|touched/entropy|control/target", "nats per token"),
    (r"entropy/|flow/|thermostat/|mismatch/logp", "nats"),
    (r"kl/|kl$|mismatch/kl", "nats per token"),
    (r"reward/failed", "answers"),
    (r"reward/|reward", "reward"),
    (r"clip/|touched/share|quadrant/", "fraction of tokens"),
    (r"rollout/length|completions/.*length|response_length", "tokens"),
    (r"rollout/truncated", "share of completions"),
    (r"rollout/zero_advantage_groups", "groups"),
    (r"time/tokens_per_second", "tokens per second"),
    (r"time/", "seconds"),
)
_EVALUATED = ("avg@k", "pass@k", "distinct", "entropy", "prompt_entropy")

Points = dict[int, float]  # iteration -> value


@dataclass(frozen=True)
class Metric:
    """One metric of some runs.

    Attributes:
        key: our name of it, or the trainer's where we have none.
        group: what it stands under in a list.
        unit: of its values; empty where it is not known.
        values: of each run; empty where the run does not log it.
        names: place of a run -> the name under which it was logged, where that is another.
    """

    key: str
    group: str
    unit: str
    values: tuple[Points, ...]
    names: dict[int, str]

    @property
    def constant(self) -> float | None:
        """The one value that it has everywhere; None where it has several."""
        found = {value for points in self.values for value in points.values()}
        return found.pop() if len(found) == 1 else None


def metrics_of(runs: Sequence[Run]) -> list[Metric]:
    """All that the runs log as numbers, group by group.

    Where runs log different kinds of entropy, `ENTROPY` comes first: of each run its best.
    """
    logged = [_logged(run) for run in runs]
    found = [_metric(key, key, logged) for key in _names(logged)]
    evaluated = [_evaluated(run) for run in runs]
    found += [
        _metric(key, EVALUATION, evaluated)
        for key in dict.fromkeys(key for run in evaluated for key in run)
    ]
    groups = [*FIRST, *dict.fromkeys(metric.group for metric in found)]
    found.sort(key=lambda metric: groups.index(metric.group))
    best = [entropy_key(run) for run in runs]
    if len({*best} - {None}) < 2:
        return found
    entropy = Metric(
        ENTROPY, ENTROPY, unit_of(ENTROPY),
        tuple(run.get(key, {}) if key else {} for run, key in zip(logged, best, strict=True)),
        {i: key for i, key in enumerate(best) if key not in (None, "entropy/exact")},
    )  # fmt: skip
    return [entropy, *found]


def unit_of(key: str) -> str:
    """The unit of a metric's values; empty where it is not known."""
    return next((unit for name, unit in _UNITS if re.match(name, key)), "")


def _names(logged: Sequence[Mapping[str, Points]]) -> list[str]:
    """Our names and those that we have no other for, in order of appearance."""
    ours = {theirs: key for key, names in ALIASES.items() for theirs in names}
    found: dict[str, None] = {}
    for run in logged:
        for key in run:
            other = ours.get(key, key)
            # a run that logs both keeps both
            found[key if other in run else other] = None
    return list(found)


def _metric(key: str, group: str, logged: Sequence[Mapping[str, Points]]) -> Metric:
    names = [next((n for n in (key, *ALIASES.get(key, ())) if n in run), key) for run in logged]
    return Metric(
        key,
        group if group == EVALUATION else group.partition("/")[0] if "/" in group else "other",
        unit_of(key),
        tuple(run.get(name, {}) for run, name in zip(logged, names, strict=True)),
        {i: name for i, name in enumerate(names) if name != key},
    )


def _logged(run: Run) -> dict[str, Points]:
    found: dict[str, Points] = {}
    for line in run.metrics:
        for key, value in line.items():
            value = number(value)
            if key != "iteration" and value is not None and abs(value) < HUGE:
                found.setdefault(key, {})[line["iteration"]] = value
    return found


def _evaluated(run: Run) -> dict[str, Points]:
    """What evaluations came to, by set and figure; iteration 0 is before training."""
    found: dict[str, Points] = {}
    for line in filter(is_line, run.evaluation):
        for key in _EVALUATED:
            value = number(line.get(key))
            if value is not None and abs(value) < HUGE:
                name = f"{line.get('split', '')}/{key}".lstrip("/")
                found.setdefault(name, {})[line["iteration"]] = value
    return found
