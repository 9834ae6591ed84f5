"""Tasks: prompts plus a verifier.

A task is any object with the members of `Task`; no base class. `make_task` finds one by name:

- `target_sum`: the built-in task of the tiny policy,
- `words`, `arithmetic`: few-shot tasks of small language models,
- `gym:NAME`: a reasoning-gym data set with its own scorer,
- `FILE.jsonl`: prompt/answer pairs and a grader's name,
- `MODULE:CLASS`: your own class, imported from where Python finds it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .._names import nearest, unknown
from .._plugins import find
from ..errors import in_one_line
from .base import Example, Task

BUILT_IN = ("target_sum", "words", "arithmetic")


def make_task(name: str, seed: int = 0, **params: Any) -> Task:
    """A task by name.

    Args:
        name: "target_sum", "words", "arithmetic", "gym:NAME", a path to a JSONL file, or
            "MODULE:CLASS".
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
    if name == "words":
        from .words import Words

        return _construct(Words, name, {"seed": seed, **params})
    if name == "arithmetic":
        from .arithmetic import Arithmetic

        return _construct(Arithmetic, name, {"seed": seed, **params})
    if ":" in name:
        cls = _import(name)
        if _takes(cls, "seed"):
            params = {"seed": seed, **params}
        return _construct(cls, name, params)
    raise ValueError(
        f"{unknown('task', name, BUILT_IN)} Others: gym:NAME (reasoning-gym), FILE.jsonl "
        "(prompt/answer pairs), MODULE:CLASS (your own)."
    )


def _import(name: str) -> Callable[..., Any]:
    module, class_name = find(name, "task")
    found = getattr(module, class_name, None)
    if not callable(found):
        guess = nearest(class_name, vars(module))
        hint = f" Did you mean {guess!r}?" if guess else ""
        raise ValueError(
            f"unknown task {name!r}: {module.__name__} has no class {class_name!r}.{hint}"
        )
    return found


def _takes(cls: Callable[..., Any], name: str) -> bool:
    known = inspect.signature(cls).parameters
    return name in known or any(p.kind == p.VAR_KEYWORD for p in known.values())


def _construct(cls: Callable[..., Any], name: str, params: Mapping[str, Any]) -> Task:
    for key in params:
        if not _takes(cls, key):
            known = inspect.signature(cls).parameters
            raise ValueError(f"task {name!r}: {unknown('parameter', key, known)}")
    try:
        task = cls(**params)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"task {name!r}: making it raised {in_one_line(error)}") from error
    for member in ("name", "splits", "max_new_tokens", "size", "example", "score"):
        if not hasattr(task, member) and not (member == "score" and hasattr(task, "score_batch")):
            raise ValueError(f"task {name!r} has no {member!r}; see entrostat.Task for its members")
    if isinstance(task.splits, str) or not task.splits:
        raise ValueError(f"task {name!r}: splits must be names in a tuple, got {task.splits!r}")
    return task


__all__ = ["BUILT_IN", "Example", "Task", "make_task"]
