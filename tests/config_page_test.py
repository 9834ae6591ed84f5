"""The table of docs/config.md is made of the settings' own sentences."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import textwrap
import typing
from pathlib import Path
from typing import Any

from entrostat.config import TrainConfig

PAGE = Path(__file__).parents[1] / "docs/config.md"


def sentences(cls: Any) -> dict[str, str]:
    """What stands below each field."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body  # type: ignore[attr-defined]
    found = {}
    for field, below in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            assert isinstance(field.target, ast.Name)
            assert isinstance(below.value, ast.Constant)
            found[field.target.id] = " ".join(str(below.value.value).split())
    return found


def rows(cls: Any, prefix: str = "") -> list[str]:
    hints, said, lines = typing.get_type_hints(cls), sentences(cls), []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            lines += rows(hint, f"{prefix}{field.name}.")
            continue
        made = field.default_factory
        value = made() if made is not dataclasses.MISSING else field.default
        default = "None" if value is None else f"`{shown(value)}`"
        text = said[field.name].replace("|", "\\|")
        lines.append(f"| `{prefix}{field.name}` | {default} | {text} |")
    return lines


def shown(value: Any) -> str:
    """As a file has it."""
    if isinstance(value, dict):
        pairs = ", ".join(f"{key} = {shown(each)}" for key, each in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    return json.dumps(value)


def table() -> str:
    return "\n".join(["| key | default | what |", "| --- | --- | --- |", *rows(TrainConfig)])


def test_the_page_has_every_setting() -> None:
    text = PAGE.read_text(encoding="utf-8")
    between = text.partition("<!-- settings -->\n")[2].partition("\n<!-- /settings -->")[0]
    assert between == table(), f"docs/config.md should have:\n{table()}"
