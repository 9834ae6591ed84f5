"""Dynamic sampling in the lab: what is drawn again, what it costs, and kill and resume."""

import pytest
import torch

import entrostat as es
from entrostat.logs.run import read_run
from entrostat.tasks import Example


class Half:
    """Every other prompt is never solved; of the others a rollout is right by its first letter."""

    name, splits = "half", ("train", "test")

    def max_new_tokens(self, split):
        return 6

    def size(self, split):
        return None

    def example(self, index, split):
        return Example(prompt=f"{index % 90 + 1}:", answer="hard" if index % 2 else "easy")

    def score(self, text, example):
        return float(example.answer == "easy" and text[:1] in "12345")


def config(folder, **sampling):
    c = es.TrainConfig(iterations=3, output=str(folder))
    c.sampling.prompts, c.sampling.rollouts, c.eval.prompts = 8, 4, 0
    c.save.checkpoint_every = 1
    for key, value in sampling.items():
        setattr(c.sampling, key, value)
    return c


def lines(run):
    return read_run(run)


def test_the_batch_fills_with_prompts_that_teach(tmp_path):
    plain = lines(es.train(config(tmp_path / "a"), task=Half()))
    once = lines(es.train(config(tmp_path / "b", redraws=1), task=Half()))
    often = lines(es.train(config(tmp_path / "c", redraws=8), task=Half()))
    idle = [run.series("rollout/zero_advantage_groups")[1] for run in (plain, once, often)]
    assert all(a >= 4 for a in idle[0])  # half of 8 and the easy ones that were all right or wrong
    assert sum(idle[1]) < sum(idle[0])
    assert sum(idle[2]) < sum(idle[1])
    # the first draw of the first iteration is the same, and so is what is said of it
    first = [run.series("reward/drawn_mean")[1][0] for run in (once, often)]
    assert first[0] == first[1] == plain.series("reward/mean")[1][0]
    # of a round: as many prompts as had no signal, so many tokens
    assert once.series("rollout/redraws")[1] == [1, 1, 1]
    assert once.series("rollout/redrawn")[1][0] == idle[0][0]
    assert once.series("rollout/redrawn_tokens")[1][0] >= 4 * idle[0][0]
    assert max(often.series("rollout/redraws")[1]) > 1
    # all that is left is 8 groups of 4
    assert len(plain.series("reward/mean")[1]) == len(often.series("reward/mean")[1]) == 3


@pytest.mark.long
def test_it_is_exact_under_kill_and_resume(tmp_path, monkeypatch):
    from entrostat.trainers.lab import loop

    whole = es.train(config(tmp_path / "whole", redraws=3), task=Half())
    inner = loop.update_policy

    def killed(state, selection, analysis, iteration):
        if iteration == 3:
            raise KeyboardInterrupt
        return inner(state, selection, analysis, iteration)

    monkeypatch.setattr(loop, "update_policy", killed)
    with pytest.raises(KeyboardInterrupt):
        es.train(config(tmp_path / "part", redraws=3), task=Half())
    monkeypatch.setattr(loop, "update_policy", inner)
    part = loop.train(config(tmp_path / "part", redraws=3), task=Half(), resume=True)
    one, other = lines(whole), lines(part)
    for key in ("reward/mean", "reward/drawn_mean", "rollout/redrawn", "entropy/exact",
                "loss/policy"):  # fmt: skip
        assert one.series(key) == other.series(key)
    from safetensors.torch import load_file

    weights = [load_file(run / "final" / "model.safetensors") for run in (whole, part)]
    assert all(torch.equal(a, weights[1][k]) for k, a in weights[0].items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"redraws": -1}, "sampling.redraws must be at least 0, got -1"),
        ({"redraws": 2, "measure": False}, "sampling.redraws 2 takes whole groups"),
    ],
)
def test_what_cannot_be_redrawn(tmp_path, change, words):
    with pytest.raises(ValueError, match=words):
        config(tmp_path, **change).validate()
