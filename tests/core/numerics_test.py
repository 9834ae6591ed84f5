"""Rounding put into the ratio, and how far sampler and trainer are apart."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import entrostat as es
from builders import refused
from entrostat.config import Numerics, from_dict
from entrostat.core.mismatch import mismatch
from entrostat.models.rounding import rounded, with_rounded_ratio
from entrostat.trainers.lab import train
from lab_runs import assert_same_weights, metrics, small
from scripts import load_script

BF16 = {"round_logp": "bf16", "round_old_logp": "bf16"}


def nearest_bf16(values: np.ndarray) -> np.ndarray:
    """By the bits of a float32: its upper half, rounded to the nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    kept = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return kept.astype(np.uint32).view(np.float32)


def test_rounding_is_to_the_nearest() -> None:
    values = -np.exp(np.random.default_rng(0).uniform(-8, 3, 5000)).astype(np.float32)
    values[:3] = -(1 + np.array([1, 3, 5], np.float32) * 2.0**-8)  # ties
    x = torch.from_numpy(values)
    assert rounded(x, "bf16").tolist() == nearest_bf16(values).tolist()
    assert rounded(x, "fp16").tolist() == values.astype(np.float16).astype(np.float32).tolist()
    assert torch.equal(rounded(x, None), x)


# ---------------------------------------------------------------------------- the ratio

# From -5 = -160/32 = -1280/256: in [4, 8) bf16 has steps of 1/32 and fp16 of 1/256. log 1.28 is
# 7.90 steps of 1/32 and 63.2 of 1/256; log .8 is -7.14 and -57.1.
#                1.271: in   .797: cut   1.05: in   1.65: cut  1.01: in
NOW = [-x / 32 for x in (152.32, 167.26, 158.4, 144.0, 159.68)]
ADVANTAGE = [1.0, -1.0, 1.0, 1.0, 2.0]
STEPS = {"bf16": ([8, -7, 2, 16, 0], 32), "fp16": ([61, -58, 13, 128, 3], 256)}
CUT = {"bf16": [True, False, False, True, False], "fp16": [False, True, False, True, False]}


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_the_ratio_is_that_of_rounded_log_probs_and_its_gradient_passes(half: str) -> None:
    logp = torch.tensor(NOW)[:, None].requires_grad_()
    old, A = torch.full((5, 1), -5.0), torch.tensor(ADVANTAGE)[:, None]
    batch = es.TokenBatch(logp, old, torch.ones(5, 1), A)
    objective = es.make_objective("dapo", aggregation="token_mean")  # clip (.2, .28)
    out = objective.loss(with_rounded_ratio(batch, Numerics(half, half)))  # type: ignore[bad-argument-type]
    out.loss.backward()
    steps, unit = STEPS[half]
    tokens = zip([math.exp(s / unit) for s in steps], ADVANTAGE, CUT[half], strict=True)
    losses, slopes = zip(
        *(
            (-min(r * a, min(max(r, 0.8), 1.28) * a), 0.0 if cut else -r * a / 5)
            for r, a, cut in tokens
        ),
        strict=True,
    )
    assert out.per_token[:, 0].tolist() == pytest.approx(losses, rel=1e-6)
    assert logp.grad is not None
    assert logp.grad[:, 0].tolist() == pytest.approx(slopes, rel=1e-6)
    assert [x == 0 for x in slopes] == CUT[half]


@pytest.mark.parametrize(
    ("numerics", "log_ratio"),
    [
        (Numerics("bf16"), 0.01), (Numerics(None, "bf16"), -0.01),
        (Numerics("bf16", "bf16"), 0.0), (Numerics(), 0.0),
    ],
)  # fmt: skip
def test_either_side_alone(numerics: Numerics, log_ratio: float) -> None:
    logp = torch.tensor([[-4.76]])  # rounds to -4.75
    seen = with_rounded_ratio(es.TokenBatch(logp, logp, torch.ones(1, 1)), numerics)
    assert float(seen.logp - seen.old_logp) == pytest.approx(log_ratio, abs=1e-6)
    assert bool(seen.logp == seen.old_logp) == (log_ratio == 0)


