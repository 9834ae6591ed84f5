"""tiny-WIDTHxLAYERS: the tiny policy in another size, pretrained on this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from entrostat import model_files as models
from entrostat.cli import main
from entrostat.config import TrainConfig
from entrostat.models import pretrain
from entrostat.study.content_hash import address_of


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENTROSTAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Two steps of pretraining in place of 1,500; what was asked for."""
    asked, whole = [], pretrain._trained

    def two_steps(config: Any, on_step: Any) -> Any:
        asked.append(config)
        return whole(replace(config, steps=2, batch=4), on_step)

    monkeypatch.setattr(pretrain, "_trained", two_steps)
    return asked


def test_what_is_a_size() -> None:
    assert models.tiny_size("tiny-128x5") == (128, 5)
    for other in (
        "tiny",
        "tiny-0x3",
        "tiny-96x0",
        "tiny-96",
        "tiny-96x3x1",
        "x/tiny-96x3",
        "tiny-9_6x3",
    ):
        assert models.tiny_size(other) is None
    assert models.is_tiny("tiny")
    assert models.is_tiny("tiny-96x3")
    assert not models.is_tiny("smollm2")
    assert models.is_ours("smollm2")
    assert not models.is_ours("OWNER/tiny-96x3")


def test_what_is_not_made_yet_names_the_verb(cache: Path) -> None:
    for ask in (models.find, models.check_model):
        with pytest.raises(ValueError, match=r"make it with: entrostat model tiny-16x2$"):
            ask("tiny-16x2")


@pytest.mark.long
def test_it_is_made_once_and_trained_by_its_name(
    cache: Path, short: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", "tiny-16x2"]) == 0
    (asked,) = short
    shipped = pretrain.PretrainConfig()
    assert asked == replace(shipped, output=str(cache / "models/tiny-16x2"), hidden=16, layers=2)
    shape = json.loads((cache / "models/tiny-16x2/config.json").read_text())
    assert (shape["hidden_size"], shape["num_hidden_layers"]) == (16, 2)
    assert "entrostat train --model tiny-16x2" in capsys.readouterr().out
    assert main(["model", "tiny-16x2"]) == 0
    assert "already there" in capsys.readouterr().out
    assert len(short) == 1
    assert main(["model"]) == 0
    assert "on this machine: tiny-16x2" in capsys.readouterr().out
    words = "train --model tiny-16x2 --iterations 1 --sampling.prompts 2 --sampling.rollouts 2"
    assert main([*words.split(), "--no-report", "--output", "run"]) == 0
    assert Path("run/final/model.safetensors").is_file()


def test_a_size_that_cannot_be_is_refused(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "tiny-33x2"]) != 0
    assert "multiple of 16, got 33" in capsys.readouterr().err
    assert main(["model", "tiny-16x2", "--from", "some.whl"]) != 0
    assert "pretrained here" in capsys.readouterr().err
    assert not cache.exists()


def test_its_name_stands_for_itself_in_an_address(cache: Path) -> None:
    """A policy that is made later, or on another machine, is the same training."""
    before = address_of(TrainConfig(model="tiny-16x2"))
    (cache / "models/tiny-16x2").mkdir(parents=True)
    (cache / "models/tiny-16x2/config.json").write_text("{}")
    assert address_of(TrainConfig(model="tiny-16x2")) == before
    assert before != address_of(TrainConfig(model="tiny"))
