"""`train --analyze`: what it measures is true, and it changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import entrostat as es
from entrostat.config import from_dict
from entrostat.hosts.lab import analysis
from entrostat.hosts.lab.policy import load_policy
from entrostat.hosts.lab.rollout import Sequences
from entrostat.logs.rollouts import Rollouts, load_rollouts


def run(path: Path, every: int, **settings: Any) -> Path:
    data = {
        "output": str(path), "iterations": 3, "analyze": {"every": every}, "eval": {"prompts": 0},
        "sampling": {"prompts": 8, "rollouts": 6}, "optim": {"micro_batch": 20}, "seed": 1,
    }  # fmt: skip
    return es.train(from_dict(data | settings))


def lines(path: Path, name: str = "analysis.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / name).read_text().splitlines()]


def sequences_of(rollouts: Rollouts, policy: Any) -> Sequences:
    """The rollouts as the policy's padded input, built anew from their texts' tokens."""
    prompts = [policy.encode(p, False, "") for p in rollouts.prompts]
    P, B = max(map(len, prompts)), len(rollouts)
    T = int(rollouts.start.diff().max())
    tokens = torch.full((B, P + T), policy.pad)
    attention = torch.zeros(B, P + T, dtype=torch.long)
    for i, prompt in enumerate(prompts):
        own = rollouts.tokens[rollouts.rows(i)].long()
        tokens[i, P - len(prompt) : P] = torch.tensor(prompt)
        tokens[i, P : P + len(own)] = own
        attention[i, P - len(prompt) : P + len(own)] = 1
    mask = attention[:, P:].bool()
    return Sequences(
        tokens, attention, P, mask, torch.zeros(B, T), rollouts.finished, rollouts.group.long()
    )


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("run") / "a", 1)


@pytest.mark.parametrize("method", ["clip_cov", ["repo_r", "entropy_bonus"]])
def test_weights_are_the_same_with_and_without(tmp_path: Path, method: Any) -> None:
    on = run(tmp_path / "on", 1, method=method)
    off = run(tmp_path / "off", 0, method=method)
    name = "final/model.safetensors"
    assert (on / name).read_bytes() == (off / name).read_bytes()
    for with_, without in zip(lines(on, "metrics.jsonl"), lines(off, "metrics.jsonl"), strict=True):
        shared = {k: v for k, v in without.items() if not k.startswith("time/")}
        assert {k: with_[k] for k in shared} == shared
    assert not (off / "analysis.jsonl").exists()
    assert load_rollouts(off).change is None


def test_every(tmp_path: Path) -> None:
    done = run(tmp_path / "a", 2, iterations=5, save={"rollouts_every": 1})
    assert [line["iteration"] for line in lines(done)] == [1, 2, 4]
    assert [load_rollouts(done, i).influence is not None for i in range(1, 6)] == [
        True, True, False, True, False,
    ]  # fmt: skip
    timed = ["time/analysis" in line for line in lines(done, "metrics.jsonl")]
    assert timed == [True, True, False, True, False]


def test_a_resumed_run_repeats_its_analyses(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 1, method="clip_cov")
    run(tmp_path / "part", 1, method="clip_cov", iterations=2)
    config = es.config.load(tmp_path / "part" / "config.toml")
    es.train(from_dict(config | {"iterations": 3}), resume=True)

    def timeless(path: Path) -> list[dict[str, Any]]:
        return [{k: v for k, v in x.items() if "time/" not in k} for x in lines(path)]

    assert timeless(tmp_path / "part") == timeless(whole)


def test_change_is_the_entropy_after_minus_before(analysed: Path) -> None:
    rollouts = load_rollouts(analysed, 3)
    config = from_dict({"model": str(analysed / "final")})
    policy = load_policy(config)
    sequences = sequences_of(rollouts, policy)
    with torch.no_grad():
        logits = policy.model(
            sequences.tokens, attention_mask=sequences.attention,
            position_ids=(sequences.attention.cumsum(-1) - 1).clamp(min=0),
        ).logits.double()  # fmt: skip
    P = sequences.prompt_width
    p = logits[:, P - 1 : -1].log_softmax(-1)
    after = -(p.exp() * p).sum(-1)[sequences.mask]
    assert rollouts.change is not None
    assert torch.allclose(after.float(), rollouts.entropy + rollouts.change, atol=1e-5)
    mean = float((after - rollouts.entropy).mean())
    assert lines(analysed)[-1]["change/mean"] == pytest.approx(mean, abs=1e-6)


def test_influences_add_up_to_the_predicted_change(analysed: Path) -> None:
    for line in lines(analysed):
        assert line["influence/sum"] == pytest.approx(line["influence/predicted"], rel=1e-3)
        flow = line["flow"]["influence"]
        assert flow["net"] == pytest.approx(line["influence/sum"], rel=1e-6)
    for i, line in enumerate(lines(analysed), 1):
        rollouts = load_rollouts(analysed, i)
        assert rollouts.influence is not None
        assert float(rollouts.influence.double().sum()) == pytest.approx(line["influence/sum"])


@pytest.mark.parametrize(
    "method", ["grpo", "gspo", "steer", ["ppo", "entropy_bonus"], ["kl_cov"]], ids=str
)
def test_influence_is_what_one_step_does(tmp_path: Path, method: Any) -> None:
    """One update an iteration, without momentum: influences add up to its first-order change."""
    done = run(
        tmp_path / "a", 1, method=method,
        optim={"epochs": 1, "minibatches": 1, "lr": 1e-5, "betas": [0.0, 0.95]},
    )  # fmt: skip
    for line in lines(done):
        assert line["influence/sum"] == pytest.approx(line["change/first_order"], rel=5e-3)
        # the tokens' changes cancel in their mean, so its error is held against all that flows
        flow = line["flow"]["change"]
        N = sum(row["tokens"] for row in line["position"])
        error = abs(line["change/simpson"] - line["change/mean"])
        assert error < 0.005 * (flow["increase"] + flow["decrease"]) / N
        assert line["estimators"]["simpson"]["where"]["pcc"] > 0.999


def test_tables_add_up(analysed: Path) -> None:
    for line in lines(analysed):
        for name in ("quadrants", "correct"):
            table = line[name].values()
            assert sum(row["share"] for row in table) == pytest.approx(1)
            assert sum(row["change"] for row in table) == pytest.approx(line["change/mean"])
            assert sum(row["influence"] for row in table) == pytest.approx(line["influence/sum"])
        rows = line["position"]
        assert sum(row["change"] for row in rows) == pytest.approx(line["change/mean"])
        assert sum(row["influence"] for row in rows) == pytest.approx(line["influence/sum"])
        tokens = line["tokens"]  # the tiny policy has fewer than 30, so that these are all
        assert sum(row["influence"] for row in tokens) == pytest.approx(line["influence/sum"])
        assert sum(row["count"] for row in tokens) == sum(row["tokens"] for row in rows)
        assert line["covariance"]["1"] == pytest.approx(line["cov/mean"])


def test_entropy_by_reward_is_that_of_the_rollouts(analysed: Path) -> None:
    rollouts = load_rollouts(analysed, 2)
    right = (rollouts.rewards >= 1).repeat_interleave(rollouts.start.diff())
    H = rollouts.entropy.double()
    found = lines(analysed)[1]["entropy"]
    assert found["right"] == pytest.approx(float(H[right].mean()), rel=1e-5)
    assert found["wrong"] == pytest.approx(float(H[~right].mean()), rel=1e-5)
    plus = rollouts.advantage > 0
    assert found["positive"] == pytest.approx(float(H[plus].mean()), rel=1e-5)


def test_lora_and_a_large_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entrostat.hosts.lab.abilities.SMALLEST_VOCABULARY", 4)
    done = run(tmp_path / "a", 1, iterations=2, lora={"rank": 2}, optim={"lr": 1e-3})
    assert load_policy(from_dict({})).head is not None
    for line in lines(done):
        assert line["influence/sum"] == pytest.approx(line["influence/predicted"], rel=1e-2)
    assert lines(done)[1]["change/mean"] != 0


def test_bf16_training_is_analysed_in_float32(tmp_path: Path) -> None:
    done = run(tmp_path / "a", 1, precision="bf16", optim={"lr": 1e-4})
    (_, second, _) = lines(done)
    assert second["change/simpson"] == pytest.approx(second["change/mean"], rel=0.05)


def test_no_number_without_a_word_in_json() -> None:
    line = {"a": float("nan"), "b": [float("inf"), 1.0], "c": {"d": -float("inf")}, "e": "x"}
    assert analysis.finite(line) == {"a": None, "b": [None, 1.0], "c": {"d": None}, "e": "x"}


def test_calibration_and_diversity_are_those_of_the_texts(analysed: Path) -> None:
    """The policy writes a character a token, so that n-grams of tokens are those of characters."""
    rollouts = load_rollouts(analysed, 2)
    found = lines(analysed)[1]
    mean = torch.tensor([float(rollouts.logp[rollouts.rows(i)].mean()) for i in range(48)])
    right = rollouts.rewards >= 1
    assert found["calibration"]["right"] == pytest.approx(float(mean[right].mean()), rel=1e-5)
    assert found["calibration"]["wrong"] == pytest.approx(float(mean[~right].mean()), rel=1e-5)
    better = (mean[right][:, None] > mean[~right]).double().mean()
    assert found["calibration"]["auc"] == pytest.approx(float(better), abs=1e-6)
    shares = []
    for g in range(8):
        # an end is a token too
        own = [
            rollouts.completions[i] + "$" * bool(rollouts.finished[i])
            for i in range(48)
            if rollouts.group[i] == g
        ]
        for n in range(1, 5):
            grams = [text[i : i + n] for text in own for i in range(len(text) - n + 1)]
            shares.append(len(set(grams)) / len(grams))
    assert found["diversity"]["ngram"] == pytest.approx(sum(shares) / len(shares))
    assert 0 < found["diversity"]["self_bleu"] < 1
