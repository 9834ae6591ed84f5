"""Configurations from TOML files and nested tables.

One strict reader serves files, checkpoints and the command line, so an unknown key gets the same
answer everywhere.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from .._names import nearest, unknown
from .settings import TrainConfig

SHIPPED = Path(__file__).parents[1] / "recipes"  # in a wheel: a checkout has them at its root
_PLACE = re.compile(r"\[\d+\]")


def load(path: str | Path) -> dict[str, Any]:
    """A TOML file as a nested dictionary.

    `recipes/NAME.toml` is the recipe that came with the package, where there is no such file here.
    """
    try:
        with open(at_hand(path), "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        guess = nearest(str(path), _shipped()) if Path(path).parts[:1] == ("recipes",) else None
        hint = f". Did you mean {guess!r}?" if guess else ""
        raise ValueError(f"config {str(path)!r}: cannot read it: {error.strerror}{hint}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"config {str(path)!r}: {error}") from None


def at_hand(path: str | Path) -> Path:
    """The file itself, or the recipe of that name that came with the package."""
    path = Path(path)
    ours = SHIPPED.parent / path
    named = path.parts[:1] == ("recipes",) and ".." not in path.parts
    return ours if named and not path.exists() and ours.is_file() else path


def _shipped() -> list[str]:
    return [path.relative_to(SHIPPED.parent).as_posix() for path in SHIPPED.rglob("*.toml")]


def toml_value(text: str) -> Any:
    """A flag's text as TOML reads a value; what it cannot read is text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `over`, table by table; a task or method with a name is whole."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        if key == "eval" and isinstance(old, list):
            old = {"sets": old}  # a table beside [[eval]] keeps the sets
        fresh = key in ("task", "method") and isinstance(value, Mapping) and "name" in value
        if isinstance(value, Mapping) and isinstance(old, Mapping) and not fresh:
            out[key] = merge(old, value)
        else:
            out[key] = value
    return out


def flat(table: Mapping[str, Any], prefix: str = "", mark: str = ".") -> Iterator[tuple[str, Any]]:
    """(keys joined by `mark`, value) of nested tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}{mark}", mark)
        else:
            yield prefix + key, value


def from_dict(data: Mapping[str, Any]) -> TrainConfig:
    """A configuration from nested tables.

    `method` may be a name or a list, `task` a name or a table, `log` a name, a list or a table,
    `eval` a table or a list of sets.
    """
    return _read("", data, TrainConfig).validate()


def _named(given: Any) -> Any:
    return {"name": given} if isinstance(given, str) else given


def _listed(given: Any) -> Any:
    return [given] if isinstance(given, str | Mapping) else given


# shorter forms of settings, as the form that their types have
_SHORT: dict[str, Callable[[Any], Any]] = {
    "method": _listed,
    "task": _named,
    "eval": lambda given: {"sets": given} if isinstance(given, list) else given,
    "eval.sets[].task": _named,
    "log": lambda given: given if isinstance(given, Mapping) else {"to": _listed(given)},
}
_WORDS = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a table",
    list: "a list",
}  # fmt: skip
_hints = cache(typing.get_type_hints)  # a study reads thousands of settings


def _read(key: str, value: Any, hint: Any) -> Any:
    """`value` as the annotated type; integers serve as floats, nothing else is converted."""
    value = _SHORT.get(_PLACE.sub("[]", key), lambda given: given)(value)
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    kind = origin or hint
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ValueError(f"{key} is a table, got {value!r}")
        hints, above = _hints(hint), f"{key}." if key else ""
        for name in value:
            if name not in hints:
                raise ValueError(unknown("key", f"{above}{name}", [above + own for own in hints]))
        return hint(**{n: _read(f"{above}{n}", each, hints[n]) for n, each in value.items()})
    if kind is Literal:
        if value not in options:
            raise ValueError(unknown(f"value of {key}:", str(value), options))
        return value
    if kind in (types.UnionType, typing.Union):
        if value is None and type(None) in options:
            return None
        return _read(key, value, next(o for o in options if o is not type(None)))
    if kind is list and dataclasses.is_dataclass(options[0]):
        if not isinstance(value, list) or not all(isinstance(v, Mapping) for v in value):
            raise ValueError(f"{key} takes a list of tables, got {value!r}")
        return [_read(f"{key}[{i}]", v, options[0]) for i, v in enumerate(value)]
    if kind is tuple:
        several = options[-1] is Ellipsis
        if not isinstance(value, list | tuple) or not (several or len(value) == len(options)):
            count = "a list" if several else f"{len(options)} values"
            raise ValueError(f"{key} takes {count}, got {value!r}")
        each = options[:1] * len(value) if several else options
        pairs = enumerate(zip(value, each, strict=True))
        return tuple(_read(f"{key}[{i}]", v, o) for i, (v, o) in pairs)
    if kind is float and type(value) is int:
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{key} must be {_WORDS.get(kind, kind.__name__)}, got {value!r}")
    return value
