"""The lab's loop: exact resume, micro-batches, learning, precision, failures."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers.utils import logging

import entrostat as es
from builders import refused
from entrostat.control import ControlState
from entrostat.core.loss import LossOutput
from entrostat.core.objective import Objective
from entrostat.data.prompts import drawn
from entrostat.errors import RunStopped
from entrostat.method import METHODS, Method
from entrostat.runs import checkpoint as checkpoints
from entrostat.runs.progress import Progress
from entrostat.tasks import Example
from entrostat.tasks.target_sum import TargetSum
from entrostat.trainers.assemble import assemble
from entrostat.trainers.lab import train, updates
from entrostat.trainers.lab.state import FIELDS
from lab_runs import NothingToLearn, assert_same_run, assert_same_weights, metrics, small, weights
from stopping import Stop, StopAfter


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(small(tmp_path_factory.mktemp("whole") / "run"))


def test_run_directory_holds_what_the_readme_promises(whole: Path) -> None:
    assert (whole / "config.toml").is_file()
    environment = json.loads((whole / "environment.json").read_text())
    assert environment["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert environment["instructions"] == torch.backends.cpu.get_cpu_capability()
    assert environment["processor"]
    assert len(environment["gpus"]) == torch.cuda.device_count()
    assert [m["iteration"] for m in metrics(whole)] == [1, 2, 3, 4]
    for line in metrics(whole):
        assert {"entropy/exact", "entropy/nll", "reward/mean", "control/zeta"} <= set(line)
        assert 0 < line["entropy/exact"] < math.log(15)
        assert abs(line["mismatch/logp_abs_max"]) < 1e-4
    assert len(list((whole / "checkpoints").glob("*.safetensors"))) == 2
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoTokenizer.from_pretrained(whole / "final")
    model = AutoModelForCausalLM.from_pretrained(whole / "final")
    assert sum(p.numel() for p in model.parameters()) == 149_248


def test_resume_is_exact(whole: Path, tmp_path: Path) -> None:
    config = small(tmp_path / "run")
    with pytest.raises(Stop):
        train(config, progress=StopAfter(1))
    train(config, resume=True)
    assert_same_run(whole, tmp_path / "run")


def test_resume_with_sparse_checkpoints_repeats_the_lost_iterations(
    whole: Path, tmp_path: Path
) -> None:
    config = small(tmp_path / "run", save={"checkpoint_every": 2})
    with pytest.raises(Stop):
        train(config, progress=StopAfter(3))
    assert len(metrics(tmp_path / "run")) == 3
    train(config, resume=True)
    assert_same_run(whole, tmp_path / "run")


def test_killed_while_writing_a_checkpoint(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(tmp_path / "run")
    save = checkpoints.save_file
    calls = 0

    def cut_short(tensors: dict, path: Path, metadata: dict) -> None:
        nonlocal calls
        calls += 1
        save(tensors, path, metadata=metadata)
        if calls == 3:
            with open(path, "r+b") as file:
                file.truncate(path.stat().st_size // 2)
            raise Stop

    monkeypatch.setattr(checkpoints, "save_file", cut_short)
    with pytest.raises(Stop):
        train(config)
    monkeypatch.undo()
    found = checkpoints.newest(tmp_path / "run/checkpoints")
    assert found is not None
    assert found.iteration == 2
    train(config, resume=True)
    assert_same_run(whole, tmp_path / "run")


def test_a_damaged_checkpoint_is_passed_over(whole: Path, tmp_path: Path) -> None:
    config = small(tmp_path / "run")
    with pytest.raises(Stop):
        train(config, progress=StopAfter(3))
    newest = tmp_path / "run/checkpoints/000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:1000])
    found = checkpoints.newest(tmp_path / "run/checkpoints")
    assert found is not None
    assert found.iteration == 2
    train(config, resume=True)
    assert_same_run(whole, tmp_path / "run")


@pytest.mark.slow  # `checkpoint_test.py::test_power_cuts` kills at random moments by default
def test_kill_9_at_any_moment(tmp_path: Path) -> None:
    """Two processes: one runs through, the other is killed again and again and resumed."""
    flags = [
        "--iterations", "12", "--sampling.prompts", "6", "--sampling.rollouts", "4",
        "--eval.prompts", "0", "--method", "grpo,repo_r",
    ]  # fmt: skip
    command = [sys.executable, "-m", "entrostat.cli", "train"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, *flags, "--output", str(tmp_path / "a")],
        check=True, env=environment, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    run, kills, delay = tmp_path / "b", 0, 0.003
    arguments = [*flags, "--output", str(run)]
    while not (run / "final").exists():
        lines = _lines(run)
        process = subprocess.Popen([*command, *arguments], env=environment, stdout=-3, stderr=-3)
        while process.poll() is None and (kills >= 3 or _lines(run) < lines + 2):
            time.sleep(0.001)
        if process.poll() is None:
            time.sleep(delay)  # a different moment of the iteration each time
            process.send_signal(signal.SIGKILL)
            kills, delay = kills + 1, delay + 0.017
        process.wait()
        arguments = ["--resume", str(run)]
    assert kills == 3
    assert_same_run(tmp_path / "a", run)


def _lines(run: Path) -> int:
    path = run / "metrics.jsonl"
    return len(path.read_bytes().split(b"\n")) - 1 if path.exists() else 0


def test_a_longer_run_goes_on_from_a_finished_one(whole: Path, tmp_path: Path) -> None:
    train(small(tmp_path / "run", iterations=2, eval={"prompts": 0}))
    train(small(tmp_path / "run", iterations=4, eval={"prompts": 0}), resume=True)
    assert metrics(tmp_path / "run") == metrics(whole)
    assert_same_weights(tmp_path / "run", whole)


def test_two_processes_cannot_share_a_directory(tmp_path: Path) -> None:
    class Second(Progress):
        def iteration(self, iteration: int, metrics: dict) -> None:
            for resume in (True, False):  # not "is not empty": that one goes on
                with pytest.raises(ValueError, match="another process is training"):
                    train(config, resume=resume)
            raise Stop

    config = small(tmp_path / "run", eval={"prompts": 0})
    with pytest.raises(Stop):
        train(config, progress=Second())


@pytest.mark.parametrize("micro", [5, 12])
def test_micro_batches_add_up(tmp_path: Path, micro: int) -> None:
    """The same run with other micro-batches differs by rounding only."""
    settings = {"iterations": 1, "eval": {"prompts": 0}}
    one = train(small(tmp_path / "one", **settings, optim={"micro_batch": 128}))
    cut = train(small(tmp_path / "cut", **settings, optim={"micro_batch": micro}))
    # AdamW's first steps are +-lr wherever a gradient is not 0, so rounding of a tiny gradient
    # shows as up to 2 lr in a weight; the loss and the gradient norm tell the truth
    for key, value in metrics(one)[0].items():
        if key.startswith("mismatch/"):  # is rounding itself
            continue
        assert metrics(cut)[0][key] == pytest.approx(value, rel=2e-4, abs=1e-6), key


def test_strictly_on_policy_runs_one_update(tmp_path: Path) -> None:
    run = train(
        small(
            tmp_path / "run", method=["reinforce"], iterations=2, eval={"prompts": 0},
            optim={"epochs": 1, "minibatches": 1},
        )
    )  # fmt: skip
    assert [m["optim/updates"] for m in metrics(run)] == [1, 1]


class StartsWithFive(TargetSum):
    name = "starts_with_five"

    def score(self, completion: str, example: Example) -> float:
        return float(completion.startswith("5"))


def test_learning(tmp_path: Path) -> None:
    """A trivial task is learned quickly; the base opens with a 5 one time in nine."""
    config = small(
        tmp_path / "run", method=["grpo"], iterations=9, eval={"prompts": 0},
        sampling={"prompts": 4, "rollouts": 8}, optim={"lr": 2e-3},
    )  # fmt: skip
    rewards = [m["reward/mean"] for m in metrics(train(config, task=StartsWithFive()))]
    assert sum(rewards[:3]) / 3 < 0.35
    assert sum(rewards[-3:]) / 3 > 0.8


def test_rollouts_introduce_themselves_in_a_line(whole: Path) -> None:
    rollouts = es.load_rollouts(whole, 2)
    size = f"rollouts=24, tokens={rollouts.entropy.numel()}"  # 6 prompts x 4
    assert repr(rollouts) == f"Rollouts(iteration=2, {size})"


def test_equal_rewards_make_no_update(tmp_path: Path) -> None:
    run = train(small(tmp_path / "run", iterations=1), task=NothingToLearn())
    (line,) = metrics(run)
    assert line["rollout/zero_advantage_groups"] == 6
    assert line["optim/updates"] == 0
    assert_same_weights_as_base(run)
    assert not es.load_rollouts(run, 1).trained.any()


def assert_same_weights_as_base(run: Path) -> None:
    from entrostat.model_files import tiny_directory

    base = load_file(tiny_directory() / "model.safetensors")
    for name, tensor in weights(run).items():
        assert torch.equal(tensor, base[name]), name


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_trains(tmp_path: Path, precision: str) -> None:
    run = train(small(tmp_path / "run", iterations=2, precision=precision, eval={"prompts": 0}))
    last = metrics(run)[-1]
    assert math.isfinite(last["grad/norm"])
    assert 1e-7 < last["mismatch/logp_abs_mean"] < 0.05  # rounding shows, and is logged
    if precision == "fp16":
        assert last["optim/loss_scale"] >= 1
    assert any(
        not torch.equal(t, load_file_of_base()[n]) for n, t in weights(run).items()
    )  # it did train


def load_file_of_base() -> dict[str, torch.Tensor]:
    from entrostat.model_files import tiny_directory

    return load_file(tiny_directory() / "model.safetensors")


def test_lora_trains_adapters_and_saves_a_plain_model(tmp_path: Path) -> None:
    config = small(
        tmp_path / "run", iterations=2, lora={"rank": 4}, eval={"prompts": 0}, optim={"lr": 1e-3}
    )
    with pytest.raises(Stop):
        train(config, progress=StopAfter(1))
    train(config, resume=True)
    config.output = str(tmp_path / "once")
    once = train(config)
    assert_same_weights(once, tmp_path / "run")
    assert set(weights(once)) == set(load_file_of_base())
    saved = checkpoints.newest(once / "checkpoints")
    assert saved is not None
    assert all("lora_" in name for name in saved.tensors)


def test_gradient_checkpointing_changes_nothing(tmp_path: Path, whole: Path) -> None:
    run = train(small(tmp_path / "run", iterations=1, gradient_checkpointing=True))
    assert metrics(run)[0]["grad/norm"] == pytest.approx(metrics(whole)[0]["grad/norm"], rel=1e-4)


# rewards that are none


def stopping(tmp_path: Path, task: object, match: str) -> Path:
    run = tmp_path / "run"
    with pytest.raises(RunStopped, match=match):
        train(small(run, iterations=3, eval={"prompts": 0}), task=task)  # type: ignore[arg-type]
    return run


class FailsLater(TargetSum):
    """Good for one iteration of 24 rollouts, then what `bad` gives for the next `many`."""

    calls = 0

    def __init__(self, many: int) -> None:
        super().__init__()
        self.many = many

    def bad(self) -> object:
        raise ZeroDivisionError("no such sum")

    def score(self, completion: str, example: Example) -> float:
        self.calls += 1
        fails = 24 < self.calls <= 24 + self.many
        return self.bad() if fails else float(self.calls % 2)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, "nan"),
        (None, "None"),
        ([1.0, 2.0], r"\[1.0, 2.0\]"),
        (10**400, "1000"),
        (1e300, r"1e\+300"),
        (torch.ones(2), "tensor"),
    ],
)
def test_rewards_that_are_no_numbers_stop_before_the_update(
    tmp_path: Path, value: object, shown: str
) -> None:
    task = FailsLater(24)
    task.bad = lambda: value  # type: ignore[method-assign]
    run = stopping(tmp_path, task, f"iteration 2, rollout 0 .*the reward is {shown}")
    assert len(metrics(run)) == 1
    saved = checkpoints.newest(run / "checkpoints")
    assert saved is not None
    assert saved.iteration == 1


def test_a_reward_function_that_always_raises_stops_and_names_the_rollout(tmp_path: Path) -> None:
    stopping(tmp_path, FailsLater(24), "iteration 2, rollout 0 .*ZeroDivisionError: no such sum")


def test_a_reward_function_that_raises_costs_that_rollout(tmp_path: Path) -> None:
    run = train(small(tmp_path / "run", iterations=3, eval={"prompts": 0}), task=FailsLater(5))
    assert [line["reward/failed"] for line in metrics(run)] == [0, 5, 0]
    rewards = es.load_rollouts(run, 2).rewards
    assert rewards.tolist() == [0.0] * 5 + [float(call % 2) for call in range(30, 49)]


class Batched(TargetSum):
    def score_batch(self, completions: list[str], examples: list[Example]) -> list[float]:
        return [0.5] * (len(completions) - 1)


def test_rewards_of_the_wrong_length(tmp_path: Path) -> None:
    stopping(tmp_path, Batched(), "gave 23 rewards for 24 rollouts")


# what else may go wrong


def test_nan_stops_before_the_step_and_keeps_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, calls = Objective.loss, 0

    def overflows(self: Objective, *args: Any) -> LossOutput:
        nonlocal calls
        calls += 1
        out = loss(self, *args)
        return replace(out, loss=out.loss * (math.inf if calls > 4 else 1))  # 4 updates per batch

    monkeypatch.setattr(Objective, "loss", overflows)
    run = tmp_path / "run"
    refused(
        lambda: train(small(run, method=["rloo", "ppo"], iterations=3, eval={"prompts": 0})),
        "iteration 2, update 1",
        error=RunStopped,
    )
    saved = checkpoints.newest(run / "checkpoints")
    assert saved is not None
    assert saved.iteration == 1
    assert all(torch.isfinite(t).all() for t in saved.tensors.values())


def test_a_full_disk_stops_with_what_was_written_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = checkpoints.save_file
    calls = 0

    def full(tensors: dict, path: Path, metadata: dict) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(tensors, path, metadata=metadata)

    monkeypatch.setattr(checkpoints, "save_file", full)
    run = tmp_path / "run"
    refused(lambda: train(small(run, eval={"prompts": 0})), "--resume", error=RunStopped)
    saved = checkpoints.newest(run / "checkpoints")
    assert saved is not None
    assert saved.iteration == 1
    assert not list((run / "checkpoints").glob(".*"))


def test_a_prompt_longer_than_the_context(tmp_path: Path) -> None:
    class Long(TargetSum):
        first = 0

        def example(self, index: int, split: str) -> Example:
            return Example("1" * 60 if index >= self.first else "9/3:", (9, 3))

    words = "60 tokens and 13 new ones exceed the model's context of 64"
    with pytest.raises(ValueError, match=words):  # bad input: seen before the run begins
        train(small(tmp_path / "never"), task=Long())
    assert not (tmp_path / "never").exists()
    later = Long()
    later.first = 6  # in the second iteration
    run = stopping(tmp_path, later, words)
    assert len(metrics(run)) == 1


def test_characters_that_the_tokenizer_leaves_out_are_told(tmp_path: Path) -> None:
    class Words(TargetSum):
        def example(self, index: int, split: str) -> Example:
            return Example("Sum: 9/3:", (9, 3))

    words = "tokenizer of tiny leaves out S, m, u: of 'Sum: 9/3:' the policy reads ':9/3:'"
    with pytest.warns(UserWarning, match=words):
        train(small(tmp_path, iterations=1), task=Words())


def test_an_empty_data_set(tmp_path: Path) -> None:
    class Empty(TargetSum):
        def size(self, split: str) -> int:
            return 0

    refused(lambda: train(small(tmp_path / "run"), task=Empty()), "the data set is empty")
    assert not (tmp_path / "run").exists()


def test_a_group_of_one_is_found_before_anything_is_written(tmp_path: Path) -> None:
    refused(lambda: train(small(tmp_path / "run", sampling={"rollouts": 1})), "sampling.rollouts")
    assert not (tmp_path / "run").exists()


def test_reinforce_refuses_several_updates(tmp_path: Path) -> None:
    refused(lambda: train(small(tmp_path / "run", method=["reinforce"])), "`reinforce`", "not 4")


def test_a_directory_with_another_run_is_left_alone(whole: Path) -> None:
    before = (whole / "metrics.jsonl").read_text()
    refused(lambda: train(small(whole)), "is not empty")
    assert (whole / "metrics.jsonl").read_text() == before


def test_a_metrics_line_cut_short_by_a_full_disk_is_dropped_on_resume(
    whole: Path, tmp_path: Path
) -> None:
    config = small(tmp_path / "run")
    with pytest.raises(Stop):
        train(config, progress=StopAfter(2))
    with open(tmp_path / "run/metrics.jsonl", "a") as file:
        file.write('{"iteration": 3, "entropy/exa')
    train(config, resume=True)
    assert_same_run(whole, tmp_path / "run")


def test_metrics_on_a_full_disk(tmp_path: Path) -> None:
    from entrostat.logs.lines import JsonLines

    refused(
        lambda: JsonLines(Path("/dev/full")).append([{"iteration": 1}]),
        "dev/full",
        error=RunStopped,
    )


@pytest.mark.long
def test_a_killed_extension_is_not_taken_for_finished(whole: Path, tmp_path: Path) -> None:
    """The old final model is there, the last metrics line too, but not the new model."""
    train(small(tmp_path / "run", iterations=2))
    config = small(tmp_path / "run", iterations=4)

    class InTheLastEvaluation(Progress):
        def note(self, text: str) -> None:
            raise Stop

    with pytest.raises(Stop):
        train(config, resume=True, progress=InTheLastEvaluation())
    assert len(metrics(tmp_path / "run")) == 4
    train(config, resume=True)
    assert_same_weights(whole, tmp_path / "run")


def test_resume_without_a_readable_checkpoint_deletes_nothing(tmp_path: Path) -> None:
    config = small(tmp_path / "run", eval={"prompts": 0})
    with pytest.raises(Stop):
        train(config, progress=StopAfter(3))
    before = metrics(tmp_path / "run")
    files = sorted((tmp_path / "run/checkpoints").iterdir())
    for file in files:
        file.write_bytes(b"damaged")
    refused(lambda: train(config, resume=True), "no checkpoint in", error=RunStopped)
    for file in files:
        file.unlink()
    refused(lambda: train(config, resume=True), "3 iterations but no checkpoint", error=RunStopped)
    assert metrics(tmp_path / "run") == before
    assert len(list((tmp_path / "run/rollouts").glob("*.safetensors"))) == 3


def test_warm_up_is_logged_also_without_an_update(tmp_path: Path) -> None:
    class Nothing(TargetSum):
        def score(self, completion: str, example: Example) -> float:
            return 1.0

    settings = {"iterations": 2, "eval": {"prompts": 0}, "optim": {"lr": 1e-3, "warmup": 10}}
    idle = metrics(train(small(tmp_path / "idle", **settings), task=Nothing()))
    assert [m["optim/lr"] for m in idle] == [pytest.approx(1e-4)] * 2
    busy = metrics(train(small(tmp_path / "busy", **settings)))
    assert [m["optim/lr"] for m in busy] == pytest.approx([4e-4, 8e-4])  # 4 updates each


def test_minibatches_are_as_many_as_asked_for(tmp_path: Path) -> None:
    run = train(
        small(
            tmp_path / "run", iterations=1, eval={"prompts": 0},
            sampling={"prompts": 6, "rollouts": 4}, optim={"epochs": 1, "minibatches": 9},
        )
    )  # fmt: skip
    kept = 4 * (6 - metrics(run)[0]["rollout/zero_advantage_groups"])
    assert kept > 9
    assert metrics(run)[0]["optim/updates"] == 9


def test_minibatches_of_one_size_are_fewer_where_groups_have_no_signal(tmp_path: Path) -> None:
    # 24 rollouts in 6 minibatches of 4, a group each: two passes over the groups that are left
    run = train(
        small(
            tmp_path / "run", iterations=3, eval={"prompts": 0},
            sampling={"prompts": 6, "rollouts": 4},
            optim={"epochs": 2, "minibatches": 6, "keep_size": True},
        )
    )  # fmt: skip
    lines = metrics(run)
    assert [m["optim/updates"] for m in lines] == [
        2 * (6 - m["rollout/zero_advantage_groups"]) for m in lines
    ]
    assert any(m["rollout/zero_advantage_groups"] for m in lines)


def test_minibatches_of_whole_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 epochs of 3 minibatches, each of the 4 rollouts of 2 prompts, drawn anew."""
    seen: list[list[int]] = []

    def watched(state, batch, *more, **others):
        seen.append(batch.group.tolist())
        return update(state, batch, *more, **others)

    update = updates.update
    monkeypatch.setattr(updates, "update", watched)
    train(
        small(
            tmp_path / "run", iterations=2, method=["dapo", "thermostat"], eval={"prompts": 0},
            sampling={"prompts": 6, "rollouts": 4},
            optim={"epochs": 2, "minibatches": 3, "whole_groups": True},
        )
    )  # fmt: skip
    assert len(seen) == 12
    assert all(sorted(map(groups.count, set(groups))) == [4, 4] for groups in seen)
    for first in range(0, 12, 3):
        assert len({group for groups in seen[first : first + 3] for group in groups}) == 6
    assert len({tuple(sorted(set(groups))) for groups in seen}) > 3


