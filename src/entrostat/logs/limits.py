"""Check in a run's log whether its controllers were saturated.

A controller whose coefficient stays at the end of its range has no control left: the rest of the
training determines the entropy.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ..control import ProportionalIntegral, Thermostat, at_limit
from ..method.base import Method
from ..method.compose import built
from ..method.controlled import Controlled
from ..method.registry import METHODS
from ..method.thermostat import HeldEntropy
from .lines import number

NEAR = 0.05  # relative to the target: within it, a saturated controller still holds the target


def saturation(metrics: Sequence[Mapping[str, Any]], methods: Sequence[Any]) -> list[str]:
    """Return a sentence for each controller at its limit in most of the run's second half.

    `metrics` has the rows of metrics.jsonl, `methods` the tables of objective.json.
    """
    tables = [table for table in methods if isinstance(table, Mapping)]
    said = (_saturation(metrics, table, tables) for table in tables)
    return [sentence for sentence in said if sentence]


def _saturation(
    metrics: Sequence[Mapping[str, Any]], table: Mapping[str, Any], tables: Sequence[Any]
) -> str:
    series, name = partial(_series, metrics), str(table.get("name"))
    method = _rebuilt(table)
    if isinstance(method, HeldEntropy):
        missed = _missed(series("entropy/exact"), series("control/target"))
        bound = series("thermostat/bound")
        if not missed or (count := at_limit(bound, 1.0)) is None:
            return ""
        return (
            f"the multiplier was at its largest in {count} of {len(bound)} iterations, the "
            f"entropy's gradient as long as the whole one: {missed}. Ask for less, or lower "
            "optim.lr."
        )
    if method is None or method.actuator is None or method.controls() is None:
        return ""
    coefficient, parameter = method.actuator
    law = method.law() if isinstance(method, Controlled) else None
    seen, target = series("entropy/exact"), series(_key(metrics, name, "target"))
    if not (missed := _missed(seen, target)):
        return ""
    if isinstance(law, Thermostat):
        ends = series("thermostat/saturated")
        if (count := at_limit(ends, 1.0)) is None:
            return ""
        return (
            f"{coefficient} was at an end of its range in {count} of {len(ends)} iterations: "
            f"{missed}. All of its range moves entropy by {series('thermostat/gain')[-1]:.2g} nats "
            "an iteration, and where it stands entropy still changes by "
            f"{series('thermostat/drift')[-1]:+.2g}. Let another knob hold in its place "
            "(--method.knob of `thermostat`)."
        )
    limit = 0.0 if parameter is None else float(getattr(method, parameter))
    if isinstance(law, ProportionalIntegral):  # its range is its own
        limit, parameter = law.high, None
    values = series(_key(metrics, name, coefficient))
    if (count := at_limit(values, limit)) is None:
        return ""
    several = sum(parameter in other for other in tables) > 1
    option = f"{name}.{parameter}" if several else parameter
    return (
        f"{coefficient} was at its limit {limit:g} in {count} of {len(values)} iterations: "
        f"{missed}." + (f" Raise --method.{option}." if parameter else "")
    )


def _missed(seen: Sequence[float], target: Sequence[float]) -> str:
    """Say that the target is missed, and by how much; "" if it is held."""
    half, text = seen[len(seen) // 2 :], "it cannot hold the target"
    if not half or not target:
        return text
    end, wanted = sum(half) / len(half), target[-1]
    if abs(end - wanted) <= NEAR * abs(wanted):
        return ""
    return f"{text} (entropy {end:.3g}, target {wanted:.3g} in the second half)"


def _rebuilt(table: Mapping[str, Any]) -> Method | None:
    """Rebuild a method from its table; None if its name or parameters are unknown."""
    name = str(table.get("name"))
    given = {key: value for key, value in table.items() if key != "name"}
    try:
        with warnings.catch_warnings(action="ignore"):
            return built(name, METHODS[name], given) if name in METHODS else None
    except (TypeError, ValueError):
        return None


def _key(metrics: Sequence[Mapping[str, Any]], name: str, figure: str) -> str:
    """Key of a method's metric, with the method's name if two methods log that metric."""
    own = f"control/{name}_{figure}"
    return own if any(own in row for row in metrics) else f"control/{figure}"


def _series(metrics: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [value for row in metrics if (value := number(row.get(key))) is not None]
