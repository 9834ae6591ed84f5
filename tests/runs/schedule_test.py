"""The learning rate: beside torch's schedulers, over skipped batches and resumes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    SequentialLR,
)

from entrostat.config import TrainConfig, from_dict
from entrostat.runs.progress import Progress
from entrostat.runs.schedule import learning_rate_at
from entrostat.tasks import Example
from entrostat.tasks.target_sum import TargetSum
from entrostat.trainers.lab import train
from lab_runs import assert_same_run, metrics, small
from stopping import Stop, StopAfter

LR, ITERATIONS, UPDATES = 3e-4, 10, 4  # 40 updates planned
N = ITERATIONS * UPDATES


def config(schedule: str, warmup: int = 0, lr_min: float = 0.0) -> TrainConfig:
    optim = {"lr": LR, "schedule": schedule, "warmup": warmup, "lr_min": lr_min}
    return from_dict({"iterations": ITERATIONS, "optim": {**optim, "epochs": 2, "minibatches": 2}})


def rates(settings: TrainConfig) -> list[float]:
    """Of a run in which every update is made."""
    return [learning_rate_at(settings, u, u) for u in range(N)]


def stepped(make, steps: int = N) -> list[float]:
    """The rates that a scheduler gives to updates 0, 1, ..."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler: LRScheduler = make(optimizer)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def torchs(schedule: str, warmup: int, lr_min: float):
    def make(optimizer) -> LRScheduler:
        steps = N - warmup
        after = {
            "constant": lambda: ConstantLR(optimizer, 1.0, 1),
            "linear": lambda: LinearLR(optimizer, 1.0, lr_min, steps),
            "cosine": lambda: CosineAnnealingLR(optimizer, steps, lr_min * LR),
        }[schedule]
        if not warmup:
            return after()
        rise = LinearLR(optimizer, 1 / warmup, 1.0, warmup - 1)
        return SequentialLR(optimizer, [rise, after()], [warmup])

    return make


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # torch's own, in SequentialLR
@pytest.mark.parametrize("lr_min", [0.0, 0.1])
@pytest.mark.parametrize("warmup", [0, 7])
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_it_is_torchs(schedule: str, warmup: int, lr_min: float) -> None:
    expected = stepped(torchs(schedule, warmup, lr_min))
    assert rates(config(schedule, warmup, lr_min)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_after_the_warm_up_it_is_what_trl_runs(schedule: str) -> None:
    from transformers import get_scheduler

    def make(optimizer):
        return get_scheduler(schedule, optimizer, num_warmup_steps=5, num_training_steps=N)

    assert rates(config(schedule, 5))[5:] == pytest.approx(stepped(make)[5:], rel=1e-9)


def test_a_warm_up_as_long_as_the_run_never_falls() -> None:
    assert rates(config("cosine", N)) == pytest.approx([LR * (u + 1) / N for u in range(N)])


@pytest.mark.parametrize(
    ("optim", "match"),
    [
        ({"schedule": "cosin"}, "value of optim.schedule.*Did you mean 'cosine'"),
        ({"lr_min": 1.5}, r"optim.lr_min must be in \[0, 1\], got 1.5"),
    ],
)
def test_bad_settings(optim: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        from_dict({"optim": optim})


class SilentAtFirst(TargetSum):
    """Two batches of 24 rollouts without a signal, then the task itself."""

    scored = 0

    def score(self, completion: str, example: Example) -> float:
        self.scored += 1
        return 1.0 if self.scored <= 48 else super().score(completion, example)


@pytest.mark.long
def test_skipped_batches_leave_the_schedule_where_it_is(tmp_path: Path) -> None:
    settings = {
        "iterations": 4, "method": ["grpo"], "eval": {"prompts": 0},
        "optim": {"lr": LR, "schedule": "linear"},
    }  # fmt: skip
    idle = metrics(train(small(tmp_path / "idle", **settings), task=SilentAtFirst()))
    busy = metrics(train(small(tmp_path / "busy", **settings)))
    assert [m["optim/updates"] for m in idle] == [0, 0, 4, 4]
    # the last of an iteration's four places among 16; of an idle one, its first
    assert [m["optim/lr"] for m in busy] == pytest.approx(
        [LR * (1 - p / 16) for p in (3, 7, 11, 15)]
    )
    assert [m["optim/lr"] for m in idle] == pytest.approx(
        [LR * (1 - p / 16) for p in (0, 4, 11, 15)]
    )
    # the warm-up counts updates made: AdamW has seen none before the third batch
    settings["optim"] = {"lr": LR, "warmup": 8}
    idle = metrics(train(small(tmp_path / "warm", **settings), task=SilentAtFirst()))
    assert [m["optim/lr"] for m in idle] == pytest.approx([LR * n / 8 for n in (1, 1, 4, 8)])


def test_resume_is_exact_under_a_schedule(tmp_path: Path) -> None:
    optim = {"schedule": "cosine", "lr_min": 0.1, "warmup": 6}
    train(small(tmp_path / "whole", optim=optim))
    parts = small(tmp_path / "parts", optim=optim)
    with pytest.raises(Stop):
        train(parts, progress=StopAfter(2))
    train(parts, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_run_made_longer_says_that_its_schedule_is(tmp_path: Path) -> None:
    class Told(Progress):
        def __init__(self) -> None:
            self.facts: list[str] = []

        def fact(self, text: str) -> None:
            self.facts.append(text)

    def resumed(schedule: str) -> list[str]:
        settings = {"eval": {"prompts": 0}, "optim": {"schedule": schedule}}
        train(small(tmp_path / schedule, iterations=1, **settings))
        told = Told()
        train(small(tmp_path / schedule, iterations=2, **settings), progress=told, resume=True)
        return [fact for fact in told.facts if "learning rate" in fact]

    assert resumed("constant") == []
    (said,) = resumed("cosine")
    assert "now ends at iteration 2, not 1" in said
