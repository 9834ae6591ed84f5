"""TRL with vLLM in its own process, on the CPU: `make trl-vllm-env test-trl-vllm`, by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from read_run import correlation, metrics
from safetensors.torch import load_file
from torch import Tensor
from vllm_cpu import DTYPE

from entrostat.logs.rollouts import Rollouts, load_rollouts
from entrostat.model_files.names import is_whole, model_directory

HERE = Path(__file__).parent
VLLM = ("--host", "trl", "--device", "cpu", "--sampling.engine", "vllm",
        "--trl.vllm_gpu_memory_utilization", "0.1")  # fmt: skip


def run(command: list[str], variables: dict[str, str]) -> str:
    """What a process of its own prints: vLLM starts once in each."""
    done = subprocess.run([sys.executable, *command], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


def train(out: Path, variables: dict[str, str], *words: str) -> Path:
    command = ["-m", "entrostat", "train", "--output", str(out), *VLLM, *words]
    run(command, variables)
    return out


# ------------------------------------------------------------------ losses


def expected(step: dict[str, Tensor], corrected: bool, clip_max: float) -> Tensor:
    """GRPO's clipped surrogate, mean over tokens, in float64 from its formula."""
    mask = step["completion_mask"].bool()
    logp, old = step["logp"].double(), step["old_per_token_logps"].double()
    A = step["advantages"].double()[:, None]
    ratio = (logp - old).exp()
    loss = -torch.minimum(ratio * A, ratio.clamp(0.8, 1.2) * A)
    if corrected:  # TRL's `token_truncate`
        loss = loss * (old - step["sampling_per_token_logps"].double()).exp().clamp(max=clip_max)
    return loss[mask].mean()


@pytest.mark.parametrize("correction", ["on", "off"])
def test_losses_are_those_without_vllm(
    folder: Path, variables: dict[str, str], correction: str
) -> None:
    from trl_losses import CLIP_MAX

    out = folder / f"losses-{correction}.safetensors"
    script = [str(HERE / "trl_losses.py"), str(folder / "policy"), correction, str(out)]
    history = json.loads(run(script, variables).splitlines()[-1])
    found = load_file(out)
    for update in range(4):
        step = {key.split(".")[1]: x for key, x in found.items() if key.startswith(f"{update}.")}
        with_it = expected(step, True, CLIP_MAX)
        without = expected(step, False, CLIP_MAX)
        mine, other = (with_it, without) if correction == "on" else (without, with_it)
        off = abs(step["loss"] - mine)
        assert off < 5e-6  # ratios of up to 30, of float32 log-probs
        assert abs(step["loss"] - other) > 10 * off  # the two can be told apart
    (logged,) = {key for row in history for key in row if key.endswith("mismatch/kl")}
    print(correction, [row[logged] for row in history if logged in row])


# ------------------------------------------------------------------ runs


@pytest.fixture(scope="module")
def trained(folder: Path, variables: dict[str, str]) -> Path:
    """Three iterations with a step so large that old weights would be seen."""
    return train(
        folder / "run", variables, "--model", str(folder / "policy"), "--iterations", "3",
        "--optim.lr", "1e-3", "--optim.epochs", "1", "--eval.prompts", "0",
        "--sampling.prompts", "16", "--sampling.rollouts", "8",
    )  # fmt: skip


def test_rollouts_come_from_the_weights_that_are_trained(trained: Path) -> None:
    for i in (1, 2, 3):
        assert correlation(load_rollouts(trained, i)) > 0.999


def test_weights_of_the_iteration_before_would_not_do(trained: Path) -> None:
    first, third = (load_rollouts(trained, i) for i in (1, 3))
    assert moved(first, third) > 10 * mismatch(third)


def moved(first: Rollouts, last: Rollouts) -> float:
    """How far training has moved the entropy of what is sampled (nats per token)."""
    return abs(float(first.entropy.mean() - last.entropy.mean()))


def mismatch(r: Rollouts) -> float:
    """Mean distance of the sampler's log-probs from the trainer's (nats)."""
    assert r.logp is not None
    assert r.sampler_logp is not None
    return float((r.logp - r.sampler_logp).abs().mean())


def test_the_mismatch_is_logged(trained: Path) -> None:
    for row in metrics(trained):
        r = load_rollouts(trained, row["iteration"])
        assert row["mismatch/logp_abs_mean"] == pytest.approx(mismatch(r), rel=1e-4)
        assert 0 < row["mismatch/logp_abs_mean"] < 0.02


def test_a_language_model_stops_where_it_should(folder: Path, variables: dict[str, str]) -> None:
    """Its 4-bit weights lie on a lattice, of which bf16 would make four times the small first step.

    docs/hosts/trl.md has the figures; so vLLM has float32 here.
    """
    if not is_whole(model_directory("smollm2")):
        pytest.skip("needs `entrostat model smollm2`")
    out = train(
        folder / "words", variables | {DTYPE: "float32"}, "--model", "smollm2", "--task", "words",
        "--iterations", "2", "--sampling.prompts", "4", "--sampling.rollouts", "8",
        "--eval.prompts", "0", "--precision", "fp32", "--save.checkpoints", "0",
    )  # fmt: skip
    rows: list[dict[str, Any]] = metrics(out)
    for row in rows:
        print({key: value for key, value in row.items() if key.startswith(("mismatch", "time"))})
        r = load_rollouts(out, row["iteration"])
        assert correlation(r) > 0.999
        for first, end, finished in zip(r.start[:-1], r.start[1:], r.finished, strict=True):
            said = [r.pieces[int(token)] for token in r.tokens[first:end]]
            assert not any("\n" in piece for piece in said[:-1])
            assert ("\n" in said[-1] or said[-1] == "<|im_end|>") == bool(finished)
        assert row["rollout/truncated"] == pytest.approx(1 - r.finished.float().mean().item())
        assert r.finished.any()
