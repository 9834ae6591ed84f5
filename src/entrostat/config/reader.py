"""Configurations from TOML files and nested tables.

One strict reader serves files, checkpoints and the command line, so an unknown key gets the same
answer everywhere.
"""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from .._names import nearest, unknown
from .settings import TrainConfig

SHIPPED = Path(__file__).parents[1] / "recipes"  # in a wheel: a checkout has them at its root


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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"config {str(path)!r}: {error}") from None
    except RecursionError:
        raise ValueError(f"config {str(path)!r}: tables or lists within too many others") from None


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
        fresh = key in ("task", "method") and isinstance(value, Mapping) and "name" in value
        if isinstance(value, Mapping) and isinstance(old, Mapping) and not fresh:
            out[key] = merge(old, value)
        else:
            out[key] = value
    return out


def from_dict(data: Mapping[str, Any]) -> TrainConfig:
    """A configuration from nested tables.

    `method` may be a name or a list, `task` a name or a table, `log` a name, a list or a table.
    """
    data = dict(data)
    method = data.get("method")
    if isinstance(method, str | Mapping):
        data["method"] = [method]
    if isinstance(data.get("task"), str):
        data["task"] = {"name": data["task"]}
    if isinstance(data.get("log"), str | list):
        given = data["log"]
        data["log"] = {"to": [given] if isinstance(given, str) else given}
    if "eval" in data:
        data["eval"] = _with_sets(data["eval"])
    if not isinstance(data.get("method", []), list):
        raise ValueError(f"method is a name or a list of names, got {method!r}")
    if not isinstance(data.get("task", {}), Mapping):
        raise ValueError(f"task is a name or a table, got {data['task']!r}")
    return _build(TrainConfig, data, "").validate()


def _with_sets(given: Any) -> Any:
    """`[[eval]]`, a list of tables, as the `sets` of the one table; their tasks as tables."""
    table = {"sets": given} if isinstance(given, list) else given
    if not isinstance(table, Mapping) or not isinstance(table.get("sets"), list):
        return table
    sets = [
        {**one, "task": {"name": one["task"]}}
        if isinstance(one, Mapping) and isinstance(one.get("task"), str)
        else one
        for one in table["sets"]
    ]
    return {**table, "sets": sets}


_hints = cache(typing.get_type_hints)  # a study reads thousands of settings


def _build(cls: Any, data: Mapping[str, Any], prefix: str) -> Any:
    hints = _hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls)}
    values = {}
    for key, value in data.items():
        if key not in known:
            raise ValueError(unknown("key", prefix + key, [prefix + name for name in known]))
        hint = hints[key]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, Mapping):
                raise ValueError(f"{prefix}{key} is a table, got {value!r}")
            values[key] = _build(hint, value, f"{prefix}{key}.")
        else:
            values[key] = _coerce(prefix + key, value, hint)
    return cls(**values)


def _coerce(key: str, value: Any, hint: Any) -> Any:
    """`value` as the annotated type; integers serve as floats, nothing else is converted."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value not in options:
            raise ValueError(unknown(f"value of {key}:", str(value), options))
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in options:
            return None
        return _coerce(key, value, next(o for o in options if o is not type(None)))
    if origin is list and dataclasses.is_dataclass(options[0]):
        if not isinstance(value, list) or not all(isinstance(v, Mapping) for v in value):
            raise ValueError(f"{key} takes a list of tables, got {value!r}")
        return [_build(options[0], v, f"{key}[{i}].") for i, v in enumerate(value)]
    if origin is tuple and options[-1] is Ellipsis:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{key} takes a list, got {value!r}")
        return tuple(_coerce(key, v, options[0]) for v in value)
    if origin is tuple:
        if not isinstance(value, list | tuple) or len(value) != len(options):
            raise ValueError(f"{key} takes {len(options)} values, got {value!r}")
        return tuple(_coerce(key, v, o) for v, o in zip(value, options, strict=True))
    kind = origin or hint
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    wrong_bool = isinstance(value, bool) and kind is not bool
    if wrong_bool or not isinstance(value, kind):
        raise ValueError(f"{key} must be {_WORDS.get(kind, kind.__name__)}, got {value!r}")
    return value


_WORDS = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a table",
}  # fmt: skip
