"""Keys and values of Hydra's overrides, and the command that starts veRL."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MODULE = "verl.trainer.main_ppo"
_BARE = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")  # text that Hydra reads without quotes
_KEYWORDS = ("null", "true", "false", "nan", "inf", "yes", "no", "on", "off")
# keys whose values veRL imports or runs
_CODE = re.compile(
    r"_target_|trust_remote_code|runtime_env|external_lib|custom_\w+\.|custom_backend_module"
    r"|callback_class|manager_class|reward_manager|config_path|tool_path|finish_hook"
    r"|optimizer_impl|engine_kwargs|^\+*hydra"
)


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested tables; a `+`, which adds a key, moves to the front."""
    for part, value in table.items():
        joined = f"{prefix}.{part}" if prefix else part
        key = "+" * min(2, joined.count("+")) + joined.replace("+", "")
        if isinstance(value, Mapping) and value:
            yield from flat(value, key)
        else:
            yield key, None if value == "null" else value


def bare(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flat keys and their values, without the `+` that adds a key."""
    return {key.lstrip("+"): value for key, value in values.items()}


def code_in_verl(table: Any) -> dict[str, Any]:
    """Keys of [verl], with values, that make veRL import or run code."""
    given = flat(table) if isinstance(table, Mapping) else ()
    # a list may hold tables
    read = ((k, value, f"{k} {value}" if isinstance(value, list) else k) for k, value in given)
    return {
        k: value for k, value, words in read if _CODE.search(words) and value not in (None, False)
    }


def refuse_code(table: Any, where: str) -> None:
    """Raise if the [verl] of a file makes veRL import or run code."""
    for key, value in code_in_verl(table).items():
        raise ValueError(
            f"{where}: verl.{key} = {value!r} has veRL import or run code. If you know it and "
            "trust it, add --trust-code"
        )


def shell_command(overrides: Sequence[str], python: str = "python3") -> str:
    """Format a command for a POSIX shell, one override ("key=value", `recipe.overrides`) per line.

    `python` is the interpreter of veRL's environment.
    """
    return " \\\n  ".join([f"{python} -m {MODULE}", *(shlex.quote(line) for line in overrides)])


def hydra_value(value: Any) -> str:
    """Format a value in the grammar of Hydra's overrides."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        if _BARE.fullmatch(value) and value.lower() not in _KEYWORDS:
            return value
        # a backslash before the closing quote would escape it; elsewhere Hydra keeps it
        text = re.sub(r"(\\*)'", r"\1\1\\'", value)
        text = re.sub(r"(\\+)$", r"\1\1", text)
        return f"'{text}'"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{hydra_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(hydra_value(item) for item in value) + "]"
    raise ValueError(f"cannot write {value!r} as an override of Hydra")
