"""Whether a run's controllers could do what they were asked, by its log.

A controller whose coefficient stays at the end of its range has no more to give: the entropy goes
where the rest of the training takes it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ..control import ProportionalIntegral, Thermostat, at_limit
from ..control.known_ranges import able
from ..method.base import Method
from ..method.compose import built
from ..method.controlled import Controlled
from ..method.registry import METHODS
from ..method.thermostat import HeldEntropy, knob_of
from .lines import number

NEAR = 0.05  # of the target: a coefficient at its limit that holds it so far is no trouble
KEYS = {"entropy": "entropy/exact", "perplexity": "entropy/perplexity"}  # what a target may be of


def saturation(metrics: Sequence[Mapping[str, Any]], methods: Sequence[Any]) -> list[str]:
    """A sentence for each controller that was at its limit in most of the run's second half.

    Args:
        metrics: one object per iteration, as in metrics.jsonl.
        methods: tables of `name` and all parameters, as in objective.json.
    """
    tables = [table for table in methods if isinstance(table, Mapping)]
    found = []
    for table in tables:
        name, method = str(table.get("name")), _rebuilt(table)
        if isinstance(method, HeldEntropy):
            found.append(_bound(metrics))
        if method is None or method.actuator is None or method.controls() is None:
            continue
        coefficient, parameter = method.actuator
        law = method.law() if isinstance(method, Controlled) else None
        signal = law.wanted.signal if isinstance(law, Thermostat) else "entropy"
        seen, target = (
            _series(metrics, KEYS[signal]),
            _series(metrics, _key(metrics, name, "target")),
        )
        missed = _missed(signal, seen, target)
        if not missed:
            continue
        if isinstance(law, Thermostat):
            others = _by_whom(knob_of(name, coefficient), signal, seen, target)
            found.append(_without_authority(metrics, coefficient, missed, others))
            continue
        limit = 0.0 if parameter is None else float(getattr(method, parameter))
        if isinstance(law, ProportionalIntegral):  # over a range of its own
            limit, parameter = law.high, None
        values = _series(metrics, _key(metrics, name, coefficient))
        if (count := at_limit(values, limit)) is None:
            continue
        raised = ""
        if parameter is not None:
            several = sum(parameter in other for other in tables) > 1
            raised = f" Raise --method.{name + '.' if several else ''}{parameter}."
        found.append(
            f"{coefficient} was at its limit {limit:g} in {count} of {len(values)} iterations: "
            f"{missed}.{raised}"
        )
    return [sentence for sentence in found if sentence]


def _missed(signal: str, seen: Sequence[float], target: Sequence[float]) -> str:
    """That the target cannot be held, and how far off the signal is; "" where it is held."""
    half, text = seen[len(seen) // 2 :], "it cannot hold the target"
    if not half or not target:
        return text
    end, wanted = sum(half) / len(half), target[-1]
    if abs(end - wanted) <= NEAR * abs(wanted):
        return ""
    return f"{text} ({signal} {end:.3g}, target {wanted:.3g} in the second half)"


def _mostly(at: Sequence[float]) -> bool:
    """Whether it was there in most of the second half."""
    half = at[len(at) // 2 :]
    return 2 * sum(half) > len(half)


def _bound(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Where the multiplier was at its largest, and that was not enough."""
    bound = _series(metrics, "thermostat/bound")
    entropy, target = _series(metrics, KEYS["entropy"]), _series(metrics, "control/target")
    if not _mostly(bound) or not (missed := _missed("entropy", entropy, target)):
        return ""
    return (
        f"the multiplier was at its largest in {sum(bound):.0f} of {len(bound)} iterations, the "
        f"entropy's gradient as long as the whole one: {missed}. Ask for less, or lower optim.lr."
    )


def _without_authority(
    metrics: Sequence[Mapping[str, Any]], coefficient: str, missed: str, others: str
) -> str:
    """Where a thermostat's knob was at an end of its range and would have gone on."""
    ends = [end != 0 for end in _series(metrics, "thermostat/saturated")]
    if not _mostly(ends):
        return ""
    gain, drift = (_series(metrics, f"thermostat/{key}")[-1] for key in ("gain", "drift"))
    return (
        f"{coefficient} was at an end of its range in {sum(ends)} of {len(ends)} iterations: "
        f"{missed}. All of its range moves entropy by {gain:.2g} nats an iteration, and where it "
        f"stands entropy still changes by {drift:+.2g}. Let another knob hold in its place "
        f"(--method.knob of `thermostat`){others}."
    )


def _by_whom(knob: str, signal: str, seen: Sequence[float], target: Sequence[float]) -> str:
    """Which knobs held this share of the first entropy where all were measured."""
    if signal != "entropy" or not seen or not target or seen[0] <= 0:
        return ""
    knobs = able(target[-1] / seen[0], knob)
    if not knobs:
        return "; none of those measured on target_sum held this share of the first entropy"
    return f"; on target_sum {' and '.join(knobs)} held this share of the first entropy"


def _rebuilt(table: Mapping[str, Any]) -> Method | None:
    """The method that a table means; None where it is not known here, or was another once."""
    name = str(table.get("name"))
    given = {key: value for key, value in table.items() if key != "name"}
    try:
        with warnings.catch_warnings(action="ignore"):
            return built(name, METHODS[name], given) if name in METHODS else None
    except (TypeError, ValueError):
        return None


def _key(metrics: Sequence[Mapping[str, Any]], name: str, figure: str) -> str:
    """Where a method's figure is logged: under its name where two have one of that name."""
    own = f"control/{name}_{figure}"
    return own if any(own in row for row in metrics) else f"control/{figure}"


def _series(metrics: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [value for row in metrics if (value := number(row.get(key))) is not None]
