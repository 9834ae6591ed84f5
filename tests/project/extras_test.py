"""Ten hard dependencies at most; a missing package is asked for by its extra, in one line."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import entrostat as es
from entrostat.cli import main
from entrostat.errors import MissingExtraError, extra
from paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Have a package look as if it were not installed."""
    for name in list(sys.modules):
        if name.partition(".")[0] == package:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)


def test_hard_dependencies_are_ten_at_most() -> None:
    assert len(PROJECT["dependencies"]) <= 10


@pytest.mark.parametrize(
    ("package", "name", "ask"),
    [
        ("sacrebleu", "eval", lambda: es.metrics.self_bleu(["a b", "a c"])),
        ("reasoning_gym", "tasks", lambda: es.make_task("gym:chain_sum")),
        ("reasoning_gym", "tasks", lambda: es.make_task("words")),
        ("textarena", "games", lambda: es.make_task("games").environment(None)),
        ("matplotlib", "page", lambda: es.plot(ROOT / "examples/data/trl_grpo")),
        ("pandas", "notebook", lambda: es.load_run(ROOT / "examples/data/trl_grpo").frame()),
    ],
)
def test_what_is_missing_is_asked_for(
    package: str, name: str, ask: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, package)
    assert name in PROJECT["optional-dependencies"]
    with pytest.raises(
        MissingExtraError, match=rf"needs {package}.*: pip install 'entrostat\[{name}\]'"
    ):
        ask()


def test_a_training_without_matplotlib_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "matplotlib")
    output = str(tmp_path / "run")
    given = ["--iterations", "1", "--sampling.prompts", "2", "--eval.prompts", "0"]
    assert main(["train", "--output", output, *given]) == 0
    assert "no page: a figure needs matplotlib: pip install 'entrostat[page]'" in (
        capsys.readouterr().out
    )
    assert main(["report", output]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_module_of_our_own_that_is_missing_is_no_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"entrostat\.nothing"), extra("page", "a figure"):
        import entrostat.nothing  # noqa: F401  # pyrefly: ignore
