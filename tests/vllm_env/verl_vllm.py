"""As main_ppo_verl.py, with vLLM on the CPU: `make verl-vllm-env test-verl-vllm`, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import cluster
from cpu_recipe import CPU, ROLLOUT, ranks
from main_ppo_verl import LIMIT, train, write_recipe
from read_run import correlation, metrics
from vllm_cpu import environment, small_policy

from entrostat.logs.rollouts import load_rollouts

VLLM = {
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.enforce_eager": True,
    f"+{ROLLOUT}.enable_sleep_mode": False,
    f"{ROLLOUT}.max_num_seqs": 32,
    f"{ROLLOUT}.max_num_batched_tokens": 1024,
    f"{ROLLOUT}.max_model_len": 64,
    f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 16,
}


@pytest.mark.timeout(2 * LIMIT)
def test_rollouts_of_vllm_come_from_the_weights_that_are_trained(tmp_path: Path) -> None:
    policy = small_policy(tmp_path / "policy")
    recipe = write_recipe(tmp_path / "recipe.toml", CPU | ranks(1) | VLLM, 3, model=policy)
    variables = environment(tmp_path / "packages") | {"VERL_USE_EXTERNAL_MODULES": "ray_cpu"}
    command, run = train("--config", recipe, "--output", tmp_path / "run"), tmp_path / "run"
    with cluster(command, tmp_path / "log.txt", variables) as started:
        assert started.wait(2 * LIMIT) == 0, started.tail()
    assert [row["iteration"] for row in metrics(run)] == [1, 2, 3]
    assert any(row["reward/mean"] > 0 for row in metrics(run)[:2])  # there was something to learn
    for i in (1, 2, 3):
        assert correlation(load_rollouts(run, i)) > 0.999