@pytest.mark.parametrize(
    ("method", "optim", "whole"),
    [
        ("thermostat", {"epochs": 1}, True),
        ("thermostat", {"epochs": 1, "whole_groups": False}, False),
        ("thermostat", {"epochs": 2}, False),
        ({"name": "thermostat", "knob": "entropy_coef"}, {"epochs": 1}, False),
        ("grpo", {"epochs": 1}, False),
    ],
)
def test_in_one_epoch_the_multiplier_has_prompts_that_no_update_has_seen(
    tmp_path: Path, method: Any, optim: dict[str, Any], whole: bool
) -> None:
    config = small(tmp_path / "run", method=[method], optim=optim, eval={"prompts": 0})
    assemble(config, "lab", FIELDS, None, lambda text: None)
    assert config.optim.whole_groups is whole


class Problems:
    """Of REPO's training data as many as it has."""

    name, splits = "problems", ("train",)

    def size(self, split: str) -> int:
        return 563


def test_an_iteration_asks_no_problem_twice_and_an_epoch_every_one_once(tmp_path: Path) -> None:
    config = small(tmp_path, sampling={"prompts": 128, "rollouts": 6})
    asked = [drawn(Problems(), config, i) for i in range(1, 201)]  # REPO's 200 iterations
    assert all(len(set(each)) == 128 for each in asked)
    whole = [index for each in asked for index in each]
    for first in range(0, len(whole) - 563, 563):
        assert sorted(whole[first : first + 563]) == list(range(563))


