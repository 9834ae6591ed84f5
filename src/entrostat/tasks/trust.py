"""Protection against code named in files: it is imported only if the user allows it.

Configurations, resumed runs and studies are files that people share. `task.name = "x:Y"` in such a
file would import x, which executes it. Names typed on the command line are trusted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeGuard

from .rows import SUFFIXES
from .sets import data_set


def is_code(name: Any) -> TypeGuard[str]:
    """Whether a method's or grader's name refers to code: MODULE:NAME."""
    return isinstance(name, str) and ":" in name


def is_code_task(name: Any) -> TypeGuard[str]:
    """Whether a task's name refers to code: MODULE:CLASS, not a file or a data set."""
    data = isinstance(name, str) and (
        name.startswith("gym:") or name.endswith(SUFFIXES) or data_set(name) is not None
    )
    return is_code(name) and not data


def code_in(settings: Mapping[str, Any]) -> dict[str, str]:
    """Keys of a configuration that name code -> the names."""
    named = _of_task("task", settings.get("task"))
    evaluated = settings.get("eval")
    sets = evaluated.get("sets") if isinstance(evaluated, Mapping) else evaluated
    for place, one in enumerate(sets if isinstance(sets, list) else (), 1):
        named |= _of_task(
            f"eval {place}.task", one.get("task") if isinstance(one, Mapping) else None
        )
    methods = settings.get("method")
    for place, method in enumerate(methods if isinstance(methods, list) else [methods]):
        name = method.get("name") if isinstance(method, Mapping) else method
        named["method" if not place else f"method {place + 1}"] = name
    own = settings.get("trl")
    remote = isinstance(own, Mapping) and own.get("trust_remote_code")
    return {key: name for key, name in named.items() if is_code(name)} | (
        {"trl.trust_remote_code": "true"} if remote else {}
    )


def _of_task(key: str, task: Any) -> dict[str, Any]:
    task = task if isinstance(task, Mapping) else {"name": task}
    name = task.get("name")
    return {key: name if is_code_task(name) else None, f"{key}.grader": task.get("grader")}


def typed_keys(flags: Collection[tuple[list[str], str]]) -> set[str]:
    """Keys of `code_in` that flags (key path, text) set."""
    keys = {".".join(path) for path, _ in flags}
    if "task" in keys:  # --task drops the file's task table; --task.name keeps the rest of it
        keys.add("task.grader")
    return keys | {"task"} if "task.name" in keys else keys


def refuse_unsafe(
    settings: Mapping[str, Any], where: str, typed: Collection[str] = (),
    flag: str = "--sandbox unsafe",
) -> None:  # fmt: skip
    """Raise ValueError for a file that turns isolation off; `flag` is how the user allows it."""
    scoring = settings.get("scoring")
    unsafe = isinstance(scoring, Mapping) and scoring.get("sandbox") == "unsafe"
    if unsafe and "scoring.sandbox" not in typed:
        raise ValueError(
            f"{where}: scoring.sandbox = 'unsafe' runs what a model writes with your own rights. "
            f"If you mean it, add {flag}"
        )


def refuse_code(settings: Mapping[str, Any], where: str, typed: Collection[str] = ()) -> None:
    """Raise ValueError for a file that names code, without importing the code."""
    for key, name in code_in(settings).items():
        if key.split()[0] not in typed:
            raise ValueError(
                f"{where}: {key} = {name!r} is code outside entrostat, and importing it runs it. "
                "If you know it and trust it, add --trust-code"
            )
