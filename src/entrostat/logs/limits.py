"""Whether a run's controllers could do what they were asked, by its log.

A controller whose coefficient stays at the end of its range has no more to give: the entropy goes
where the rest of the training takes it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ..control import ProportionalIntegral, Thermostat, at_limit
from ..control.authority import able
from ..method.base import Method
from ..method.compose import built
from ..method.controlled import Controlled
from ..method.registry import METHODS
from .run import number

NEAR = 0.05  # of the target: a coefficient at its limit that holds it so far is no trouble


def saturation(metrics: Sequence[Mapping[str, Any]], methods: Sequence[Any]) -> list[str]:
    """A sentence for each controller that was at its limit in most of the run's second half.

    Args:
        metrics: one object per iteration, as in metrics.jsonl.
        methods: tables of `name` and all parameters, as in objective.json.
    """
    tables = [table for table in methods if isinstance(table, Mapping)]
    sentences = []
    for table in tables:
        name, method = str(table.get("name")), _rebuilt(table)
        if method is None or method.actuator is None or method.controls() is None:
            continue
        coefficient, parameter = method.actuator
        if isinstance(method, Controlled) and isinstance(method.law(), Thermostat):
            sentences += _without_authority(metrics, coefficient)
            continue
        law = method.law() if isinstance(method, Controlled) else None
        limit = 0.0 if parameter is None else float(getattr(method, parameter))
        if isinstance(law, ProportionalIntegral):  # over a range of its own
            limit, parameter = law.high, None
        own = f"control/{name}_{coefficient}"  # where two methods have a coefficient of one name
        key = own if any(own in row for row in metrics) else f"control/{coefficient}"
        values = _series(metrics, key)
        count = at_limit(values, limit)
        if count is None or _holds(metrics):
            continue
        text = f"{coefficient} was at its limit {limit:g} in {count} of {len(values)} iterations"
        text += f": it cannot hold the target{_how_far(metrics)}."
        if parameter is not None:
            several = sum(parameter in other for other in tables) > 1
            text += f" Raise --method.{name + '.' if several else ''}{parameter}."
        sentences.append(text)
    return sentences


def _without_authority(metrics: Sequence[Mapping[str, Any]], coefficient: str) -> list[str]:
    """A sentence where a thermostat's knob was at an end of its range and would have gone on."""
    ends = _series(metrics, "thermostat/saturated")
    half = ends[len(ends) // 2 :]
    if 2 * sum(end != 0 for end in half) <= len(half) or _holds(metrics):
        return []
    last = {key: _series(metrics, f"thermostat/{key}")[-1] for key in ("gain", "drift")}
    return [
        f"{coefficient} was at an end of its range in {sum(end != 0 for end in ends)} of "
        f"{len(ends)} iterations: it cannot hold the target{_how_far(metrics)}. All of its range "
        f"moves entropy by {last['gain']:.2g} nats an iteration, and where it stands entropy still "
        f"changes by {last['drift']:+.2g}. Let another knob hold in its place (--method.knob of "
        f"`thermostat`){_by_whom(metrics, coefficient)}."
    ]


def _by_whom(metrics: Sequence[Mapping[str, Any]], coefficient: str) -> str:
    """Which knobs held this share of the first entropy where all were measured."""
    entropy, target = _series(metrics, "entropy/exact"), _series(metrics, "control/target")
    if not entropy or not target or entropy[0] <= 0:
        return ""
    knobs = able(target[-1] / entropy[0], coefficient)
    if not knobs:
        return "; none of those measured on target_sum held this share of the first entropy"
    return f"; on target_sum {' and '.join(knobs)} held this share of the first entropy"


def _rebuilt(table: Mapping[str, Any]) -> Method | None:
    """The method that a table means; None where it is not known here, or was another once."""
    name = str(table.get("name"))
    if name not in METHODS:
        return None
    given = {key: value for key, value in table.items() if key != "name"}
    try:
        with warnings.catch_warnings(action="ignore"):
            return built(name, METHODS[name], given)
    except (TypeError, ValueError):
        return None


def _ends_at(metrics: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """Mean entropy and target of the second half, where they are logged."""
    half = metrics[len(metrics) // 2 :]
    entropy, target = _series(half, "entropy/exact"), _series(half, "control/target")
    return (sum(entropy) / len(entropy), target[-1]) if entropy and target else None


def _holds(metrics: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the target is held all the same."""
    found = _ends_at(metrics)
    return found is not None and abs(found[0] - found[1]) <= NEAR * abs(found[1])


def _how_far(metrics: Sequence[Mapping[str, Any]]) -> str:
    found = _ends_at(metrics)
    if found is None:
        return ""
    return f" (entropy {found[0]:.3g}, target {found[1]:.3g} in the second half)"


def _series(metrics: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    found = [number(row.get(key)) for row in metrics]
    return [value for value in found if value is not None]
