"""Tasks: prompts plus a verifier.

A task is any object with the members of `Task`; no base class. `make_task` finds one by name:

- `target_sum`: the built-in task of the tiny policy,
- `words`, `arithmetic`, `functions`: few-shot tasks of small language models,
- `tool_sum`, `tools`, `games`, `appworld`: agent environments (`entrostat.agents`),
- `gym:NAME`: a reasoning-gym data set with its own scorer,
- `gsm8k`, `aime24`, `humaneval`, ...: data sets by name (`sets.SETS`),
- `math:FILE`, `code:FILE`, `ifeval:FILE`: files of their kinds,
- `FILE.jsonl`, `FILE.parquet`: prompt/answer pairs and a grader's name,
- `MODULE:CLASS`: your own class, on Python's import path,
- a name that an installed package registers by an entry point of the group `entrostat.tasks`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from .._names import nearest, unknown
from .._plugins import find, offered, offers
from ..errors import in_one_line
from .base import Example, Task
from .rows import SUFFIXES
from .sets import SETS, data_set

BUILT_IN = {
    "target_sum": ".target_sum:TargetSum",
    "words": ".words:Words",
    "arithmetic": ".arithmetic:Arithmetic",
    "functions": ".functions:Functions",
    "tool_sum": "..agents.tool_sum:ToolSum",
    "tools": "..agents.tools:Tools",
    "games": "..agents.games:Games",
    "appworld": "..agents.appworld:AppWorld",
}
_METHODS = ("max_new_tokens", "size", "example", "score")
_MEMBERS = ("name", "splits", *_METHODS)  # instances may set the first two


def make_task(name: str, seed: int = 0, **params: Any) -> Task:
    """Make a task by name.

    Args:
        name: "target_sum", "words", "arithmetic", "gym:NAME", a data set's name, "math:FILE",
            "code:FILE", "ifeval:FILE", a path to a JSONL or Parquet file, "MODULE:CLASS", or a name
            that an installed package registers.
        seed: seed of the prompts.
        **params: the task's own parameters; `entrostat tasks` lists them.

    Raises:
        ValueError: unknown name or parameter; the message gives the nearest name.
    """
    cls, named = _found(name)
    known = inspect.signature(cls).parameters
    others = any(one.kind == one.VAR_KEYWORD for one in known.values())
    if "seed" in known or others:
        named["seed"] = seed
    params = named | params
    for key in params:
        if key not in known and not others:
            raise ValueError(f"task {name!r}: {unknown('parameter', key, known)}")
    try:
        task = cls(**params)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"task {name!r}: making it raised {in_one_line(error)}") from error
    _check_members(f"task {name!r}", task, _MEMBERS)
    if isinstance(task.splits, str) or not task.splits:
        raise ValueError(f"task {name!r}: splits must be names in a tuple, got {task.splits!r}")
    return task


def task_class(name: str) -> type[Any]:
    """The class of a task by name; imports its module but calls nothing in it."""
    return _found(name)[0]


def _found(name: str) -> tuple[type[Any], dict[str, Any]]:
    """The class of a task, and the parameter that its name contains."""
    if name.startswith("gym:"):
        from .gym import GymTask

        return GymTask, {"name": name.removeprefix("gym:")}
    if data_set(name):
        from .data import DataTask

        return DataTask, {"name": name}
    if name.endswith(SUFFIXES):
        from .jsonl import JsonlTask

        return JsonlTask, {"path": name}
    if name in BUILT_IN:
        module, _, found = BUILT_IN[name].partition(":")
        return getattr(import_module(module, __name__), found), {}
    if ":" in name:
        return _import(name), {}
    offer = offered("task", name)
    if offer is not None:
        found = offer.load()
        if not isinstance(found, type):
            raise ValueError(f"{offer.whose} is a {type(found).__name__}; a task is a class")
        _check_members(offer.whose, found, _METHODS)
        return found, {}
    others = [offer.name for offer in offers("task")]
    raise ValueError(
        f"{unknown('task', name, [*BUILT_IN, *SETS, *others])} Others: gym:NAME (reasoning-gym), "
        "math:FILE, code:FILE, ifeval:FILE, FILE.jsonl or FILE.parquet (prompt/answer pairs), "
        "MODULE:CLASS (your own). `entrostat tasks` explains."
    )


def _import(name: str) -> type[Any]:
    module, class_name = find(name, "task")
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        guess = nearest(class_name, [k for k, v in vars(module).items() if isinstance(v, type)])
        hint = f" Did you mean {guess!r}?" if guess else ""
        what = "" if found is None else f" (it is a {type(found).__name__})"
        raise ValueError(
            f"unknown task {name!r}: {module.__name__} has no class {class_name!r}{what}.{hint}"
        )
    _check_members(f"task {name!r}", found, _METHODS)
    return found


def _check_members(whose: str, task: Any, asked: Sequence[str]) -> None:
    """Raise ValueError if a task lacks members; names all of them."""
    instead = {"score": ("score", "score_batch", "environment")}
    missing = [
        member
        for member in _MEMBERS
        if not any(hasattr(task, one) for one in instead.get(member, (member,)))
    ]
    if set(missing) & set(asked):
        listed = ", ".join(map(repr, missing))
        raise ValueError(f"{whose} has no {listed}; see entrostat.Task for its members")


__all__ = ["BUILT_IN", "Example", "Task", "make_task", "task_class"]
