"""What methods do to entropy in training, over seeds. Slow: minutes of training."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

import pytest

from entrostat.config import from_dict
from entrostat.trainers.lab import train

SEEDS = (0, 1, 2)


def entropies(path: Path, method: str, seed: int, iterations: int) -> list[float]:
    config = from_dict(
        {
            "method": method, "seed": seed, "iterations": iterations, "output": str(path),
            "eval": {"prompts": 0}, "save": {"checkpoint_every": iterations, "rollouts_every": 0},
        }
    )  # fmt: skip
    run = train(config)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["entropy/exact"] for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_positive_only_loses_entropy_faster_than_grpo_and_negative_only_slower(
    tmp_path: Path,
) -> None:
    """PAR 7.2, STEER 4. Later, when few groups still have a signal, the order fades: see docs."""
    late = {
        method: [
            mean(entropies(tmp_path / f"{method}{seed}", method, seed, 35)[25:]) for seed in SEEDS
        ]
        for method in ("pos_only", "grpo_token", "neg_only")
    }
    assert mean(late["pos_only"]) < mean(late["grpo_token"]) < mean(late["neg_only"])
    # by seed: the three methods begin with the same policy and the same rollouts
    for positive, plain, negative in zip(*late.values(), strict=True):
        assert positive < plain < negative
