"""Methods in the lab: what the loop supplies them with, and that it stays exact."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import entrostat as es
from builders import refused
from entrostat.trainers.lab import experience, train, updates
from lab_runs import (
    NothingToLearn,
    lines_of_a_run_that_survives_a_kill,
    metrics,
    small,
    weights,
)
from long_cases import keep
from stopping import Stop, StopAfter

# everything that could go astray between two processes: random selections, controllers of every
# kind, a schedule, a reference policy
STATEFUL = [
    "clip_wide",
    {"name": "rand_pos_clip", "ratio": 0.05},
    {"name": "quadrant", "which": "IV", "share": 0.5},
    {"name": "clip_cov", "ratio": 0.05, "low": 0.1},
    {"name": "adaptive_entropy", "target": 1.0, "delta": 1e-2, "coef_max": 0.1, "signal": "nll"},
    {"name": "pos_adv", "schedule": "stage"},
    {"name": "repo_d", "target": 0.7},
    {"name": "kl_ref", "coef": 0.1},
]


def test_selections_controllers_and_reference_survive_a_kill(tmp_path: Path) -> None:
    lines = lines_of_a_run_that_survives_a_kill(tmp_path, STATEFUL)
    assert [line["control/pos_weight"] for line in lines] == pytest.approx([0, 0, 1 / 3, 1])
    # entropy is about .9, so the coefficient rises by delta an iteration
    coefficients = [line["control/entropy_coef"] for line in lines]
    assert coefficients == pytest.approx([0.01, 0.02, 0.03, 0.04])
    assert all(line["terms/frozen"] > 0 for line in lines)


@pytest.mark.parametrize("solve", keep(["sample", "exact"], "sample"))
def test_a_multiplier_survives_a_kill(tmp_path: Path, solve: str) -> None:
    method = [{"name": "thermostat", "target": "0.7x", "solve": solve}]
    lines = lines_of_a_run_that_survives_a_kill(tmp_path, method)
    assert all(line["thermostat/foretold"] < 0 for line in lines[2:])  # the target lies below
    for before, after in pairwise(lines):
        change = after["entropy/exact"] - before["entropy/exact"]
        assert after["thermostat/realised"] == pytest.approx(change)


@pytest.mark.parametrize("solve", ["sample", "exact"])
def test_an_update_has_the_bonus_that_was_decided_on_from_its_own_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, solve: str
) -> None:
    """Against a loss that has the bonus from the start, on the same minibatch and weights."""
    update, decide = updates.update, updates.decide
    minibatch: list[Any] = []
    multipliers: list[float] = []

    def updating(state: Any, batch: Any, sequences: Any, *rest: Any, **more: Any) -> Any:
        minibatch[:] = [state, batch, sequences]
        return update(state, batch, sequences, *rest, **more)

    def deciding(hold: Any, optimizer: Any, entropy: Any, *rest: Any) -> None:
        decide(hold, optimizer, entropy, *rest)
        multipliers.append(hold.state.value)
        state, batch, sequences = minibatch
        stats = state.policy.token_stats(sequences, 1.0)
        batch = batch.replace(logp=stats.logp, entropy=stats.entropy)
        grpo = es.make_objective("grpo", aggregation=state.objective.aggregation)
        mean = stats.entropy[batch.mask].sum() / batch.mask.sum()
        loss = grpo.loss(batch).loss - multipliers[-1] * mean
        wanted = torch.autograd.grad(loss, entropy.parameters)
        for p, g in zip(entropy.parameters, wanted, strict=True):
            torch.testing.assert_close(p.grad, g, rtol=1e-3, atol=1e-6)

    monkeypatch.setattr(updates, "update", updating)
    monkeypatch.setattr(updates, "decide", deciding)
    method = ["grpo", {"name": "thermostat", "target": "0.9x", "solve": solve}]
    train(small(
        tmp_path / "run", method=method, iterations=3, eval={"prompts": 0},
        optim={"epochs": 1, "minibatches": 4, "micro_batch": 3},
    ))  # fmt: skip
    # the first has none; `sample`: momentum settles in the first ten, then one an iteration
    assert len(multipliers) == (12 if solve == "exact" else 10)
    assert sum(c != 0 for c in multipliers) >= 9


@pytest.mark.long
def test_a_thermostat_survives_a_kill(tmp_path: Path) -> None:
    method = [{"name": "thermostat", "target": "linear 1x 0.5x", "knob": "zeta"}]
    lines = lines_of_a_run_that_survives_a_kill(tmp_path, method)
    targets = [line["control/target"] for line in lines]
    first = lines[0]["entropy/exact"]
    assert targets == pytest.approx([first * (1 - i / 6) for i in range(4)])
    assert lines[-1]["control/zeta"] < 0  # the target lies below the entropy
    assert lines[-1]["thermostat/gain"] > 0


@pytest.mark.parametrize("lora", [0, 4])
def test_the_reference_is_the_policy_that_training_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: int
) -> None:
    seen: list[es.TokenBatch] = []
    measure = experience._with_models

    def spy(*arguments: Any) -> tuple[es.TokenBatch, dict[str, float]]:
        batch, figures = measure(*arguments)
        seen.append(batch)
        return batch, figures

    monkeypatch.setattr(experience, "_with_models", spy)
    config = small(
        tmp_path / "run", method="kl_ref", iterations=3, lora={"rank": lora},
        optim={"lr": 1e-3 if lora else 1e-4},
        sampling={"prompts": 16}, eval={"prompts": 0},
    )  # fmt: skip
    with pytest.raises(Stop):
        train(config, progress=StopAfter(2))
    train(config, resume=True)
    first, second, third = seen
    # nothing has been trained yet; other rows lie in a packed pass, so all but rounding
    torch.testing.assert_close(first.ref_logp, first.old_logp, rtol=0, atol=1e-5)
    for later in (second, third):  # the third after a resume
        assert not torch.allclose(later.ref_logp, later.old_logp, atol=1e-4)
    # an independent reference: the base policy, loaded afresh, on the third iteration's rollouts
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from entrostat.model_files import tiny_directory

    rollouts = es.load_rollouts(tmp_path / "run", iteration=3)
    model = AutoModelForCausalLM.from_pretrained(tiny_directory())
    tokenizer = AutoTokenizer.from_pretrained(tiny_directory())
    for i in range(0, len(rollouts), 13):  # a penalty acts on all, those without a signal too
        prompt = tokenizer(rollouts.prompts[i])["input_ids"]
        while prompt[-1] == tokenizer.eos_token_id:
            prompt = prompt[:-1]
        tokens = rollouts.tokens[rollouts.rows(i)].long()
        with torch.no_grad():
            logits = model(torch.cat([torch.tensor(prompt), tokens])[None]).logits[0]
        logp = logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(-1, tokens[:, None])[:, 0]
        mine = third.ref_logp[i][third.mask[i]]
        torch.testing.assert_close(mine, logp, rtol=0, atol=1e-4)


@pytest.mark.long
def test_a_reference_penalty_keeps_the_policy_near_the_base(tmp_path: Path) -> None:
    def last(coef: float) -> float:
        method = [{"name": "kl_ref", "coef": coef}]
        run = train(small(tmp_path / f"{coef}", method=method, iterations=4, eval={"prompts": 0}))
        return sum(line["kl/ref"] for line in metrics(run)[-3:]) / 3

    assert last(1.0) < 0.5 * last(0.0)


def test_shaped_rewards_do_not_reach_the_records(tmp_path: Path) -> None:
    run = train(small(tmp_path / "run", method="unlikeliness", iterations=2))
    for iteration in (1, 2):
        rollouts = es.load_rollouts(run, iteration=iteration)
        assert set(rollouts.rewards.tolist()) <= {0.0, 1.0}
        line = metrics(run)[iteration - 1]
        assert line["reward/mean"] == pytest.approx(rollouts.rewards.mean().item())
        # a group without a wrong answer has a signal under this method, one without a right has not
        per_group = rollouts.rewards.view(-1, 4)
        wrong = (per_group.sum(-1) == 0).sum().item()
        assert line["rollout/zero_advantage_groups"] == wrong


@pytest.mark.parametrize(
    ("method", "aggregation"),  # every pair of them: contract_test.py, on numbers
    [
        ("steer", "token_mean"),
        ("forking_tokens", "seq_mean_token_mean"),
        ("pos_only", "token_mean"),
        ({"name": "clip_cov", "ratio": 0.05, "low": 0.1}, "seq_mean_token_mean"),
        ({"name": "kl_cov", "frac": 0.05}, "token_mean"),
        ({"name": "entropy_bonus", "coef": 0.1}, "seq_mean_token_mean"),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else value,
)
def test_micro_batches_select_what_the_minibatch_selects(
    tmp_path: Path, method: Any, aggregation: str
) -> None:
    runs = []
    for micro in (128, 5):
        config = small(
            tmp_path / str(micro), method=[method], iterations=1, eval={"prompts": 0},
            optim={"micro_batch": micro, "aggregation": aggregation},
        )  # fmt: skip
        runs.append(train(config))
    one, many = (metrics(run)[0] for run in runs)
    for key in one:
        if key.startswith(("terms/", "clip/")):
            assert many[key] == pytest.approx(one[key], rel=1e-4, abs=1e-7), key
    # Adam's first steps are lr * sign(gradient), so a gradient near 0 may go either way
    for name, weight in weights(runs[0]).items():
        off = (weight - weights(runs[1])[name]).abs() > 2e-5
        assert off.float().mean() < 0.01, name


def test_opefo_runs_with_one_update_and_is_refused_with_more(tmp_path: Path) -> None:
    config = small(tmp_path / "run", method="opefo", iterations=2)
    refused(lambda: train(config), "`reinforce`", "`opefo`", "not 4")
    assert not (tmp_path / "run").exists()
    once = {"epochs": 1, "minibatches": 1}
    run = train(small(tmp_path / "run", method="opefo", iterations=2, optim=once))
    assert [line["optim/updates"] for line in metrics(run)] == [1, 1]


def test_penalties_train_where_no_group_has_a_signal(tmp_path: Path) -> None:
    """As REPO's and COV's entropy bonus, over the batch; the policy term is 0."""
    bonus = {"name": "entropy_bonus", "coef": 2.0}
    config = small(
        tmp_path / "run", method=[bonus], iterations=2, eval={"prompts": 0}, analyze={"every": 1},
        optim={"lr": 1e-4},
    )  # fmt: skip
    run = train(config, task=NothingToLearn())
    first, second = metrics(run)
    assert first["rollout/zero_advantage_groups"] == 6
    assert first["optim/updates"] == 4
    assert first["loss/policy"] == 0
    assert first["loss/total"] == pytest.approx(-2 * first["entropy/exact"], rel=0.1)
    assert second["entropy/exact"] > first["entropy/exact"]
    assert not es.load_rollouts(run, 1).trained.any()
