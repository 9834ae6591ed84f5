"""States of a chain of methods as plain data, for checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..errors import in_one_line
from .base import Method


def check_savable(names: Sequence[str], states: Sequence[Any]) -> None:
    """Raise on a state that cannot be saved, before the run rather than at its first checkpoint."""
    for name, state in zip(names, states, strict=True):
        try:
            json.dumps(None if state is None else type(state).from_dict(state.to_dict()).to_dict())
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"{name}: its state {state!r} cannot be saved ({in_one_line(error)}); init() "
                "returns None or an object with to_dict, of plain data, and from_dict, as "
                "entrostat.control.ControlState"
            ) from None


def restored(
    data: dict[str, Any], description: dict[str, Any], names: Sequence[str],
    methods: Sequence[Method],
) -> list[Any]:  # fmt: skip
    """The states in `data` from `Objective.state_dict`, for an objective of this description.

    Raises on the states of another objective (other methods or parameters).
    """
    if not _is_state(data):
        raise ValueError(
            "Objective.load_state_dict: needs what Objective.state_dict gave, a dict with "
            f"'objective' and a list 'states' of one entry a method, got {data!r:.80}"
        )
    mine = json.loads(json.dumps(description))
    saved = _completed(data["objective"], methods)
    if saved != mine:
        raise ValueError(
            f"Objective.load_state_dict: the state belongs to {_difference(saved, mine)}; resume "
            "with the checkpoint's objective, or train anew from its model"
        )
    for name, method, state in zip(names, methods, data["states"], strict=True):
        if (state is None) != (method.init() is None):
            raise ValueError(
                f"Objective.load_state_dict: {name} has a state now and had none, or the other "
                "way round; its code has changed"
            )
    return [
        None if state is None else type(method.init()).from_dict(state)
        for method, state in zip(methods, data["states"], strict=True)
    ]


def _is_state(data: Any) -> bool:
    """Whether data has the structure of a state; its contents are compared later."""
    if not isinstance(data, dict) or not isinstance(data.get("objective"), dict):
        return False
    methods, states = data["objective"].get("methods"), data.get("states")
    whole = isinstance(methods, list) and isinstance(states, list) and len(methods) == len(states)
    return whole and all(isinstance(one, dict) and "name" in one for one in methods)


def _completed(saved: dict[str, Any], methods: Sequence[Method]) -> dict[str, Any]:
    """The saved description, with parameters added since at their defaults."""
    if len(saved["methods"]) != len(methods):
        return saved
    pairs = zip(saved["methods"], methods, strict=True)
    return saved | {"methods": [method.parameters() | table for table, method in pairs]}


def _difference(saved: Any, mine: Any) -> str:
    names = [[m["name"] for m in d["methods"]] for d in (saved, mine)]
    if names[0] != names[1]:
        return f"{names[0]}, this objective is {names[1]}"
    for old, new in zip([saved, *saved["methods"]], [mine, *mine["methods"]], strict=True):
        for key in {**old, **new}:
            if key != "methods" and old.get(key) != new.get(key):
                whose = f"{new['name']}'s " if "name" in new else ""
                return f"{whose}{key} = {old.get(key)!r}, here it is {new.get(key)!r}"
    return "another objective"
