"""Flags of the open tables: of `method` and `task`, whose keys depend on a name, and of hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._names import unknown
from ..config import TrainConfig, toml_value

_HOSTS = ("trl", "verl")  # tables of keys that are another library's


def take_open_flags(args: list[str]) -> tuple[list[str], list[tuple[list[str], str]]]:
    """Split a command line into what the dataclass parser reads and the open tables' flags.

    Returns the other arguments, and (key path, text) for each `--method...`, `--task...`,
    `--trl.KEY` and `--verl.KEY`.
    """
    rest, found = [], []
    words = iter(args)
    for word in words:
        name, equals, text = word.removeprefix("--").partition("=")
        path = name.split(".")
        if not word.startswith("--") or path[0] not in ("method", "task", *_HOSTS):
            rest.append(word)
            continue
        if not equals:
            text = next(words, "--")
            if text.startswith("--"):
                raise ValueError(f"--{name} needs a value")
        found.append((path, text))
    return rest, found


def apply_open_flags(data: Mapping[str, Any], flags: list[tuple[list[str], str]]) -> dict[str, Any]:
    """Nested tables with `--method` and `--task` flags applied: names first, then parameters.

    `--method A,B` replaces the methods, `--method.NAME.KEY VALUE` sets a parameter of one of them
    (`--method.KEY VALUE` where one of them alone has it); `--task NAME` replaces the task,
    `--task.KEY VALUE` sets its parameter. `--trl.KEY VALUE` and `--verl.A.B VALUE` set a key of a
    host's own, which stays dotted. Values are read as TOML; anything else is text.
    """
    default = TrainConfig()
    data = dict(data)
    methods = data.get("method", default.method)
    methods = list(methods) if isinstance(methods, list) else [methods]
    task = data.get("task", default.task)
    task = {"name": task} if isinstance(task, str) else dict(task)
    hosts = {name: dict(_table(data.get(name, {}), name)) for name in _HOSTS}
    replaced = False
    for path, text in sorted(flags, key=lambda flag: len(flag[0]) > 1):
        if path == ["method"]:
            new: list[Any] = [name.strip() for name in text.split(",")]
            methods, replaced = (methods + new if replaced else new), True
        elif path == ["task"]:
            task = {"name": text}
        elif path[0] == "task":
            *tables, key = path[1:]  # --task.fields.answer sets `answer` of the table `fields`
            table: dict[str, Any] = task
            for name in tables:
                table[name] = dict(_table(table.get(name, {}), f"task.{name}"))
                table = table[name]
            table[key] = toml_value(text)
        elif path[0] in _HOSTS:
            if len(path) == 1:
                raise ValueError(f"--{path[0]} sets a key: write --{path[0]}.KEY {text}")
            hosts[path[0]][".".join(path[1:])] = toml_value(text)
        else:
            _set_parameter(methods, path[1:], toml_value(text))
    return {**data, "method": methods, "task": task, **hosts}


def _table(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} is a table, got {value!r}")
    return value


def _set_parameter(methods: list[Any], path: list[str], value: Any) -> None:
    found = [m.get("name") if isinstance(m, Mapping) else m for m in methods]
    names = [name for name in found if isinstance(name, str)]
    if len(names) < len(methods):
        raise ValueError(f"method: each is a name or a table with a name, got {methods!r}")
    short = {name.split(":")[-1]: name for name in names}
    if len(path) == 1:
        owner = names[0] if len(names) == 1 else _owner(names, path[0])
    else:
        owner = ".".join(path[:-1])  # a name of the user's own may hold dots
        owner = short.get(owner, owner)
    if owner not in names:
        raise ValueError(unknown("method for a parameter", ".".join(path[:-1]), names))
    place = names.index(owner)
    old = methods[place]
    methods[place] = {**(old if isinstance(old, Mapping) else {"name": old}), path[-1]: value}


def _owner(names: list[str], parameter: str) -> str:
    """The one method of several that has a parameter; asking them takes importing them."""
    from ..method import owners

    found = owners(parameter, names)
    if len(found) > 1:
        flags = " or ".join(f"--method.{name.split(':')[-1]}.{parameter}" for name in found)
        raise ValueError(
            f"--method.{parameter}: of which method? {' and '.join(found)} have it: write {flags}"
        )
    return found[0]
