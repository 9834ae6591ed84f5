"""The environment of `make test` is whole: many tests skip what is not installed, unseen."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS = ("page", "tasks", "eval", "dev")
WANTED = [
    *PROJECT["dependencies"],
    *(line for name in EXTRAS for line in PROJECT["optional-dependencies"][name]),
]


@pytest.mark.parametrize("line", WANTED)
def test_what_tests_need_is_installed(line: str) -> None:
    wanted = Requirement(line)
    if wanted.marker is None or wanted.marker.evaluate():
        assert metadata.version(wanted.name) in wanted.specifier
