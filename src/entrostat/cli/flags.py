"""From words of the command line to values."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from .._names import refuse_options
from .._text import say


def asked_for_help(args: list[str], text: str) -> int | None:
    """The exit code after printing a verb's help, if that is all to do: asked for, or no words."""
    if args and "-h" not in args and "--help" not in args:
        return None
    say(text.rstrip("\n"))
    return 0 if args else 2


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
    """The flags of a dataclass, nested ones dotted, with their types."""
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


SOURCE = ("format", "step", "entropy", "score")  # how another trainer's log is to be read


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
