"""Parameters that move over a run, and the KL in the reward."""

import json

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import refused
from entrostat.testing import contract_data


def observed(objective, progress):
    objective.observe(entropy=0.5, progress=progress)
    return objective.metrics()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("linear 0.3 0.1", {0: 0.3, 0.5: 0.2, 1: 0.1}),
        ("cosine 0.3 0.1", {0: 0.3, 0.25: 0.2 + 0.1 * 2**-0.5, 0.5: 0.2, 1: 0.1}),
        ("points 0:0.3 0.2:0.1 1:0.5", {0: 0.3, 0.1: 0.2, 0.2: 0.1, 0.6: 0.3, 1: 0.5}),
        ("points 0.5:0.3 0.75:0.1", {0: 0.3, 0.5: 0.3, 1: 0.1}),
    ],
)
def test_a_clip_bound_over_the_run(text, at):
    objective = es.make_objective({"name": "ppo", "high": text})
    data = contract_data() | {"advantages": torch.ones(6, dtype=torch.float64)}
    for progress, high in at.items():
        assert observed(objective, progress)["control/ppo_high"] == pytest.approx(high)
        terms = objective.plan(objective.prepare(es.TokenBatch(**data)))
        assert float(terms.ratio_max[0, 0]) == pytest.approx(1 + high)
        assert float(terms.ratio_min[0, 0]) == pytest.approx(0.8)


def test_who_loads_a_state_is_at_its_time():
    """veRL's workers observe nothing; the driver's state tells them."""
    spec = {"name": "ppo", "high": "linear 0.3 0.1"}
    driver, worker = es.make_objective(spec), es.make_objective(spec)
    driver.observe(entropy=0.5, progress=0.75)
    worker.load_state_dict(json.loads(json.dumps(driver.state_dict())))
    data = contract_data() | {"advantages": torch.ones(6, dtype=torch.float64)}
    terms = worker.plan(worker.prepare(es.TokenBatch(**data)))
    assert float(terms.ratio_max[0, 0]) == pytest.approx(1.15)
    assert worker.metrics()["control/ppo_high"] == pytest.approx(0.15)


def test_stares_weight_over_the_run():
    objective = es.make_objective(
        {"name": "stare", "target": 10, "variant": "C2", "W": "linear 1.5 1.0"}
    )
    objective.observe(entropy=0.5, progress=0.5)
    assert objective.metrics()["control/stare_weight"] == pytest.approx(1.25)
    data = contract_data() | {"advantages": torch.ones(6, dtype=torch.float64)}
    weight = objective.plan(es.TokenBatch(**data)).weight
    assert float(weight.max()) == pytest.approx(1.25)


def test_a_fixed_coefficient_that_a_state_holds():
    """An entropy bonus keeps its coefficient as a state, which follows."""
    objective = es.make_objective({"name": "entropy_bonus", "coef": "linear 0.02 0"})
    assert objective.metrics()["control/entropy_coef"] == 0.02
    assert observed(objective, 0.5)["control/entropy_coef"] == pytest.approx(0.01)
    again = es.make_objective({"name": "entropy_bonus", "coef": "linear 0.02 0"})
    again.load_state_dict(json.loads(json.dumps(objective.state_dict())))
    assert again.metrics()["control/entropy_coef"] == pytest.approx(0.01)
    other = es.make_objective({"name": "entropy_bonus", "coef": "linear 0.02 0.01"})
    refused(lambda: other.load_state_dict(objective.state_dict()), "'linear 0.02 0'")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "ppo", "high": "linear 0.3"}, "ppo: high: 'linear 0.3' is no schedule"),
        ({"name": "ppo", "high": "linear 0.3 nan"}, "is no schedule"),
        ({"name": "ppo", "high": "linear 1x 0.3"}, "is no schedule"),
        ({"name": "ppo", "high": "points 0.5:1 0.2:1"}, "times rising"),
        ({"name": "ppo", "high": "linear 0.3 -1"}, "ppo: high must be at least 0"),
        ({"name": "repo_r", "zeta": "linear 0 1"}, "repo_r: a controller moves"),
        ({"name": "prime", "norm": "linear 0 1"}, "norm"),
    ],
)
def test_what_is_no_schedule(spec, words):
    with pytest.raises(ValueError, match=words):
        es.make_objective(spec)


def test_a_schedule_needs_the_progress():
    objective = es.make_objective({"name": "ppo", "high": "linear 0.3 0.1"})
    refused(lambda: objective.observe(entropy=0.5), "`progress`")


# ---------------------------------------------------------------------------- KL in the reward


@pytest.mark.parametrize("form", ["k1", "k2", "k3"])
def test_the_drift_is_taken_off_the_reward(form):
    data = contract_data()
    objective = es.make_objective({"name": "kl_reward", "coef": 0.3, "form": form})
    found = objective.outcome_advantages(es.TokenBatch(**data))
    d, mask = data["ref_logp"] - data["old_logp"], data["mask"].bool()
    each = {"k1": -d, "k2": d**2 / 2, "k3": d.exp() - d - 1}[form]
    rewards = data["rewards"] - 0.3 * torch.stack(
        [row[m].sum() for row, m in zip(each, mask, strict=True)]
    )
    for group in (4, 7):
        R = rewards[data["group"] == group]
        mine = found.advantages[data["group"] == group]
        assert_close(mine, (R - R.mean()) / (R.std() + 1e-6))


def test_whole_numbers_as_rewards_lose_nothing_of_the_drift():
    data = contract_data() | {"rewards": torch.tensor([1, 0, 0, 1, 0, 1])}
    objective = es.make_objective({"name": "kl_reward", "coef": 0.1})
    found = objective.outcome_advantages(es.TokenBatch(**data)).advantages
    data["rewards"] = data["rewards"].double()
    assert_close(found.double(), objective.outcome_advantages(es.TokenBatch(**data)).advantages)


def test_the_lab_has_the_reference_before_the_advantages(tmp_path):
    """After a step that wrecks the policy no reward differs, but how far each rollout drifted."""
    from entrostat.logs.run import read_run

    found = {}
    for method in ("grpo", "kl_reward"):
        config = es.TrainConfig(iterations=2, output=str(tmp_path / method))
        config.optim.lr, config.method = 1e-3, [method]
        if method == "kl_reward":
            config.method = [{"name": method, "coef": "linear 5 1"}]
        config.sampling.prompts, config.sampling.rollouts, config.eval.prompts = 8, 4, 0
        run = read_run(es.train(config))
        found[method] = run.series("rollout/zero_advantage_groups")[1]
    assert run.series("control/kl_reward_coef")[1] == [5, 1]
    assert found["grpo"][1] == 8
    assert found["kl_reward"][1] == 0


def test_gdpo_normalizes_rewards_that_kl_reward_would_edit():
    refused(lambda: es.make_objective("kl_reward", advantage="gdpo"), "kl_reward")
