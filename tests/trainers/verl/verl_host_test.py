"""What veRL's seam gave for each method (tests/golden/make_verl_host.py) against `Objective`.

The golden values went through the driver, a nested batch, a plan and micro-batches in the
environment that has veRL; here the whole batch is one call. float64: equal to 1e-6 (advantages
travel in float32 there). Also what of the host needs no veRL.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import entrostat as es
from builders import refused
from entrostat.core.mismatch import mismatch
from entrostat.core.process_ranks import shared_generator
from entrostat.core.rollouts import describe
from entrostat.dynamics import online
from entrostat.trainers.verl import shell_command, verl_config
from entrostat.trainers.verl.driver import prepare
from long_cases import keep
from paths import ROOT

GOLDEN = json.loads((ROOT / "tests" / "golden" / "verl_host.json").read_text(encoding="utf-8"))
INPUTS = GOLDEN["inputs"]
CASES = {case["name"]: case for case in GOLDEN["cases"]}


def tensor(name: str) -> torch.Tensor:
    return torch.tensor(INPUTS[name], dtype=torch.float64)


def mask() -> torch.Tensor:
    return torch.tensor(INPUTS["mask"], dtype=torch.bool)


def test_every_golden_case_is_a_method() -> None:
    """A new method needs no case before somebody with veRL records one (`make parity`)."""
    ours = {
        name for name, info in es.methods().items() if "verl" in info.hosts and not _foreign(name)
    }
    assert set(CASES) <= ours


def _foreign(name: str) -> bool:
    from entrostat.method import METHODS

    # other tests may have registered methods of their own
    return name in METHODS and not METHODS[name].__module__.startswith("entrostat.")


@pytest.mark.parametrize("name", sorted(CASES))
def test_method(name: str) -> None:
    golden = CASES[name]
    objective = es.make_objective(name, **golden.get("given", {}))
    seen = GOLDEN["seen"]
    for _ in range(2):
        objective.observe(nll=seen["entropy"], **seen)
    old, H0 = tensor("old_logp"), tensor("old_entropy")
    m = mask()
    objective.observe(
        entropy=float(H0[m].mean()), nll=-float(old[m].mean()), progress=seen["progress"]
    )
    fresh = golden["fresh"]
    assert fresh == objective.strictly_on_policy
    logp = (old if fresh else tensor("logp")).clone().requires_grad_()
    entropy = (H0 if fresh else tensor("entropy")).clone().requires_grad_()
    batch = es.TokenBatch(
        old, old, m, rewards=tensor("rewards"), group=torch.tensor(INPUTS["group"]),
        entropy=H0, old_entropy=H0, ref_logp=tensor("ref_logp"),
    )  # fmt: skip
    batch = objective.prepare(batch).replace(logp=logp, entropy=entropy)
    out = objective.loss(batch, generator=shared_generator(0, "select", GOLDEN["step"], 1))
    out.loss.backward()
    assert float(out.loss.detach()) == pytest.approx(golden["loss"], rel=1e-6, abs=1e-6)
    assert logp.grad is not None
    _close(logp.grad, golden["gradients"]["logp"])
    if "entropy" in golden["gradients"]:
        assert entropy.grad is not None
        _close(entropy.grad, golden["gradients"]["entropy"])
    else:
        assert entropy.grad is None or entropy.grad.abs().sum() == 0


def _close(mine: torch.Tensor, golden: Any) -> None:
    wanted = torch.tensor(golden, dtype=torch.float64)
    assert wanted.abs().max() > 1e-6
    assert (mine - wanted).abs().max() <= 1e-6 * wanted.abs().max()


def rollouts(rewards: list[float], group: list[int]) -> es.TokenBatch:
    n = len(rewards)
    logp = torch.full((n, 2), -0.5)
    entropy = torch.full((n, 2), 0.25)
    ones = torch.ones(n, 2, dtype=torch.bool)
    return es.TokenBatch(
        logp, logp, ones, rewards=torch.tensor(rewards), group=torch.tensor(group),
        entropy=entropy, old_entropy=entropy,
    )  # fmt: skip


def test_groups_without_signal_and_padding_rows_are_left_out() -> None:
    batch = rollouts([1.0, 0.0, 1.0, 1.0, 0.0], [4, 4, 9, 9, 1])
    real = torch.tensor([True, True, True, True, False])
    done = prepare(es.make_objective("loop"), batch, real, 0.0)
    # rloo by hand: R - the mean of the others
    assert torch.equal(done.batch.advantages[:, 0], torch.tensor([1.0, -1.0, 0.0, 0.0, 0.0]))
    assert done.batch.policy_mask.any(-1).tolist() == [True, True, False, False, False]
    assert done.batch.mask.any(-1).tolist() == [True, True, True, True, False]  # for penalties
    assert done.metrics["rollout/groups"] == 2
    assert done.metrics["rollout/zero_advantage_groups"] == 1
    assert done.metrics["entropy/exact"] == 0.25
    assert done.metrics["entropy/nll"] == 0.5
    assert done.metrics["reward/mean"] == 0.75
    # of (1, 0) and (1, 1): the lab's names
    assert done.metrics["reward/std_in_group"] == 0.25
    assert done.metrics["reward/best_in_group"] == 1
    assert done.metrics["rollout/length_max"] == 2
    assert done.metrics["rollout/tokens"] == 8


SHARED = ("dapo", "gtpo", "repo_d", "pos_adv", ["grpo", "repo_r", {"name": "kl_ref"}], "opefo")


@pytest.mark.parametrize("spec", keep(SHARED, "repo_d", SHARED[4]), ids=str)
def test_threads_that_share_the_work_change_no_bit(spec: Any) -> None:
    """Against the steps by themselves, on the whole batch at once, without shares or padding."""
    g = torch.Generator().manual_seed(0)
    B, T = 23, 37
    ends = torch.randint(1, T + 1, (B,), generator=g)
    mask = torch.arange(T) < ends[:, None]
    mask &= torch.rand(B, T, generator=g) > 0.2  # what an environment said
    mask[4] = False
    logp, sampler, ref = (-torch.rand(B, T, generator=g).exp() for _ in range(3))
    H = torch.rand(B, T, generator=g)
    batch = es.TokenBatch(
        logp, logp, mask, rewards=torch.randint(0, 2, (B,), generator=g).float(),
        group=torch.arange(B) // 4, entropy=H, old_entropy=H, ref_logp=ref,
    )  # fmt: skip
    real = torch.arange(B) < 20
    plain, mine = es.make_objective(spec), batch[:20]
    figures = describe(mine)
    plain.observe(entropy=figures["entropy/exact"], nll=figures["entropy/nll"], progress=0.5)
    outcome = plain.compute_advantages(mine)
    ready = plain.prepare(outcome)
    assert ready.advantages is not None
    assert outcome.advantages is not None
    assert mine.rewards is not None
    figures |= plain.metrics() | mismatch(mine.old_logp, sampler[:20], mine.mask)
    figures |= online.of_rollouts(ready, outcome.advantages, mine.rewards)
    for threads in (1, 2, 5, 20):
        shared = es.make_objective(spec)
        done = prepare(shared, batch, real, 0.5, sampler, threads)
        assert torch.equal(done.batch.advantages[:20], ready.advantages.float())
        assert torch.equal(done.batch.idle[:20], ready.idle)
        assert torch.equal(done.batch.mask[:20], mine.mask)
        assert not done.batch.mask[20:].any()
        assert (done.batch.edited is None) == (ready.edited is None)
        if ready.edited is not None:
            assert torch.equal(done.batch.edited[:20], ready.edited)
        assert {key: done.metrics[key] for key in figures} == figures
        assert shared.state_dict() == plain.state_dict()


def test_a_batch_without_any_signal_trains_nothing() -> None:
    done = prepare(
        es.make_objective("gtpo"), rollouts([1.0] * 4, [0, 0, 1, 1]), torch.ones(4).bool(), 0.0
    )
    assert not done.batch.policy_mask.any()
    assert done.batch.advantages.abs().sum() == 0


def test_each_data_source_has_a_column() -> None:
    """Padding rows have none, and a single source is what `reward/mean` is of."""
    batch = rollouts([1.0, 0.0, 1.0, 1.0, 9.0], [4, 4, 9, 9, 1])
    real = torch.tensor([True, True, True, True, False])
    kinds = ["gsm8k", "gsm8k", "math", "math", "math"]
    found = prepare(es.make_objective("grpo"), batch, real, 0.0, kinds=kinds).metrics
    assert (found["rewards/gsm8k/mean"], found["rewards/math/mean"]) == (0.5, 1.0)
    one = prepare(es.make_objective("grpo"), batch, real, 0.0, kinds=["math"] * 5).metrics
    assert "rewards/math/mean" not in one


def test_controllers_see_the_whole_batch_once() -> None:
    objective = es.make_objective("repo_r", target=1.0)
    prepare(objective, rollouts([1.0, 0.0], [0, 0]), torch.ones(2).bool(), 0.0)
    assert objective.metrics()["control/zeta"] == 2e-3  # doubled: .25 is below 1


def test_a_reward_that_is_no_number_is_an_error() -> None:
    refused(lambda: prepare(
            es.make_objective("grpo"), rollouts([1.0, float("nan")], [0, 0]),
            torch.ones(2).bool(), 0.0,
        ), "no finite number")  # fmt: skip


RECIPES = sorted((ROOT / "recipes" / "papers").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.name)
def test_recipes_become_overrides(path: Path) -> None:
    lines = verl_config(path)
    keys = [line.partition("=")[0].lstrip("+") for line in lines]
    assert len(keys) == len(set(keys))
    loss = "actor_rollout_ref.actor.policy_loss"
    for line in (
        "trainer.v1.trainer_mode=entrostat",
        f"{loss}._target_=entrostat.trainers.verl.settings.PolicyLoss",
        f"{loss}.loss_mode=entrostat",
    ):
        assert line in lines
    assert "python3 -m verl.trainer.main_ppo" in shell_command(lines)


def test_steer_asks_for_the_entropy_and_grpo_does_not() -> None:
    papers = ROOT / "recipes" / "papers"
    steer = verl_config(papers / "steer_table3_steer_math7b.toml")
    assert "actor_rollout_ref.actor.calculate_entropy=true" in steer
    grpo = verl_config(papers / "steer_table3_grpo_math7b.toml")
    assert "actor_rollout_ref.actor.calculate_entropy=false" in grpo


def test_later_overrides_win() -> None:
    lines = verl_config(RECIPES[0], ["trainer.nnodes=7"])
    assert [line for line in lines if line.startswith("trainer.nnodes")] == ["trainer.nnodes=7"]
    refused(lambda: verl_config(RECIPES[0], ["trainer.nnodes"]), "key=value")


@pytest.mark.skipif(importlib.util.find_spec("verl") is not None, reason="veRL is here")
def test_without_verl_the_check_says_so() -> None:
    code = "from entrostat.trainers.verl import check; check()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "RuntimeError: entrostat.trainers.verl: veRL cannot be imported" in done.stderr
    assert "docs/train_verl.md" in done.stderr
