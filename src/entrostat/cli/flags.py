"""Parsing of the command line.

A verb's options are those that its help text lists (`options`). Flags of a dataclass are parsed by
tyro (`dataclass_flags`). Open tables are `method` and `task`, whose keys depend on a name, and the
trainers' own tables.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from .._names import refuse_options, unknown
from ..config import TrainConfig, toml_value

_HOSTS = ("trl", "verl")  # tables whose keys belong to another library


def dataclass_flags(cls: Any, default: Any, args: list[str], prog: str, text: str) -> Any:
    """Parse flags over a default with tyro; an unknown flag raises with the nearest name.

    `--help-all` prints every flag of the dataclass, below the first paragraph of `text` and the
    names of the other options that `text` lists, and exits.
    """
    if not args:  # without flags, skip tyro: it reads the source of every dataclass for its help
        return default
    import tyro

    hints = _flags(cls)
    args = ["--help" if word == "--help-all" else word for word in args]
    booleans = [name for name, hint in hints.items() if bool in (hint, *typing.get_args(hint))]
    args = _with_booleans(args, booleans)
    about = next(part for part in text.split("\n\n") if not part.startswith("usage:"))
    shown = {name.replace("-", "_") for name in (*hints, "help_all")} - {"method", "task"}
    others = [f"--{name}" for name in listed(text) if name.replace("-", "_") not in shown]
    also = f", and {', '.join(others)}" if others else ""
    about += f"\n\n`{prog} --help` has examples{also}."
    value, rest = tyro.cli(
        cls, default=default, args=args, prog=prog, description=about, return_unknown_args=True,
        config=(tyro.conf.FlagConversionOff,),
    )  # fmt: skip
    refuse_options(rest, prog, [*hints, *listed(text)], "--help-all")
    if rest:
        raise ValueError(f"unexpected {rest[0]!r}; options look like --seed 1")
    return value


def _flags(cls: Any, prefix: str = "") -> dict[str, Any]:
    flags: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(cls).items():
        nested = dataclasses.is_dataclass(hint)
        flags |= _flags(hint, f"{prefix}{name}.") if nested else {prefix + name: hint}
    return flags


def _with_booleans(args: list[str], names: list[str]) -> list[str]:
    """Accept `true` and `false` for these flags, as TOML and the other flags do."""
    own = {f"--{name}".replace("_", "-") for name in names}
    words, flag = [], ""
    for word in args:
        *before, value = word.split("=", 1)
        flag = word.partition("=")[0] if word.startswith("--") else flag
        if flag.replace("_", "-") in own and value in ("true", "false"):
            word = "=".join([*before, value.title()])
        words.append(word)
    return words


def listed(text: str) -> dict[str, str]:
    """The options that a help text lists, each with its argument; "" for a switch."""
    lines = (line.strip().split("  ")[0] for line in text.splitlines() if line.startswith("  --"))
    found = (
        option.removeprefix("--").partition(" ")
        for line in lines
        for option in line.split(", ")
        if option.startswith("--")
    )
    return {name: takes for name, _, takes in found}


def options(args: list[str], text: str, needs: str = "") -> tuple[dict[str, Any], list[str]]:
    """Parse the options of a help text by `read`; returns them and the remaining words.

    Raises ValueError for another option, or if a verb `needs` something and no word remains.
    """
    known = listed(text)
    given, rest = read(args, known)
    verb = text.split()[2]
    refuse_options(rest, f"entrostat {verb}", (*known, "help"))
    if needs and not rest:
        raise ValueError(f"{verb} needs {needs}; see --help")
    return given, rest


def one_name(args: list[str], text: str) -> str | None:
    """The name that a verb is asked to explain; None if it is to list all."""
    _, rest = options(args, text)
    if len(rest) > 1:
        raise ValueError(f"{text.split()[2]} takes one name, got {' '.join(rest)}")
    return rest[0] if rest else None


def read(args: list[str], known: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Parse the options in `known` (name -> argument, "" for a switch); returns also other words.

    A missing option is None, a missing switch False. An option for "X ..." collects a list.
    """
    given: dict[str, Any] = {name: None if takes else False for name, takes in known.items()}
    rest, words = [], iter(args)
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        takes = known.get(name)
        if not word.startswith("--") or takes is None:
            rest.append(word)
        elif equals and not takes:
            raise ValueError(f"--{name} takes no value, got {value!r}")
        elif not takes:
            given[name] = True
        else:
            value = value if equals else _value(name, words)
            given[name] = [*(given[name] or ()), value] if "..." in takes else value
    return given, rest


