"""As main_ppo_verl.py, with vLLM on the CPU: `make verl-vllm-env test-verl-vllm`, by hand."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from cluster import cluster
from main_ppo_verl import CPU, LIMIT, ROLLOUT, correlation, metrics, ranks, train, write_recipe
from vllm_cpu import ENVIRONMENT, write_distribution

from entrostat.hosts.lab.pretrain import PretrainConfig, pretrain
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


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM (make verl-vllm-env)")
def test_rollouts_of_vllm_come_from_the_weights_that_are_trained(tmp_path: Path) -> None:
    # vLLM has no heads of 16, as the tiny policy's are: 32
    pretrain(PretrainConfig(output=str(tmp_path / "policy"), hidden=128, steps=150))
    write_distribution(tmp_path / "packages")
    recipe = write_recipe(
        tmp_path / "recipe.toml", CPU | ranks(1) | VLLM, 3, model=str(tmp_path / "policy")
    )
    run, path = tmp_path / "run", [str(tmp_path / "packages"), os.environ["PYTHONPATH"]]
    variables = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(path)}
    command = train("--config", recipe, "--output", run)
    with cluster(command, tmp_path / "log.txt", variables) as started:
        assert started.wait(2 * LIMIT) == 0, started.tail()
    assert [row["iteration"] for row in metrics(run)] == [1, 2, 3]
    assert any(row["reward/mean"] > 0 for row in metrics(run)[:2])  # there was something to learn
    for i in (1, 2, 3):
        assert correlation(load_rollouts(run, i)) > 0.999
