"""The fetched language model: what only a real one shows. Skipped where it has not been fetched.

`entrostat model smollm2` fetches it; `make test-slow` runs these.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from entrostat.logs.lines import JsonLines
from entrostat.model_files import MODELS, is_whole, model_directory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not is_whole(model_directory("smollm2")), reason="entrostat model smollm2 fetches it"
    ),
    pytest.mark.timeout(1800),
]


def command(output: Path, precision: str) -> list[str]:
    settings = {
        "task": "words", "model": "smollm2", "precision": precision, "threads": 2, "iterations": 4,
        "sampling.prompts": 4, "sampling.rollouts": 4, "optim.lr": 1e-5, "optim.epochs": 1,
        "eval.prompts": 0, "save.checkpoint-every": 2, "output": output,
    }  # fmt: skip
    words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    return [sys.executable, "-m", "entrostat.cli", "train", *words]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_killed_in_mid_run_it_ends_with_the_same_weights(precision: str, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(whole, precision), check=True, capture_output=True)
    process = subprocess.Popen(
        command(killed, precision), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while len(JsonLines(killed / "metrics.jsonl").read()) < 3:  # after the checkpoint of 2
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "final").exists()
    resume = [sys.executable, "-m", "entrostat.cli", "train", "--resume", str(killed)]
    subprocess.run(resume, check=True, capture_output=True)
    ours, theirs = (load_file(path / "final/model.safetensors") for path in (killed, whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for row, other in zip(
        *(JsonLines(path / "metrics.jsonl").read() for path in (killed, whole)), strict=True
    ):
        same = {key: value for key, value in row.items() if not key.startswith("time/")}
        assert same == {key: value for key, value in other.items() if not key.startswith("time/")}


def test_it_comes_as_the_catalogue_says() -> None:
    weights = load_file(model_directory("smollm2") / "model.safetensors")
    assert sum(x.numel() for x in weights.values()) == MODELS["smollm2"].parameters
