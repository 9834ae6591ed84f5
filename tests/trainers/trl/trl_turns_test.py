"""Rollouts of several turns in TRL: who said what, what is trained on, what a failure costs."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from torch import Tensor

import entrostat as es
from builders import refused
from entrostat.agents.tool_sum import ToolSum
from entrostat.tasks import Example
from entrostat.tasks.target_sum import TargetSum
from lab_turns import Fails, Talks
from stopping import Stop, StopAfter
from trl_recipes import recipe, rows, same_weights, timeless, train

pytest.importorskip("trl", reason="trl is an extra")

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # transformers' own, of TRL's arguments
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    yield
    torch.set_num_threads(1)


class Counts(Talks):
    """`Talks` whose rewards differ within a group: how much was said, modulo 5."""

    def environment(self, example: Example) -> Any:
        world = super().environment(example)
        world.reward = lambda training: float(sum(map(len, world.said)) % 5)
        return world


class Played:
    """A run of one update, in four micro-batches, and the gradient that it stepped with."""

    def __init__(self, folder: Path) -> None:
        from transformers import TrainerCallback

        from entrostat.trainers.trl.recipe import RecipeTrainer

        self.task, self.gradient = Counts(), {}
        create, found = RecipeTrainer.__init__, self.gradient

        class Gradient(TrainerCallback):
            def on_pre_optimizer_step(self, args, state, control, model=None, **_):
                for name, p in model.named_parameters():
                    found[name] = p.grad.clone()

        def noted(trainer, *args):
            create(trainer, *args)
            trainer.add_callback(Gradient())

        config = recipe(
            folder / "run", method=["ppo"], advantage="dr_grpo", iterations=1,
            sampling={"batch": 8}, eval={"prompts": 0}, analyze={"every": 1},
            optim={"epochs": 1, "minibatches": 1, "clip": 1e9, "aggregation": "token_mean"},
        )  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RecipeTrainer, "__init__", noted)
            self.run = train(config, task=self.task)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(tmp_path_factory.mktemp("played"))


def test_masks_turns_and_rewards_by_hand(played: Played) -> None:
    """Every token of every rollout, put together again from what the worlds heard and said."""
    r, turns = es.load_rollouts(played.run, 1), [1] * 4 + [2] * 4 + [3] * 8
    assert r.sampled is not None
    # the worlds of the fourth prompt would have gone on: their rollouts ran out of turns
    assert r.finished.tolist() == [True] * 12 + [False] * 4
    observed = 0
    for k, text in enumerate(r.completions):
        assert r.prompts[k] == TargetSum().example(k // 4, "train").prompt
        world = played.task.world(text)
        assert len(world.said) == turns[k]
        assert world.closed
        assert r.rewards[k] == sum(map(len, world.said)) % 5
        pieces, own = [], []
        for n, said in enumerate(world.said):  # one character a token
            spoken = [*said, *(["<eos>"] if len(said) < 13 else [])]
            pieces += [*("5/2:" if n else ""), *spoken]
            own += [False] * (4 if n else 0) + [True] * len(spoken)
            observed += 4 if n else 0
        assert [r.pieces[t] for t in r.tokens[r.rows(k)].tolist()] == pieces
        assert r.sampled[r.rows(k)].tolist() == own
    (line,) = rows(played.run)
    assert line["rollout/turns_mean"] == sum(turns) / 16
    assert line["rollout/observed_mean"] == observed / 16
    assert line["rollout/truncated"] == 0.25
    assert line["rollout/tokens"] == int(r.sampled.sum()) == len(r.tokens) - observed
    assert line["entropy/exact"] == pytest.approx(float(r.entropy[r.sampled].mean()), rel=1e-5)


def test_a_dump_greys_what_the_world_said(played: Played) -> None:
    r = es.load_rollouts(played.run, 1)
    assert r.sampled is not None
    for values in (r.logp, r.entropy, r.advantage, r.change, r.influence):
        assert values is not None
        assert torch.equal(values.isnan(), ~r.sampled)


def reference(played: Played) -> tuple[dict[str, Tensor], Tensor]:
    """d/dw of -1/N sum A log p over sampled tokens, a rollout at a time, float64; log-probs."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from entrostat.model_files import tiny_directory

    model = AutoModelForCausalLM.from_pretrained(tiny_directory(), dtype=torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(tiny_directory())
    r, loss, N, logps = es.load_rollouts(played.run, 1), 0, 0, []
    assert r.sampled is not None
    rewards = r.rewards.double().view(4, 4)
    A = (rewards - rewards.mean(1, keepdim=True)).view(-1)
    live = (rewards.max(1).values > rewards.min(1).values).repeat_interleave(4)
    assert live.any()
    for k in range(16):
        prompt, ids = tokenizer(r.prompts[k])["input_ids"], r.tokens[r.rows(k)].tolist()
        logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        logp = logits.log_softmax(-1)[range(len(ids)), ids][r.sampled[r.rows(k)]]
        logps.append(logp.detach())
        loss, N = loss - A[k] * logp.sum(), N + len(logp) * int(live[k])
    (loss / N).backward()
    gradient = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return gradient, torch.cat(logps)


def test_the_gradient_has_observations_as_context_only(played: Played) -> None:
    expected, logp = reference(played)
    r = es.load_rollouts(played.run, 1)
    torch.testing.assert_close(r.logp[r.sampled].double(), logp, atol=1e-5, rtol=1e-5)
    assert expected.keys() <= played.gradient.keys()
    for name, gradient in expected.items():
        got = played.gradient[name].double()
        torch.testing.assert_close(got, gradient, atol=2e-6, rtol=1e-4)


def test_a_world_that_fails_costs_its_rollout(tmp_path: Path) -> None:
    config = recipe(
        tmp_path / "run", iterations=1, eval={"prompts": 0}, sampling={"rollouts": 2},
        scoring={"environment_timeout": 0.5},
    )  # fmt: skip
    run = train(config, task=Fails())
    r = es.load_rollouts(run, 1)
    assert rows(run)[0]["reward/failed"] == 6
    assert r.rewards[:6].tolist() == [0] * 6
    assert (r.rewards[6:] > 0.5).all()
    assert not r.finished.any()  # three failed, the fourth ran out of turns


@pytest.mark.long
def test_a_run_that_was_cut_short_goes_on_exactly(tmp_path: Path) -> None:
    how = {"task": {"name": "tool_sum"}, "iterations": 2, "eval": {"prompts": 0}}
    config = recipe(tmp_path / "run", **how)
    with pytest.raises(Stop):
        train(config, progress=StopAfter(1))
    cut = train(config, resume=True)
    once = train(recipe(tmp_path / "once", **how))
    assert timeless(cut) == timeless(once)
    assert same_weights(cut, once)


def test_a_turn_has_vllms_log_probs() -> None:
    """By hand, a log-prob that vLLM could not tell (None) among them."""
    from entrostat.trainers.trl.turns import turn

    asked = []

    def generate(*args: Any) -> Any:
        asked.append(args)
        return [[5, 6], [7]], [[-0.5, None], [-2.0]]

    trainer: Any = SimpleNamespace(
        _generate_single_turn=generate,
        _ending=SimpleNamespace(finished=lambda turns: [ids[-1] == 7 for ids in turns]),
    )
    said = turn(trainer, None, [[1, 2], [3]], pad=0, rollouts=1, generator=None)
    assert asked == [([[1, 2], [3]], None, {}, 1)]  # one completion of each context
    assert said.completions.tolist() == [[5, 6], [7, 0]]
    assert said.mask.tolist() == [[True, True], [True, False]]
    assert said.finished.tolist() == [False, True]
    nan = float("nan")
    expected = torch.tensor([[-0.5, nan], [-2.0, 0.0]])
    torch.testing.assert_close(said.sampler_logp, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("own", "world", "words"),
    [
        ({"mask_truncated_completions": True}, 1, "mask_truncated_completions .* leave it out"),
        ({"vllm_mode": "server"}, 2, r"trl\.vllm_mode 'server' .* start one process"),
        ({"vllm_tensor_parallel_size": 2}, 2, r"vllm_tensor_parallel_size .* leave it out"),
    ],
)
def test_what_cannot_be_played_with_is_refused(own: Any, world: int, words: str) -> None:
    from entrostat.trainers.trl.turns import refuse

    config = recipe(Path("run"), trl=own)
    refuse(config, TargetSum(), world)
    refuse(recipe(Path("run")), ToolSum(), world)
    with pytest.raises(ValueError, match=f"task 'tool_sum' is played in turns, which .*{words}"):
        refuse(config, ToolSum(), world)


def test_a_model_in_shards_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from entrostat.trainers.trl.turns import refuse

    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    refuse(recipe(Path("run")), ToolSum(), 1)
    refused(lambda: refuse(recipe(Path("run")), ToolSum(), 2), "a model that is sharded", "--host")