@pytest.mark.parametrize("micro", [128, 5])
def test_in_the_lab_nothing_but_the_ratio_changes(tmp_path: Path, micro: int) -> None:
    """The first update's ratio is 1 either way; the second starts from the same weights."""
    settings = {
        "iterations": 1, "method": ["steer"], "eval": {"prompts": 0}, "save": {"rollouts_every": 0},
        "optim": {"epochs": 2, "minibatches": 1, "lr": 3e-3, "micro_batch": micro},
    }  # fmt: skip
    (exact,) = metrics(train(small(tmp_path / "exact", **settings)))
    (bf16,) = metrics(train(small(tmp_path / "bf16", **settings, numerics=BF16)))
    for key in ("entropy/exact", "entropy/nll", "reward/mean", "terms/weight", "kl/old_new"):
        assert bf16[key] == exact[key], key
    for side in ("high", "low"):
        assert bf16[f"numerics/clip_{side}_exact"] == exact[f"clip/{side}"] > 0
    moved = abs(bf16["clip/high"] - exact["clip/high"]) + abs(bf16["clip/low"] - exact["clip/low"])
    assert bf16["numerics/clip_changed"] >= moved - 1e-9
    assert bf16["loss/policy"] != exact["loss/policy"]
    assert not any(key.startswith("numerics/") for key in exact)


def test_strictly_on_policy_it_changes_nothing_at_all(tmp_path: Path) -> None:
    """REPO App. A.1: "no measurable difference for fully on-policy algorithms"."""
    settings = {
        "iterations": 2, "method": ["grpo"], "eval": {"prompts": 0},
        "optim": {"epochs": 1, "minibatches": 1},
    }  # fmt: skip
    exact = train(small(tmp_path / "exact", **settings))
    bf16 = train(small(tmp_path / "bf16", **settings, numerics=BF16))
    assert_same_weights(exact, bf16)


def test_it_is_said_in_a_file_and_refused_for_another_format() -> None:
    numerics = from_dict({"numerics": BF16}).numerics
    assert numerics == Numerics("bf16", "bf16")
    refused(lambda: from_dict({"numerics": {"round_logp": "bf17"}}), "'bf17'", "'bf16'")


def benchmark() -> ModuleType:
    return load_script("benchmarks/clip_bias.py")


