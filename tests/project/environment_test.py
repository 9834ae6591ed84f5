"""The environment of `make test` is whole: many tests skip what is not installed, unseen.

And `entrostat doctor --environment` says what an environment has.
"""

from __future__ import annotations

import json
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import numpy
import pytest
import torch
import transformers
from packaging.requirements import Requirement

from entrostat.cli import main
from paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
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


# ---------------------------------------------------------------------------- doctor --environment

METADATA = """\
Metadata-Version: 2.4
Name: entrostat
Version: 0.1.0
Provides-Extra: all
Provides-Extra: dev
Provides-Extra: page
Provides-Extra: trl
Requires-Dist: torch>=2.8
Requires-Dist: numpy<1
Requires-Dist: colorama>=99; sys_platform == "win32"
Requires-Dist: transformers>=5; extra == "page"
Requires-Dist: no-such-package>=3; extra == "page"
Requires-Dist: trl==0.0.7; extra == "trl"
Requires-Dist: entrostat[page]; extra == "all"
Requires-Dist: pytest>=9; extra == "dev"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entrostat of other requirements, found before the real one."""
    info = tmp_path / "entrostat-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("installed")
def test_the_report_of_an_environment(capsys: pytest.CaptureFixture) -> None:
    assert main(["doctor", "--environment", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["python"] == ".".join(map(str, sys.version_info[:3]))
    assert said["device"] == ("cuda" if torch.cuda.is_available() else "cpu")
    assert said["trainers"]["trl"]["tested"] == "0.0.7"
    assert said["trainers"]["verl"]["tested"] == "0.9.1"
    assert list(said["extras"]) == ["", "page", "trl"]
    hard, page = said["extras"][""], said["extras"]["page"]
    assert list(hard) == ["torch", "numpy"]
    assert hard["torch"] == {
        "installed": torch.__version__, "required": ">=2.8", "fits": True,
    }  # fmt: skip
    assert (hard["numpy"]["required"], hard["numpy"]["fits"]) == ("<1", False)
    assert page == {
        "transformers": {"installed": transformers.__version__, "required": ">=5", "fits": True},
        "no-such-package": {"installed": None, "required": ">=3", "fits": False},
    }


@pytest.mark.usefixtures("installed")
def test_the_report_for_people_names_no_place(capsys: pytest.CaptureFixture) -> None:
    assert main(["doctor", "--environment"]) == 0
    said = capsys.readouterr().out
    assert f"[page]  transformers {transformers.__version__}, no-such-package missing\n" in said
    assert f"torch {torch.__version__}, numpy {numpy.__version__} (required: <1)\n" in said
    assert str(ROOT) not in said
    assert str(Path.home()) not in said
    assert sys.prefix not in said


@pytest.mark.parametrize(
    ("more", "given"),
    [(["runs"], "'runs'"), (["--prompts", "4"], "'--prompts'"), (["--seed", "1"], "'--seed'")],
)
def test_the_report_takes_nothing_else(
    more: list[str], given: str, capsys: pytest.CaptureFixture
) -> None:
    assert main(["doctor", "--environment", *more]) == 2
    assert f"--environment takes --json alone, got {given}" in capsys.readouterr().err
