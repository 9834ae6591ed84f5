"""Sampling that stops waiting: what is kept, what is dropped, and what is said of it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import entrostat as es
from builders import refused
from entrostat.agents import Reply
from entrostat.config import TrainConfig, from_dict, load
from entrostat.data.generation import answer
from entrostat.data.prompts import encode
from entrostat.models.policy import Policy
from entrostat.models.rollout import Sequences, of_dropped, sample
from entrostat.models.stops import EarlyStop, early_stop_of
from entrostat.runs.resolve import objective_of
from entrostat.tasks import Example
from entrostat.tasks.target_sum import TargetSum
from entrostat.trainers.lab import train
from lab_runs import assert_same_run, metrics, small
from stopping import Stop, StopAfter


def run(policy: Policy, enough: EarlyStop | None, **how: Any) -> Sequences:
    prompts = [policy.encode(p, False, "") for p in ("23/4:", "6/3:", "40/6:", "17/5:")]
    return sample(
        policy.model, prompts, rollouts=6, max_new_tokens=13, eos=policy.eos, pad=policy.pad,
        generator=torch.Generator().manual_seed(5), temperature=3.0, enough=enough, **how,
    )  # fmt: skip


def test_enough_by_hand() -> None:
    prompt = torch.tensor([3, 3, 3, 4, 4, 4])

    def reached(ended: list[int], group: int, share: float) -> bool:
        return EarlyStop(group, share).reached(torch.tensor(ended).bool(), prompt)

    assert reached([1, 1, 0, 1, 0, 1], 2, 0.5)
    assert not reached([1, 1, 0, 1, 0, 1], 2, 0.7)  # 4 of 6
    assert not reached([1, 1, 1, 1, 0, 0], 2, 0.5)  # one of the second prompt
    assert not reached([1, 1, 1, 0, 0, 0], 1, 0.5)
    assert reached([1, 1, 1, 1, 1, 1], 3, 1.0)
    eleven = torch.arange(20) < 11  # .55 of 20 are 11, though .55 * 20 is above that in binary
    assert EarlyStop(1, 0.55).reached(eleven, torch.zeros(20, dtype=torch.int64))


def stopped_at(lengths: Tensor, prompt: Tensor, group: int, share: float) -> int:
    """The first step after which so many are in, from the lengths that all would have had."""
    for step in range(1, int(lengths.max()) + 1):
        ended = lengths <= step
        counts = [int(ended[prompt == p].sum()) for p in prompt.unique()]
        if min(counts) >= group and int(ended.sum()) >= share * len(lengths):
            return step
    raise AssertionError


@pytest.mark.parametrize(("group", "share"), [(4, 0.9), (2, 0.5), (6, 0.1), (1, 1.0)])
@pytest.mark.parametrize("exact", [False, True])
def test_what_is_in_is_what_would_have_been(
    policy: Policy, group: int, share: float, exact: bool
) -> None:
    """Against the same random numbers with all waited for: rollouts in are equal, others begun."""
    whole = run(policy, None, exact=exact)
    part = run(policy, EarlyStop(group, share), exact=exact)
    lengths = whole.mask.sum(-1)
    step = stopped_at(lengths, whole.prompt, group, share)
    assert part.dropped.tolist() == (lengths > step).tolist()
    assert part.dropped.any() == (share < 1 and group < 6)
    assert part.mask.sum(-1).tolist() == lengths.clamp(max=step).tolist()
    T = part.mask.shape[1]
    assert torch.equal(part.tokens[part.attention > 0], whole.tokens[:, : part.tokens.shape[1]][
        part.attention > 0
    ])  # fmt: skip
    assert torch.equal(part.sampler_logp, whole.sampler_logp[:, :T] * part.mask)
    assert torch.equal(part.finished, whole.finished & ~part.dropped)
    figures = of_dropped(part)
    assert figures["rollout/dropped"] == int((lengths > step).sum())
    assert ("rollout/dropped_length_mean" in figures) == bool(part.dropped.any())


def test_lengths_of_the_dropped_by_hand() -> None:
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    sequences = Sequences(
        torch.zeros(4, 5, dtype=torch.int64), torch.ones(4, 5, dtype=torch.int64), 1, mask,
        torch.zeros(4, 4), torch.ones(4).bool(), torch.zeros(4, dtype=torch.int64),
        dropped=torch.tensor([True, False, True, True]),
    )  # fmt: skip
    assert of_dropped(sequences) == {
        "rollout/dropped": 3, "rollout/dropped_length_mean": 3, "rollout/dropped_length_min": 2,
        "rollout/dropped_length_max": 4,
    }  # fmt: skip
    none = replace(sequences, dropped=torch.zeros(4).bool())
    assert of_dropped(none) == {"rollout/dropped": 0}
    assert of_dropped(replace(sequences, dropped=None)) == {}


def config_of(output: Path, **changes: Any) -> TrainConfig:
    sampling = {"rollouts": 6, "temperature": 3.0, "enough": {"group": 3, "share": 0.6}}
    return small(output, sampling=sampling, **changes)


@pytest.mark.parametrize("method", [["grpo"], ["rloo"]])
def test_advantages_of_groups_of_unequal_size(tmp_path: Path, method: list[str]) -> None:
    """What was trained on, from the dump, by brute force in float64."""
    path = train(
        config_of(
            tmp_path / "run", method=method, iterations=2, eval={"prompts": 0},
            optim={"epochs": 1, "minibatches": 1},
        )
    )  # fmt: skip
    for line in metrics(path):
        r = es.load_rollouts(path, line["iteration"])
        sizes = torch.bincount(r.group)
        assert len(sizes) == 6
        assert int(sizes.min()) >= 3
        assert len(r) == 36 - line["rollout/dropped"] >= 0.6 * 36
        assert len(sizes.unique()) > 1
        longest = int(r.start.diff().max())
        assert line["rollout/dropped_length_mean"] == longest == line["rollout/length_max"]
        for g in range(6):
            rows = (r.group == g).nonzero()[:, 0].tolist()
            R = [float(r.rewards[i]) for i in rows]
            n, mean = len(R), sum(R) / len(R)
            std = math.sqrt(sum((x - mean) ** 2 for x in R) / (n - 1))
            for i, x in zip(rows, R, strict=True):
                if method == ["grpo"]:
                    expected = (x - mean) / (std + 1e-6)
                else:
                    expected = x - (sum(R) - x) / (n - 1)
                A = r.advantage[r.rows(i)]
                torch.testing.assert_close(A, torch.full_like(A, expected), atol=1e-5, rtol=1e-5)


@pytest.mark.long
def test_a_run_that_drops_goes_on_exactly(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run", iterations=3)
    with pytest.raises(Stop):
        train(config, progress=StopAfter(1))
    cut = train(config, resume=True)
    config.output = str(tmp_path / "once")
    once = train(config)
    assert_same_run(once, cut)
    assert any(line["rollout/dropped"] > 0 for line in metrics(once))


class Ends(TargetSum):
    """A world that is over when the policy says a 7, and else asks again; two turns at most."""

    name = "ends"

    def turns(self, split: str) -> int:
        return 2

    def environment(self, example: Example) -> Any:
        return Asks()


class Asks:
    def reply(self, text: str) -> Reply:
        return Reply("5/2:", done="7" in text)

    def reward(self, training: bool) -> float:
        return 1.0

    def close(self) -> None:
        pass


def test_between_turns_it_counts_who_is_done(policy: Policy) -> None:
    task, config = Ends(), TrainConfig()
    examples = [task.example(i, "train") for i in range(3)]
    prompts = encode(policy, config, examples, 13)

    def ask(enough: EarlyStop | None) -> Any:
        return answer(
            policy, config, task, "train", examples, prompts, rollouts=6, training=True,
            generator=torch.Generator().manual_seed(1), enough=enough,
        )  # fmt: skip

    whole = ask(None)
    ended = ["7" in text.split("5/2:")[0] for text in whole.texts]
    share, least = sum(ended) / 18, min(sum(ended[i : i + 6]) for i in (0, 6, 12))
    assert 1 <= least < 6
    assert ask(EarlyStop(least, share + 0.01)).texts == whole.texts
    assert ask(EarlyStop(least + 1, share)).texts == whole.texts
    part = ask(EarlyStop(least, share))
    assert part.texts == [text for text, over in zip(whole.texts, ended, strict=True) if over]
    assert part.sequences.mask.equal(part.sequences.completed)  # of one turn, each
    assert len(part.judged) == len(part.texts) == sum(ended)
    assert part.figures["rollout/turns_mean"] == 1
    first = [len(t.split("5/2:")[0]) + 1 for t, n in zip(whole.texts, ended, strict=True) if not n]
    # what the world said to them is no token of theirs
    assert part.figures["rollout/dropped_length_mean"] == pytest.approx(sum(first) / len(first))


def test_the_setting(tmp_path: Path) -> None:
    def sampling(**enough: Any) -> Any:
        return from_dict({"sampling": {"rollouts": 6, "enough": enough}}).sampling

    assert early_stop_of(TrainConfig().sampling) is None
    assert early_stop_of(sampling(group=5, share=0.5)) == EarlyStop(5, 0.5)
    # REPO's: 4 of 6, and 90%
    assert (
        early_stop_of(sampling(share=0.9)) == early_stop_of(sampling(group=4)) == EarlyStop(4, 0.9)
    )
    config = from_dict({"sampling": {"rollouts": 8, "enough": {"share": 0.8}}})
    assert early_stop_of(config.sampling) == EarlyStop(6, 0.8)  # 5 1/3 of 8, rounded up
    for one in (config, TrainConfig()):
        (tmp_path / "c.toml").write_text(one.to_toml())
        assert from_dict(load(tmp_path / "c.toml")) == one
    for enough, words in (
        ({"group": 7}, r"enough.group must be at most sampling.rollouts \(6\), got 7"),
        ({"group": 0}, "enough.group must be at least 1, got 0"),
        ({"share": 1.5}, r"enough.share must be in \(0, 1\], got 1.5"),
        ({"shar": 1}, "Did you mean 'sampling.enough.share'"),
    ):
        with pytest.raises(ValueError, match=words):
            sampling(**enough)


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_other_hosts_refuse_it(host: str) -> None:
    fields = ("rewards", "group", "entropy", "old_entropy")
    config = from_dict({"host": host, "sampling": {"enough": {"share": 0.9}}})
    refused(lambda: objective_of(config, host, fields, 13), f"'{host}'", "sampling.enough")


def test_a_group_that_may_be_left_with_one_rollout_is_refused() -> None:
    config = from_dict({"sampling": {"enough": {"group": 1}}})
    refused(
        lambda: objective_of(config, "lab", ("rewards", "group", "entropy", "old_entropy"), 13),
        "sampling.enough.group",
        "at least 2 per prompt",
    )
