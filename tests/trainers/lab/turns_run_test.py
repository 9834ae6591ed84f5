"""Whole runs with environments: as ordinary ones where there is one turn, failures, learning."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import entrostat as es
from builders import refused
from entrostat.agents import Reply
from entrostat.agents.tool_sum import ToolSum
from entrostat.errors import RunStopped
from entrostat.tasks import Example
from entrostat.tasks.target_sum import TargetSum
from entrostat.trainers.lab import train
from lab_runs import assert_same_run, metrics, small
from lab_turns import Fails, Talks
from long_cases import keep
from stopping import Stop, StopAfter


class OneTurn(TargetSum):
    """`target_sum` as a world of one turn, whose episode always ends."""

    name = "target_sum"

    def turns(self, split: str) -> int:
        return 1

    def environment(self, example: Example) -> Any:
        return Scores(self, example)


class Scores:
    def __init__(self, task: TargetSum, example: Example) -> None:
        self.task, self.example, self.text = task, example, ""

    def reply(self, text: str) -> Reply:
        self.text = text
        return Reply("never seen", done=True)

    def reward(self, training: bool) -> float:
        return self.task.score(self.text, self.example)

    def close(self) -> None:
        pass


OF_TURNS = {"rollout/turns_mean": 1.0, "rollout/observed_mean": 0.0}


@pytest.mark.parametrize("measure", keep([True, False], True))
def test_one_turn_is_an_ordinary_rollout_bit_for_bit(tmp_path: Path, measure: bool) -> None:
    """The whole run: metrics, evaluations, dumps, weights; several sampling batches."""
    how = {"sampling": {"batch": 8, "measure": measure}, "iterations": 3, "eval": {"samples": 4}}
    plain = train(small(tmp_path / "plain", **how), task=TargetSum())
    turns = train(small(tmp_path / "turns", **how), task=OneTurn())
    for a, b in zip(metrics(plain), metrics(turns), strict=True):
        # a world is over where a completion is cut at its limit
        assert a | OF_TURNS | {"rollout/truncated": 0.0} == b
    assert (plain / "evaluation.jsonl").read_text() == (turns / "evaluation.jsonl").read_text()
    assert (plain / "answers.jsonl").read_text() == (turns / "answers.jsonl").read_text()
    weights = [run / "final/model.safetensors" for run in (plain, turns)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    a, b = es.load_rollouts(plain, 3), es.load_rollouts(turns, 3)
    assert b.sampled is None
    assert (a.completions, a.prompts) == (b.completions, b.prompts)
    for name in ("rewards", "start", "tokens", "logp", "sampler_logp", "entropy", "advantage"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name


@pytest.mark.long
def test_a_run_that_was_cut_short_goes_on_exactly(tmp_path: Path) -> None:
    config = small(tmp_path / "run", task={"name": "tool_sum"})
    with pytest.raises(Stop):
        train(config, progress=StopAfter(2))
    cut = train(config, resume=True)
    config.output = str(tmp_path / "once")
    assert_same_run(train(config), cut)


def test_a_dump_holds_what_the_world_said(tmp_path: Path) -> None:
    run = train(small(tmp_path / "run", task={"name": "tool_sum"}, iterations=1))
    r = es.load_rollouts(run)
    assert r.sampled is not None
    assert 0 < r.sampled.sum() < len(r.tokens)
    for values in (r.logp, r.sampler_logp, r.entropy, r.advantage):
        assert torch.equal(values.isnan(), ~r.sampled)
    (line,) = metrics(run)
    assert line["rollout/tokens"] == int(r.sampled.sum())
    assert line["entropy/exact"] == pytest.approx(float(r.entropy[r.sampled].mean()), rel=1e-5)
    for i in range(len(r)):
        here = r.rows(i)
        ids = r.tokens[here].tolist()
        assert "".join(r.pieces[t] for t in ids if t != ids[-1]) == r.completions[i]


def test_a_world_that_fails_costs_its_rollout(tmp_path: Path) -> None:
    config = small(
        tmp_path / "run", iterations=2, eval={"prompts": 0}, scoring={"environment_timeout": 0.5},
        sampling={"rollouts": 2},
    )  # fmt: skip
    run = train(config, task=Fails())
    # prompts 0 to 5 of two rollouts each, then prompts 6 to 11
    assert [line["reward/failed"] for line in metrics(run)] == [6, 0]
    r = es.load_rollouts(run, 1)
    assert r.rewards[:6].tolist() == [0] * 6
    assert (r.rewards[6:] > 0.5).all()
    assert not r.finished[:6].any()
    assert r.finished[8:].any()
    assert (r.start.diff() > 0).all()  # their first turn was sampled


class Broken(Talks):
    def environment(self, example: Example) -> Any:
        raise KeyError("database")


def test_worlds_that_always_fail_stop_the_run(tmp_path: Path) -> None:
    config = small(tmp_path / "run", eval={"prompts": 0})
    refused(lambda: train(config, task=Broken()), "KeyError:", "'database'", error=RunStopped)


@pytest.mark.parametrize("method", keep([["grpo", "clip_cov"], ["prime"]], ["grpo", "clip_cov"]))
def test_other_consumers_see_sampled_tokens_only(tmp_path: Path, method: list[str]) -> None:
    """An analysis (whose influences add up as they must) and a second model that gives rewards."""
    config = small(
        tmp_path / "run", method=method, task={"name": "tool_sum"}, iterations=1,
        eval={"prompts": 0}, analyze={"every": 1}, sampling={"prompts": 4},
    )  # fmt: skip
    run = train(config)
    (line,) = metrics(run)
    r = es.load_rollouts(run)
    assert r.sampled is not None
    assert r.influence is not None
    assert r.change is not None
    for values in (r.influence, r.change):
        assert torch.equal(values.isnan(), ~r.sampled)
    assert line["influence/sum"] == pytest.approx(line["influence/predicted"], rel=1e-3)
    assert float(r.influence[r.sampled].sum()) == pytest.approx(line["influence/sum"], rel=1e-3)
    assert line["change/mean"] == pytest.approx(float(r.change[r.sampled].mean()), rel=1e-3)


class Echo(Talks):
    """Rewards a second turn that says the digit that the world has just said, and nothing else."""

    name = "echo"

    def __init__(self) -> None:
        TargetSum.__init__(self, k_max=3)

    def turns(self, split: str) -> int:
        return 2

    def max_new_tokens(self, split: str) -> int:
        return 6

    def environment(self, example: Example) -> Any:
        return Says(str(random.Random(example.data["index"]).randint(1, 9)))


class Says:
    def __init__(self, digit: str) -> None:
        self.digit, self.said = digit, []

    def reply(self, text: str) -> Reply:
        self.said.append(text)
        return Reply(f"{self.digit}/1:", done=len(self.said) == 2)

    def reward(self, training: bool) -> float:
        return float(self.said[-1] == self.digit)

    def close(self) -> None:
        pass


def curve(path: Path, task: Any, iterations: int, **changes: Any) -> list[float]:
    """The mean reward of each iteration."""
    config = small(
        path, method=["grpo"], iterations=iterations, sampling={"prompts": 16, "rollouts": 8},
        eval={"prompts": 0}, save={"checkpoints": 0, "rollouts_every": 0}, **changes,
    )  # fmt: skip
    return [line["reward/mean"] for line in metrics(train(config, task=task))]


@pytest.mark.slow
def test_a_policy_learns_to_use_what_it_was_told(tmp_path: Path) -> None:
    """The digit stands in the world's reply alone: deaf to it, one in nine is right at best."""
    rewards = curve(tmp_path / "run", Echo(), 40, optim={"lr": 1e-3})
    assert sum(rewards[:5]) / 5 < 0.18
    assert sum(rewards[-5:]) / 5 > 0.25


@pytest.mark.slow
def test_the_tiny_policy_learns_to_call_a_tool(tmp_path: Path) -> None:
    """`tool_sum`: a right call is worth 1/2. The answer after it, a sum in a new place, is not
    learned in so few iterations."""
    rewards = curve(tmp_path / "run", ToolSum(k_max=3), 30)
    assert sum(rewards[:5]) / 5 < 0.27
    assert sum(rewards[-10:]) / 10 > 0.28
