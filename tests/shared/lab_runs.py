"""Small trainings in the lab, and how two of them are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from builders import config_with, json_lines
from entrostat.config import TrainConfig
from entrostat.tasks import Example
from entrostat.tasks.target_sum import TargetSum
from entrostat.trainers.lab import train
from stopping import Stop, StopAfter


def small(output: Path, **changes: object) -> TrainConfig:
    data = {
        "method": ["grpo", {"name": "repo_r", "bidirectional": True}],
        "iterations": 4,
        "output": str(output),
        "sampling": {"prompts": 6, "rollouts": 4},
        "eval": {"prompts": 2, "samples": 2},
    }
    return config_with(data, **changes)


def metrics(run: Path) -> list[dict]:
    lines = json_lines(run / "metrics.jsonl")
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "final" / "model.safetensors")


def assert_same_run(a: Path, b: Path) -> None:
    assert metrics(a) == metrics(b)
    assert (a / "evaluation.jsonl").read_text() == (b / "evaluation.jsonl").read_text()
    assert (a / "final/model.safetensors").read_bytes() == (
        b / "final/model.safetensors"
    ).read_bytes()
    names = sorted(p.name for p in (a / "rollouts").glob("*.safetensors"))
    assert names == sorted(p.name for p in (b / "rollouts").glob("*.safetensors"))
    for name in names:
        assert (a / "rollouts" / name).read_bytes() == (b / "rollouts" / name).read_bytes()


def assert_same_weights(a: Path, b: Path) -> None:
    for name, tensor in weights(a).items():
        assert torch.equal(tensor, weights(b)[name]), name


class NothingToLearn(TargetSum):
    def score(self, completion: str, example: Example) -> float:
        return 1.0


def lines_of_a_run_that_survives_a_kill(tmp_path: Path, method: list[Any]) -> list[dict[str, Any]]:
    """The log of a run; one that is stopped after two iterations and resumed is the same."""
    whole = train(small(tmp_path / "whole", method=method))
    with pytest.raises(Stop):
        train(small(tmp_path / "run", method=method), progress=StopAfter(2))
    train(small(tmp_path / "run", method=method), resume=True)
    assert_same_run(whole, tmp_path / "run")
    return metrics(whole)
