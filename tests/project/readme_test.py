"""The README's blocks do what it says: each is run, or its settings are those that we pass."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from entrostat.cli import main
from paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
CONSOLE = "".join(code for kind, code in BLOCKS if kind == "").replace("\\\n", " ").splitlines()
COMMANDS = [shlex.split(line, comments=True) for line in CONSOLE]
ENTROSTAT = [words[1:] for words in COMMANDS if words[0] == "entrostat"]
SMALL = [
    "--iterations", "1", "--sampling.prompts", "4", "--sampling.rollouts", "4",
    "--eval.prompts", "2", "--eval.samples", "2",
]  # fmt: skip

pytestmark = pytest.mark.usefixtures("unrendered")


def test_every_console_line_is_tried_here() -> None:
    assert {words[0] for words in COMMANDS} == {"make", "entrostat", "python3"}
    assert {words[0] for words in ENTROSTAT} == {"diagnose", "train", "methods"}


@pytest.mark.parametrize("words", ENTROSTAT, ids=" ".join)
def test_command(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    assert main([*words, *SMALL, "--no-report"] if words[0] == "train" else words) == 0
    said = " ".join(capsys.readouterr().out.split())
    if words[0] == "diagnose":
        (shown,) = (code for kind, code in BLOCKS if kind == "text")
        assert said.startswith(" ".join(shown.split()).removesuffix("..."))


def test_the_settings_for_verl_are_those_that_a_recipe_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The whole command is run in veRL's environment: tests/verl_env/training_verl.py."""
    (shown,) = (words for words in COMMANDS if words[0] == "python3")
    monkeypatch.chdir(tmp_path)
    method = ["--method", "thermostat", "--method.target", "0.75x"]
    assert main(["train", "--host", "verl", *method, "--print"]) == 0
    printed = shlex.split(capsys.readouterr().out.replace("\\\n", " "))
    assert shown[1:3] == printed[1:3]
    settings = shown[shown.index("YOUR_SETTINGS") + 1 :]
    assert len(settings) == 6
    assert set(settings) <= set(printed)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_the_trl_block_trains_with_entropy_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "1")  # TRL sends no telemetry then
    trl = pytest.importorskip("trl", reason="trl is an extra")
    from datasets import Dataset

    from entrostat.model_files import tiny_directory

    config = trl.GRPOConfig(
        str(tmp_path), use_cpu=True, bf16=False, max_steps=1, num_generations=4,
        per_device_train_batch_size=4, max_completion_length=4, report_to="none",
        logging_steps=1, save_strategy="no", optim="adamw_torch",
    )  # fmt: skip
    names = {
        "model": str(tiny_directory()),
        "reward": lambda completions, **_: [float(len(text)) for text in completions],
        "config": config,
        "data": Dataset.from_dict({"prompt": ["12:"] * 4}),
    }
    (code,) = (code for kind, code in BLOCKS if kind == "python")
    exec(code, names)
    (line,) = [line for line in names["trainer"].state.log_history if "control/target" in line]
    assert line["control/target"] == pytest.approx(0.75 * line["entropy/exact"])


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_the_tutorial_of_trl_trains_with_entropy_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "1")
    pytest.importorskip("trl", reason="trl is an extra")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/tutorial_trl.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        small = code.replace("max_steps=120", "max_steps=2").replace(
            "batch_size=64", "batch_size=8"
        )
        exec(small, names)
    for run, held in (("trl", False), ("held", True)):
        (line,) = (tmp_path / "runs" / run / "log/metrics.jsonl").read_text().splitlines()
        figures = json.loads(line)
        assert ("control/target" in figures) == held
        if held:
            assert figures["control/target"] == pytest.approx(0.75 * figures["entropy/exact"])
