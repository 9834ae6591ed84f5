"""From words of the command line to values.

Open tables are `method` and `task`, whose keys depend on a name, and those of hosts.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from .._names import refuse_options, unknown
from ..config import TrainConfig, toml_value

SOURCE = ("format", "step", "entropy", "score")  # how another trainer's log is to be read
_HOSTS = ("trl", "verl")  # tables of keys that are another library's


def dataclass_flags(cls: Any, default: Any, args: list[str], prog: str, text: str) -> Any:
    """Flags over a default, by tyro; what it does not know is one line with the nearest name.

    `--help-all` prints every flag, below the first sentence of `text`, and leaves.
    """
    if not args:  # tyro would read the source of every dataclass, for a help that nobody asked for
        return default
    import tyro

    hints = _flags(cls)
    args = ["--help" if word == "--help-all" else word for word in args]
    args = _with_booleans(args, [name for name, hint in hints.items() if _holds_bool(hint)])
    about = next(part for part in text.split("\n\n") if not part.startswith("usage:"))
    value, rest = tyro.cli(
        cls, default=default, args=args, prog=prog, description=about, return_unknown_args=True,
        config=(tyro.conf.FlagConversionOff,),
    )  # fmt: skip
    refuse_options(rest, prog, list(hints))
    if rest:
        raise ValueError(f"unexpected {rest[0]!r}; options look like --seed 1")
    return value


def _flags(cls: Any, prefix: str = "") -> dict[str, Any]:
    flags: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(cls).items():
        nested = dataclasses.is_dataclass(hint)
        flags |= _flags(hint, f"{prefix}{name}.") if nested else {prefix + name: hint}
    return flags


def _holds_bool(hint: Any) -> bool:
    return hint is bool or bool in typing.get_args(hint)


def _with_booleans(args: list[str], names: list[str]) -> list[str]:
    """`true` and `false` of these flags, as TOML and the rest of the command line write them."""
    own = {f"--{name}".replace("_", "-") for name in names}
    words, flag = [], ""
    for word in args:
        is_flag = word.startswith("--")
        flag, equals, value = word.partition("=") if is_flag else (flag, "", word)
        if flag.replace("_", "-") in own and value in ("true", "false"):
            word = f"{flag}{equals}{value.title()}" if is_flag else value.title()
        words.append(word)
    return words


def take(args: list[str], name: str) -> tuple[str | None, list[str]]:
    """The value of `--name VALUE` or `--name=VALUE`, and the other arguments."""
    rest, value = [], None
    words = iter(args)
    for word in words:
        if word == f"--{name}":
            value = next(words, None)
            if value is None or value.startswith("--"):
                got = "nothing" if value is None else f"the option {value}"
                raise ValueError(f"--{name} needs a value, got {got}")
        elif word.startswith(f"--{name}="):
            value = word.split("=", 1)[1]
        else:
            rest.append(word)
    return value, rest


def whole(word: str | None, name: str, low: int = 1, high: int | None = None) -> int | None:
    """A whole number that was given as `--name`; None where none was."""
    if word is None:
        return None
    value = int(word) if word.isascii() and word.isdigit() and len(word) < 10 else -1
    if value < low or (high is not None and value > high):
        range_ = f"above {low - 1}" if high is None else f"from {low} to {high}"
        raise ValueError(f"--{name} must be a whole number {range_}, got {word!r}")
    return value


def take_switch(args: list[str], name: str) -> tuple[bool, list[str]]:
    """Whether `--name` is there, and the other arguments."""
    return f"--{name}" in args, [word for word in args if word != f"--{name}"]


def options(
    args: list[str], prog: str, values: Sequence[str], switches: Sequence[str] = (),
    also: Sequence[str] = (),
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """A verb's options by name, None where not given, and the words that are left.

    Any other option is refused; `also` are known ones that were taken before.
    """
    given: dict[str, Any] = {}
    for name in values:
        given[name], args = take(args, name)
    for name in switches:
        given[name], args = take_switch(args, name)
    refuse_options(args, prog, (*values, *switches, *also, "help"))
    return given, args


def source_of(given: Mapping[str, Any]) -> tuple[str | None, dict[str, str] | None]:
    """`--format`, and a table's columns (`--step`, `--entropy`, `--score`)."""
    columns = {kind: given[kind] for kind in SOURCE[1:] if given[kind] is not None}
    return given["format"], columns or None


def spread(args: list[str], name: str) -> list[str]:
    """`--name KEY=VALUE[,KEY=VALUE]` as the flags `--name.KEY VALUE`."""
    value, args = take(args, name)
    for word in value.split(",") if value else ():
        key, is_pair, setting = word.partition("=")
        if not is_pair:
            raise ValueError(f"--{name} takes no value of its own; write --{name}.every {word}")
        args = [*args, f"--{name}.{key.strip()}", setting.strip()]
    return args


def named(args: list[str], name: str, key: str) -> list[str]:
    """`--name A B`, `--name A,B` and `--name=A,B` as `--name.key A B`."""
    rest: list[str] = []
    own = False
    for word in args:
        if word.startswith("--"):
            own = word == f"--{name}" or word.startswith(f"--{name}=")
            rest += (
                [f"--{name}.{key}", *filter(None, word[len(name) + 3 :].split(","))]
                if own
                else [word]
            )
        else:
            rest += filter(None, word.split(",")) if own else [word]
    return rest


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
