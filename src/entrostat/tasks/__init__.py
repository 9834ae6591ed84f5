"""Tasks: prompts plus a verifier.

A task is any object with the members of `Task`; no base class. `make_task` finds one by name:

- `target_sum`: the built-in task of the tiny policy,
- `gym:NAME`: a reasoning-gym data set with its own scorer,
- `FILE.jsonl`: prompt/answer pairs and a grader's name,
- `MODULE:CLASS`: your own class, imported from where Python finds it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from .._names import nearest, unknown
from .base import Example, Task

BUILT_IN = ("target_sum",)


def make_task(name: str, seed: int = 0, **params: Any) -> Task:
    """A task by name.

    Args:
        name: "target_sum", "gym:NAME", a path to a JSONL file, or "MODULE:CLASS".
        seed: of the prompts.
        **params: the task's own parameters.

    Raises:
        ValueError: one line that says what was given, what exists and the nearest name.
    """
    if name.startswith("gym:"):
        from .gym import GymTask

        return GymTask(name.removeprefix("gym:"), seed=seed, **params)
    if name.endswith((".jsonl", ".json")):
        from .jsonl import JsonlTask

        return _construct(JsonlTask, name, {"path": name, "seed": seed, **params})
    if name == "target_sum":
        from .target_sum import TargetSum

        return _construct(TargetSum, name, {"seed": seed, **params})
    if ":" in name:
        return _construct(_import(name), name, {"seed": seed, **params})
    raise ValueError(
        f"{unknown('task', name, BUILT_IN)} Others: gym:NAME (reasoning-gym), FILE.jsonl "
        "(prompt/answer pairs), MODULE:CLASS (your own)."
    )


def _import(name: str) -> type:
    module_name, class_name = name.split(":", 1)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".")[0] and error.name != module_name:
            raise
        raise ValueError(
            f"unknown task {name!r}: no module {module_name!r} in the current folder or installed"
        ) from None
    if not hasattr(module, class_name):
        guess = nearest(class_name, vars(module))
        hint = f" Did you mean {guess!r}?" if guess else ""
        raise ValueError(f"unknown task {name!r}: {module_name} has no {class_name!r}.{hint}")
    return getattr(module, class_name)


def _construct(cls: type, name: str, params: Mapping[str, Any]) -> Task:
    import inspect

    known = inspect.signature(cls).parameters
    for key in params:
        if key not in known and not any(p.kind == p.VAR_KEYWORD for p in known.values()):
            raise ValueError(f"task {name!r}: {unknown('parameter', key, known)}")
    try:
        return cls(**params)
    except TypeError as error:
        raise ValueError(f"task {name!r}: {error}") from None


__all__ = ["BUILT_IN", "Example", "Task", "make_task"]