def number(word: str | None, name: str, low: float = 1, high: float = 9999, kind: Any = int) -> Any:
    """Convert and check the number given as `--name`; None if none was given."""
    if word is None:
        return None
    try:
        value = kind(word)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"--{name} must be {what} from {low} to {high}, got {word!r}")
    return value


def source_of(given: Mapping[str, Any]) -> tuple[str | None, dict[str, str] | None]:
    """`--format`, and a table's column names (`--step`, `--entropy`, `--score`)."""
    columns = {kind: given[kind] for kind in ("step", "entropy", "score") if given[kind]}
    return given["format"], columns or None


def named(args: list[str], name: str, key: str) -> list[str]:
    """Rewrite `--name A B`, `--name A,B` and `--name=A,B` as `--name.key A B`."""
    rest: list[str] = []
    own = False
    for word in args:
        if word.startswith("--"):
            flag, _, value = word.partition("=")
            own = flag == f"--{name}"
            rest += [f"--{name}.{key}", *filter(None, value.split(","))] if own else [word]
        else:
            rest += filter(None, word.split(",")) if own else [word]
    return rest


def take_open_flags(args: list[str]) -> tuple[list[str], list[tuple[list[str], str]]]:
    """Split a command line into the dataclass parser's arguments and the open tables' flags.

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
        else:
            found.append((path, text if equals else _value(name, words)))
    return rest, found


def _value(name: str, words: Iterator[str]) -> str:
    value = next(words, "--")
    if value.startswith("--"):
        got = "nothing" if value == "--" else f"the option {value}"
        raise ValueError(f"--{name} needs a value, got {got}")
    return value


def apply_open_flags(data: Mapping[str, Any], flags: list[tuple[list[str], str]]) -> dict[str, Any]:
    """Nested tables with `--method` and `--task` flags applied: names first, then parameters.

    `--method A,B` replaces the methods. `--method.NAME.KEY VALUE` sets a parameter of one of them;
    `--method.KEY VALUE` suffices if only one has it. `--task NAME` replaces the task;
    `--task.KEY VALUE` sets its parameter. `--trl.KEY VALUE` and `--verl.A.B VALUE` set a trainer's
    key, which stays dotted. Values are read as TOML, or else as text.
    """
    default = TrainConfig()
    methods, task = data.get("method", default.method), data.get("task", default.task)
    methods = list(methods) if isinstance(methods, list) else [methods]
    given = [name.strip() for path, text in flags if path == ["method"] for name in text.split(",")]
    methods = given or methods
    tables = {name: dict(_table(data.get(name, {}), name)) for name in _HOSTS}
    tables["task"] = {"name": task} if isinstance(task, str) else dict(task)
    for (first, *rest), text in sorted(flags, key=lambda flag: len(flag[0]) > 1):
        if first == "method" and rest:
            _set_parameter(methods, rest, toml_value(text))
        elif first == "task" and not rest:
            tables["task"] = {"name": text}
        elif first in _HOSTS and not rest:
            raise ValueError(f"--{first} sets a key: write --{first}.KEY {text}")
        elif rest:  # --task.fields.answer sets `answer` of the table `fields`
            *parents, key = [".".join(rest)] if first in _HOSTS else rest
            table = tables[first]
            for name in parents:
                table[name] = dict(_table(table.get(name, {}), f"task.{name}"))
                table = table[name]
            table[key] = toml_value(text)
    return {**data, "method": methods, **tables}


def _table(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} is a table, got {value!r}")
    return value


def _set_parameter(methods: list[Any], path: list[str], value: Any) -> None:
    """Set a parameter of the method that the path names, else of the only method that has it."""
    names = [str(m.get("name") if isinstance(m, Mapping) else m) for m in methods]
    *words, parameter = path
    owner = ".".join(words)  # a user's own method name may contain dots
    if owner:
        owner = {name.split(":")[-1]: name for name in names}.get(owner, owner)
    elif len(names) == 1:
        (owner,) = names
    else:
        from ..method import owners  # imported late: imports the methods

        owner, *others = owners(parameter, names)
        if others:
            found = (owner, *others)
            flags = " or ".join(f"--method.{name.split(':')[-1]}.{parameter}" for name in found)
            raise ValueError(
                f"--method.{parameter}: of which method? {' and '.join(found)} have it: write "
                f"{flags}"
            )
    if owner not in names:
        raise ValueError(unknown("method for a parameter", ".".join(words), names))
    place = names.index(owner)
    old = methods[place]
    methods[place] = {**(old if isinstance(old, Mapping) else {"name": old}), parameter: value}
