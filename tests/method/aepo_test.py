"""AEPO: who takes whose place, by hand; in the lab, the second sampling and that it resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import refused
from entrostat.config import TrainConfig
from entrostat.logs.rollouts import load_rollouts
from entrostat.method import Resample
from entrostat.trainers.lab import experience, loop, resampling, train
from entrostat.trainers.lab.experience import Selection
from lab_runs import lines_of_a_run_that_survives_a_kill, small


def chosen(entropy: float, advantages: list[float], **parameters: Any) -> es.TokenBatch:
    """Eight ordinary rollouts and four further ones, whose outcome advantages are these."""
    objective = es.make_objective("aepo", target=1.0, **parameters)
    objective.observe(entropy=entropy)
    A = torch.tensor([1.0, -1.0, 0.0, 0.0, 1.0, -1.0, 1.0, -1.0, *advantages])
    ones = torch.ones(12, 3)
    return objective.chosen(
        es.TokenBatch(
            -ones, -ones, ones, A, idle=A == 0, tempered=torch.arange(12) >= 8,
            group=torch.arange(12) // 4, rewards=(A > 0).float(),
        )
    )  # fmt: skip


def test_right_rollouts_take_the_place_of_the_first_ordinary_ones():
    batch = chosen(0.9, [-1.0, 0.04, 0.06, 2.0], alpha=0.25)  # two of eight
    assert_close(batch.advantages, torch.tensor([0, 0, 0, 0, 1, -1, 1, -1, 0, 0, 1, 1.0]))
    assert batch.idle.tolist() == [True] * 4 + [False] * 4 + [True, True, False, False]


def test_above_the_target_half_as_many():
    batch = chosen(1.1, [-1.0, 1.0, 1.0, 2.0], alpha=0.25)  # 2 // 2
    assert_close(batch.advantages, torch.tensor([0, -1, 0, 0, 1, -1, 1, -1, 0, 1, 0, 0.0]))
    some = [True, False, True, True]
    assert batch.idle.tolist() == some + [False] * 4 + some


def test_where_none_is_right_the_ordinary_ones_are_kept():
    batch = chosen(0.9, [0.0, 0.0, 0.0, 0.0], alpha=0.25)
    assert_close(batch.advantages, torch.tensor([1, -1, 0, 0, 1, -1, 1, -1, 0, 0, 0, 0.0]))
    assert batch.idle.tolist() == [False, False, True, True] + [False] * 4 + [True] * 4


def test_hot_at_or_below_the_target_and_cold_above():
    objective = es.make_objective("aepo", target="0.5x")
    for entropy, temperature in ((1.0, 0.8), (0.6, 0.8), (0.5, 1.2), (0.4, 1.2)):
        objective.observe(entropy=entropy)
        assert objective.resamples() == Resample(0.25, temperature)
        assert objective.metrics()["control/second_temperature"] == temperature
    assert es.make_objective("grpo").resamples() is None


def test_other_hosts_refuse_it():
    refused(lambda: es.make_objective("aepo").check_host("trl", ()), "`aepo`")


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        (["aepo", "entropy_bonus"], "entropy_bonus acts on every token sampled, also on those"),
        (["gtpo", "aepo"], "gtpo computes the advantages anew, so those that aepo gives"),
        (["aepo", "gtpo"], "gtpo computes the advantages anew, so those that aepo gives"),
    ],
)
def test_what_would_undo_it_is_refused(chain: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        es.make_objective(["grpo_token", *chain])


def test_an_estimator_over_the_batch_sees_each_sampling_alone() -> None:
    objective = es.make_objective(["reinforce_pp", "ppo", {"name": "aepo", "target": 2.0}])
    objective.observe(entropy=1.0)
    rewards = torch.tensor([1.0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0])
    ones = torch.ones(12, 2)
    both = es.TokenBatch(
        -ones, -ones, ones, rewards=rewards, group=torch.arange(12) // 4,
        tempered=torch.arange(12) >= 8,
    )  # fmt: skip
    alone = es.make_objective(["reinforce_pp", "ppo"])
    wanted = alone.compute_advantages(both[torch.arange(8)].replace(tempered=None)).advantages
    found = objective.compute_advantages(both)
    assert_close(found.advantages[1:8], wanted[1:])  # the first gave its place away
    assert found.advantages.tolist()[8] == 1


def test_analyses_are_refused(tmp_path: Path) -> None:
    refused(lambda: train(small(tmp_path / "run", method="aepo", analyze={"every": 1})), "analyze:")


def test_parameters_are_checked():
    for wrong in ({"hot": 0.0}, {"share": 1.5}, {"alpha": 0.0}, {"target": "cosine 1x 2x"}):
        with pytest.raises(ValueError, match=r"aepo: "):
            es.make_objective("aepo", **wrong)


def settings(path: Path, **changes: Any) -> TrainConfig:
    table = {"name": "aepo", "target": 2.0, "alpha": 0.1} | changes
    # so small a step that the policy can be measured afterwards
    return small(path, method=[table], iterations=1, optim={"lr": 1e-9})


def test_the_second_sampling_is_of_the_first_prompts_at_the_other_temperature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []
    more, choose = resampling.with_resampled, loop.select
    asked: list[float] = []
    answer = experience.answer

    def listen(policy: Any, config: TrainConfig, *rest: Any, **how: Any) -> Any:
        asked.append(config.sampling.temperature)
        return answer(policy, config, *rest, **how)

    def spy(state: Any, sampled: Any, rewards: Any, batch: Any, *rest: Any) -> Any:
        out = more(state, sampled, rewards, batch, *rest)
        seen.append((state, sampled, batch, *out))
        return out

    def keep(*arguments: Any) -> Selection:
        seen.append((choose(*arguments),))
        return seen[-1][0]

    monkeypatch.setattr(experience, "answer", listen)
    monkeypatch.setattr(loop, "with_resampled", spy)
    monkeypatch.setattr(loop, "select", keep)
    train(settings(tmp_path / "run"))
    (state, sampled, batch, both, rewards, joined), (selection,) = seen
    B, prompts = len(batch), len(sampled.examples)
    extra = prompts // 4
    rollouts = state.config.sampling.rollouts
    assert asked == [1.0, 1.2]
    assert len(joined) == B + extra * rollouts == len(rewards) == len(both.answers.texts)
    assert joined.tempered.tolist() == [False] * B + [True] * (extra * rollouts)
    # as many of the first prompts again, each a group of its own
    assert both.examples == [*sampled.examples, *sampled.examples[:extra]]
    assert joined.group[B:].tolist() == [prompts + i // rollouts for i in range(extra * rollouts)]
    # all at the run's own temperature, by a pass of training; the sampler's was another
    own, was = both.sequences[torch.arange(B)], sampled.sequences
    assert torch.equal(own.tokens[own.attention.bool()], was.tokens[was.attention.bool()])
    assert_close(joined.old_logp[:B, : batch.mask.shape[1]], batch.old_logp)
    tail = torch.arange(B, len(joined))
    assert_close(
        joined.old_logp[tail],
        state.policy.measure(both.sequences[tail], 1.0, 64).logp,
        atol=1e-3,
        rtol=1e-3,
    )
    gap = (joined.old_logp[tail] - both.sequences.sampler_logp[tail])[joined.mask[tail]].abs()
    assert gap.max() > 0.01
    # of the joined batch, as AEPO chooses
    A = selection.graded.advantages
    trained = ~selection.graded.idle
    n = int((A[tail] == 1).sum())
    assert 1 <= n <= max(1, int(0.1 * B))
    assert not trained[:n].any()
    assert trained[tail].sum() == n
    assert len(selection) == int(trained.sum())


@pytest.mark.long
def test_its_run_survives_a_kill(tmp_path: Path) -> None:
    method = ["grpo_token", {"name": "aepo", "target": 2.0, "alpha": 0.2}]  # 4 of 24 rollouts
    lines = lines_of_a_run_that_survives_a_kill(tmp_path, method)
    assert {line["control/second_temperature"] for line in lines} == {1.2}  # entropy is about .9
    assert any(line["touched/share"] > 0 for line in lines)  # some took others' places
    whole = load_rollouts(tmp_path / "whole", 4)  # its own alone
    assert len(whole.rewards) == lines[-1]["rollout/tokens"] / lines[-1]["rollout/length_mean"]