@pytest.mark.parametrize("size", [1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("bound", [1.28, 0.8])
def test_where_the_grid_puts_a_bound(size: float, bound: float) -> None:
    """Of true log-ratios spread evenly around the bound, the share cut by rounded ones says it."""
    g, u, n = np.random.default_rng(0), size / 128, 400_000
    center, sign = math.log(bound), math.copysign(1, math.log(bound))
    d = g.uniform(-2 * u, 2 * u, n) + center
    old = -g.uniform(1.3 * size, 1.7 * size, n)  # both in one binade
    steps = nearest_bf16(old + d).astype(float) - nearest_bf16(old)
    cut = float((sign * steps > sign * center).mean())
    mean = center + sign * (2 * u - 4 * u * cut)
    assert benchmark().mean_bound(center, size) == pytest.approx(mean, abs=0.02 * u)


# ---------------------------------------------------------------------------- sampler and trainer

NAN = math.nan


def test_mismatch_by_hand() -> None:
    sampler = torch.tensor([[0.5, 0.25, 0.9], [NAN, 0.125, 1e-9]]).log()
    trainer = torch.tensor([[0.6, 0.2, 0.1], [0.5, 0.125, 1.0]]).log()
    mask = torch.tensor([[True, True, False], [True, True, False]])
    found = mismatch(trainer, sampler, mask)
    up, down = math.log(1.2), math.log(0.8)
    assert found == pytest.approx(
        {
            "mismatch/logp_abs_mean": (up - down) / 3,
            "mismatch/logp_abs_max": -down,
            "mismatch/kl": (1.2 - 1 - up + 0.8 - 1 - down) / 3,
            "mismatch/prob_abs_mean": (0.1 + 0.05) / 3,
            "mismatch/ratio_min": 0.8,
            "mismatch/ratio_max": 1.2,
        },
        rel=1e-5,
    )
    # a masked token is no ratio of 1
    one = mismatch(trainer, sampler, torch.tensor([[True, False, False], [False] * 3]))
    assert one["mismatch/ratio_min"] == pytest.approx(1.2)
    assert mismatch(trainer, sampler, torch.zeros(2, 3)) == {}
    assert mismatch(trainer, sampler - 1e4, mask)["mismatch/ratio_max"] == math.exp(60)  # finite


def test_the_lab_has_it_every_iteration(tmp_path: Path) -> None:
    run = train(small(tmp_path / "run", iterations=2, eval={"prompts": 0}))
    for line in metrics(run):
        r = es.load_rollouts(run, line["iteration"])
        p, q = (np.exp(x.numpy().astype(float)) for x in (r.logp, r.sampler_logp))
        assert line["mismatch/prob_abs_mean"] == pytest.approx(np.abs(p - q).mean(), rel=1e-9)
        assert line["mismatch/ratio_min"] == pytest.approx((p / q).min(), abs=1e-12)
        assert line["mismatch/ratio_max"] == pytest.approx((p / q).max(), abs=1e-12)
        assert line["mismatch/ratio_min"] < 1 < line["mismatch/ratio_max"]


def test_verls_driver_has_it_where_the_engine_gives_log_probs() -> None:
    from entrostat.trainers.verl.driver import prepare

    logp = torch.tensor([[0.6, 0.2], [0.5, 0.5], [0.5, 0.5]]).log()
    entropy, mask = torch.ones(3, 2), torch.tensor([[1, 1], [1, 0], [1, 1]])
    batch = es.TokenBatch(
        logp, logp, mask, rewards=torch.tensor([1.0, 0.0, 0.0]), group=torch.tensor([0, 0, 1]),
        entropy=entropy, old_entropy=entropy,
    )  # fmt: skip
    sampler = torch.tensor([[0.5, 0.25], [0.5, 0.1], [0.1, 0.1]]).log()
    real = torch.tensor([True, True, False])  # the last is padding
    loop = es.make_objective("loop")
    found = prepare(loop, batch, real, 0.0, sampler).metrics
    assert found["mismatch/prob_abs_mean"] == pytest.approx((0.1 + 0.05) / 3)
    assert found["mismatch/ratio_min"] == pytest.approx(0.8)
    assert found["mismatch/ratio_max"] == pytest.approx(1.2)
    assert not any(key.startswith("mismatch/") for key in prepare(loop, batch, real, 0.0).metrics)


@pytest.mark.filterwarnings("ignore")  # of TRL's own, as in trl_test
def test_trl_has_it_where_the_sampler_gives_log_probs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl", reason="trl is an extra")
    from trl_runs import entropy_trainer, scripted

    monkeypatch.setenv("CI", "1")
    trainer = entropy_trainer(
        tmp_path / "out", objective="grpo", dump=tmp_path / "dump", max_steps=1,
        gradient_accumulation_steps=2, per_device_train_batch_size=8, num_iterations=1,
    )  # fmt: skip
    scripted(trainer)
    generate = trainer._generate

    def with_logps(prompts):
        found = list(generate(prompts))
        logps: list[list[float | None]] = [[-1.5] * len(ids) for ids in found[1]]
        logps[2][0] = None  # as where vLLM could not score a token
        found[4] = logps
        return tuple(found)

    trainer._generate = with_logps
    trainer.train()
    r = es.load_rollouts(tmp_path / "dump", 1)
    said = ~r.sampler_logp.isnan().numpy()
    assert said.sum() == len(said) - 1
    p = np.exp(r.logp.numpy().astype(float))[said]
    first = trainer.state.log_history[0]
    assert first["mismatch/prob_abs_mean"] == pytest.approx(
        np.abs(p - np.exp(-1.5)).mean(), rel=1e-5
    )
    assert first["mismatch/ratio_min"] == pytest.approx((p / np.exp(-1.5)).min(), rel=1e-5)
    assert first["mismatch/ratio_max"] == pytest.approx((p / np.exp(-1.5)).max(), rel=1e-5)
