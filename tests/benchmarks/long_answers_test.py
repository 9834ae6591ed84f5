"""benchmarks/long_answers.py: trainings on rollouts of several answers in a row."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import entrostat as es
from entrostat.config import from_dict
from entrostat.core.batch import TokenBatch
from entrostat.logs.lines import JsonLines
from scripts import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("benchmarks/long_answers.py")


def small(**more: Any) -> Any:
    size = {"iterations": 3, "prompts": 8, "rollouts": 4, "problems": 2, "rate": 4.24e-4}
    return SimpleNamespace(**size | more)


def test_the_first_answer_of_a_row_decides(script: ModuleType) -> None:
    # two prompts, a rollout each of two answers of at most two tokens
    logp = -torch.tensor([[0.1, 0.2], [0.3, 0.0], [0.4, 0.5], [0.6, 0.7]])
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]])
    rewards, group = torch.tensor([1.0, 0.0, 0.25, 1.0]), torch.tensor([0, 0, 1, 1])
    answers = TokenBatch(
        logp, logp, mask, rewards=rewards, group=group, entropy=2 * logp, old_entropy=2 * logp
    )
    rows = script.joined_batch(answers, 2)
    long = -torch.tensor([[0.1, 0.2, 0.3, 0.0], [0.4, 0.5, 0.6, 0.7]])
    assert torch.equal(rows.old_logp, long)
    assert torch.equal(rows.old_entropy, 2 * long)
    assert rows.lengths.tolist() == [3, 4]
    assert rows.rewards.tolist() == [1.0, 0.25]
    assert rows.group.tolist() == [0, 1]


def test_the_policy_says_the_same_of_answers_in_rows(script: ModuleType) -> None:
    state = script.build(script.settings(small(), "OPEFO", 0), None, lambda *said: None)
    sampled = script.generate_for(
        state, script.draw(state.task, state.config, 1), 1, "sample", lambda tokens: None,
        rollouts=8,
    )  # fmt: skip
    alone = state.policy.measure(sampled.sequences, 1.0, 256)
    sequences = script.JoinedSequences(**vars(sampled.sequences), k=2)
    policy = script.JoinedPolicy(**vars(state.policy), k=2)
    rows = torch.tensor([5, 0])
    with torch.no_grad():
        found = policy.token_stats(sequences[rows], 1.0)
    for name in ("logp", "entropy"):
        each = getattr(alone, name)
        wanted = torch.stack([each[[10, 11]].flatten(), each[[0, 1]].flatten()])
        assert torch.allclose(getattr(found, name), wanted, atol=1e-5)


@pytest.mark.parametrize("method", ["on-policy", "OPEFO"])
def test_one_answer_a_row_is_a_run_of_the_lab(
    script: ModuleType, method: str, tmp_path: Path
) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    script.train_once(small(), 1, method, 0, log)
    es.train(from_dict({
        "model": "tiny", "task": "target_sum", "method": script.TRAINED[method], "iterations": 3,
        "sampling": {"prompts": 8, "rollouts": 4}, "output": str(tmp_path / "run"),
        "optim": {"aggregation": "token_mean", "epochs": 1, "minibatches": 1, "lr": 4.24e-4},
        "eval": {"prompts": 0},
    }))  # fmt: skip
    keys = {
        "entropy": "entropy/exact", "reward": "reward/mean", "length": "rollout/length_mean",
        "lam": "flow/balance",
    }  # fmt: skip
    ours, lab = log.read()[:-1], JsonLines(tmp_path / "run" / "metrics.jsonl").read()
    assert [[row[key] for key in keys] for row in ours] == [
        [row[key] for key in keys.values()] for row in lab
    ]
    assert script.finished(small(), log)
    assert not script.finished(small(rollouts=8), log)
