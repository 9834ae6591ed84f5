"""Recipes that TRL runs (`host = "trl"`), and what their run directories hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from builders import config_with, json_lines
from entrostat.config import TrainConfig
from entrostat.trainers import trains

PROMPTS, ROLLOUTS, ITERATIONS = 4, 4, 4


def recipe(output: Path, **changes: Any) -> TrainConfig:
    data: dict[str, Any] = {
        "method": ["grpo", {"name": "repo_r", "bidirectional": True}],
        "iterations": ITERATIONS, "output": str(output), "host": "trl",
        "sampling": {"prompts": PROMPTS, "rollouts": ROLLOUTS},
        "optim": {"micro_batch": 4, "warmup": 3, "schedule": "linear", "lr_min": 0.5},
        "eval": {"prompts": 2, "samples": 2},
    }  # fmt: skip
    return config_with(data, **changes)


def train(config: TrainConfig, **how: Any) -> Path:
    return trains("trl")(config, **how)


def rows(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return json_lines(run / name)


def timeless(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows(run)]


def final(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "final" / "model.safetensors")


def same_weights(a: Path, b: Path) -> bool:
    one, other = final(a), final(b)
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