def test_logits_that_are_not_finite_stop_the_run(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from entrostat.model_files import tiny_directory

    model = AutoModelForCausalLM.from_pretrained(tiny_directory())
    with torch.no_grad():
        model.model.norm.weight.fill_(3e38)
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(tiny_directory()).save_pretrained(tmp_path / "model")
    refused(
        lambda: train(small(tmp_path / "run", model=str(tmp_path / "model"), eval={"prompts": 0})),
        "logits",
        error=(RunStopped, ValueError),
    )


def test_dropout_is_off_however_a_model_keeps_it(tmp_path: Path) -> None:
    """OPT has its dropout as a plain number; checkpointing must not wake it."""
    from transformers import OPTConfig, OPTForCausalLM

    from entrostat.models.pretrain import tokenizer

    OPTForCausalLM(
        OPTConfig(
            vocab_size=15, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=2,
            word_embed_proj_dim=32, max_position_embeddings=64, dropout=0.5, eos_token_id=1,
            bos_token_id=1, pad_token_id=0,
        )
    ).save_pretrained(tmp_path / "model")  # fmt: skip
    tokenizer().save_pretrained(tmp_path / "model")
    run = train(
        small(
            tmp_path / "run", method=["grpo"], model=str(tmp_path / "model"), iterations=2,
            task={"name": "target_sum"}, gradient_checkpointing=True, eval={"prompts": 0},
            optim={"epochs": 1, "minibatches": 1},
        ),
        task=StartsWithFive(),
    )  # fmt: skip
    for line in metrics(run):
        assert line["mismatch/logp_abs_max"] < 1e-4
        if line["optim/updates"]:
            assert line["ratio/mean"] == pytest.approx(1, abs=1e-4)
            assert line["clip/high"] == line["clip/low"] == 0


@pytest.mark.parametrize("kind", ["Lfm2", "Mamba"])
def test_models_with_other_caches(tmp_path: Path, kind: str) -> None:
    """A hybrid's cache cannot branch, so prompts are repeated; Mamba has none of that kind."""
    import transformers

    from entrostat.models.loading import load_policy
    from entrostat.models.pretrain import tokenizer

    settings = {
        "Lfm2": {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 32,
                 "layer_types": ["conv", "full_attention"]},
        "Mamba": {"state_size": 4},
    }  # fmt: skip
    configuration = getattr(transformers, f"{kind}Config")(
        vocab_size=15, hidden_size=32, num_hidden_layers=2, eos_token_id=1, pad_token_id=0,
        **settings[kind],
    )  # fmt: skip
    getattr(transformers, f"{kind}ForCausalLM")(configuration).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    config = small(tmp_path / "run", model=str(tmp_path / "model"), iterations=1)
    if kind == "Mamba":
        refused(lambda: load_policy(config), "cannot sample from it")
        return
    assert not load_policy(config).shares
    (line,) = metrics(train(config, task=StartsWithFive()))
    assert line["mismatch/logp_abs_max"] < 1e-3


def test_weights_that_overflow_are_not_saved(tmp_path: Path) -> None:
    """Strictly on-policy, the last update of a batch is followed by no loss that could show it."""
    config = small(
        tmp_path / "run", method=["grpo"], iterations=4, eval={"prompts": 0},
        optim={"epochs": 1, "minibatches": 1, "lr": 1e38},
    )  # fmt: skip
    with pytest.raises(RunStopped, match=r"(is|are) not finite"):
        train(config)
    saved = checkpoints.newest(tmp_path / "run/checkpoints")
    if saved is not None:
        assert all(torch.isfinite(t).all() for t in saved.tensors.values())


class WithoutNumber(Method):
    """A figure that is no number in the second iteration."""

    def init(self) -> ControlState:
        return ControlState(0.0, None)

    def observe(self, state: ControlState, seen: object) -> ControlState:
        return replace(state, value=state.value + 1)

    def metrics(self, state: ControlState) -> dict[str, float]:
        return {"mine/ratio": math.nan if state.value == 2 else state.value, "mine/far": math.inf}


def test_a_figure_that_is_no_number_is_left_out_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "without_number", dataclass(frozen=True)(WithoutNumber))
    run = train(small(tmp_path / "run", method=["grpo", "without_number"], iterations=3))
    assert [line.get("mine/ratio") for line in metrics(run)] == [1.0, None, 3.0]
    assert not any("mine/far" in line for line in metrics(run))
    assert checkpoints.newest(run / "checkpoints").iteration == 3  # type: ignore[union-attr]


def test_without_progress_nothing_is_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logging.enable_progress_bar()
    train(small(tmp_path / "run", iterations=1, eval={"prompts": 0}))
    assert capfd.readouterr() == ("", "")
    assert logging.is_progress_bar_enabled()  # the caller's own stay
