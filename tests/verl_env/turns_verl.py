"""Rollouts of several turns under veRL: its agent loop by hand, and a whole run of `tool_sum`.

What does not need veRL is in `tests/trainers/verl/verl_turns_test.py`.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cluster import cluster
from cpu_recipe import CPU, TRANSFORMERS, ranks
from harness import TINY
from main_ppo_verl import LIMIT, train
from read_run import metrics
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.workers.rollout.replica import TokenOutput

from entrostat.config import from_dict
from entrostat.data.scoring import Scorer
from entrostat.evaluation.eval_sets import resolve_eval_sets
from entrostat.logs.rollouts import Rollouts, load_rollouts
from entrostat.trainers.verl import data, model_ref
from entrostat.trainers.verl.agent import TokenLoop

TOKENIZER = AutoTokenizer.from_pretrained(TINY)
EOS = TOKENIZER.eos_token_id


class Engine:
    """Says these turns, whoever asks; the log-prob of a turn's token i is -(i + 1)."""

    def __init__(self, *turns: list[int]) -> None:
        self.turns, self.asked = turns, []

    async def generate(self, **request: Any) -> TokenOutput:
        self.asked.append(request)
        tokens = self.turns[len(self.asked) - 1]
        n = len(self.asked)
        return TokenOutput(
            token_ids=tokens, log_probs=[-(i + 1.0) for i in range(len(tokens))], num_preempted=n,
            extra_fields={"min_global_steps": n, "max_global_steps": n},
        )  # fmt: skip


def loop(folder: Path, engine: Engine, *sets: dict[str, Any]) -> TokenLoop:
    config = from_dict({"host": "verl", "task": {"name": "tool_sum"}, "eval": list(sets)})
    task = model_ref.make(config)
    found = resolve_eval_sets(config, task, Scorer(task, config.scoring, print), print)
    data.write_settings(folder / "run.json", config, task, data.outline(config.model), found)
    rollout = SimpleNamespace(response_length=52, name="vllm")
    told = SimpleNamespace(
        actor_rollout_ref=SimpleNamespace(rollout=rollout),
        data=SimpleNamespace(entrostat=str(folder / "run.json")),
    )
    return TokenLoop(SimpleNamespace(config=told), engine, TOKENIZER)


def test_what_is_said_of_a_rollout(tmp_path: Path) -> None:
    """Of a call that is wrong, in one turn; and, by hand, of a right one, in two."""
    task = model_ref.make(from_dict({"task": {"name": "tool_sum"}}))
    example = task.example(0, "train")
    prompt = TOKENIZER(example.prompt)["input_ids"]
    info = {"set": "", "split": "train", "index": 0, "prompt_ids": prompt, "max_tokens": 13}

    def told(*turns: str) -> tuple[Any, Engine]:
        engine = Engine(*([*TOKENIZER(t)["input_ids"], EOS] for t in turns))
        return asyncio.run(loop(tmp_path, engine).run({"top_p": 1.0}, extra_info=info)), engine

    output, _ = told("1")
    assert output.response_mask == [1, 1]
    assert output.reward_score == 0.0
    assert output.num_turns == 2
    target = int(example.prompt.split("/")[0])
    a, b = next((a, b) for a in range(1, 10) for b in range(1, 10) if 0 < target - a - b < 10)
    call = f"{a}+{b}+{target - a - b}"
    heard = TOKENIZER(f"{example.answer}:")["input_ids"]
    output, engine = told(call, "1+1")
    first = [*TOKENIZER(call)["input_ids"], EOS]
    second = [*TOKENIZER("1+1")["input_ids"], EOS]
    assert output.prompt_ids == prompt
    assert output.response_ids == first + heard + second
    mask = [1] * len(first) + [0] * len(heard) + [1] * len(second)
    assert output.response_mask == mask
    logps = [-(i + 1.0) for i in range(6)] + [0.0] * len(heard) + [-(i + 1.0) for i in range(4)]
    assert output.response_logprobs == logps
    assert output.reward_score == 0.5
    assert (output.num_turns, output.metrics.num_preempted) == (4, 3)
    # of the second the context is what was said and heard; a replica keeps what it computed
    assert [r["prompt_ids"] for r in engine.asked] == [prompt, prompt + first + heard]
    assert len({r["request_id"] for r in engine.asked}) == 1
    assert {r["sampling_params"]["max_tokens"] for r in engine.asked} == {13}
    extra = output.extra_fields
    assert (extra["min_global_steps"], extra["max_global_steps"]) == (1, 2)
    assert (extra["turns"], extra["observed"], extra["finished"]) == (2, len(heard), True)
    assert extra["completion"] == f"{call}{example.answer}:1+1"
    assert extra["reward_extra_info"] == {
        "score": 0.5, "acc": 0.5, "failed": 0, "where": "train/0",
        "completion": extra["completion"],
    }  # fmt: skip


def test_a_set_is_sampled_by_its_own_settings(tmp_path: Path) -> None:
    """Of the run's task greedily, in turns; of another one at a temperature, with its own stop."""
    sets = [{"temperature": 0}, {"name": "their/own", "task": {"name": "own_task:First"},
            "temperature": 0.7, "top_p": 0.9}]  # fmt: skip
    params = {"temperature": 1.0, "top_p": 0.5, "top_k": 40, "logprobs": True}

    def told(name: str, text: str) -> tuple[Any, dict[str, Any]]:
        engine = Engine([*TOKENIZER(text)["input_ids"], EOS])
        prompt = TOKENIZER("12/3:")["input_ids"]
        info = {"set": name, "split": "test", "index": 0, "prompt_ids": prompt, "max_tokens": 13}
        output = asyncio.run(loop(tmp_path, engine, *sets).run(dict(params), extra_info=info))
        return output, engine.asked[0]["sampling_params"]

    output, asked = told("test", "+")  # no call, so that there is no second turn
    assert asked == params | {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "max_tokens": 13}
    assert output.extra_fields["reward_extra_info"]["where"] == "test/0"
    assert output.extra_fields["turns"] == 1
    output, asked = told("their/own", "34+5")
    assert asked == params | {
        "temperature": 0.7, "top_p": 0.9, "max_tokens": 13, "stop": ["+"],
        "include_stop_str_in_output": True,
    }  # fmt: skip
    assert output.response_ids == TOKENIZER("34+")["input_ids"]
    assert output.extra_fields["completion"] == "34"
    assert output.reward_score is None  # for the reward worker
    output, asked = told("", "+")
    assert asked == params | {"max_tokens": 13}  # training is veRL's to say


# ------------------------------------------------------------------------------------- a whole run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("turns")
    recipe, run = folder / "recipe.toml", folder / "run"
    verl = CPU | ranks(1) | TRANSFORMERS
    recipe.write_text(
        """
        host = "verl"
        task = { name = "tool_sum" }
        model = "tiny"
        iterations = 2
        device = "cpu"
        method = ["dapo", { name = "repo_r", zeta = 1e-3, target = 9.0 }]
        sampling = { prompts = 16, rollouts = 8 }
        optim = { lr = 1e-3, epochs = 1, minibatches = 2 }
        eval = { prompts = 3, samples = 2 }
        [verl]
        """
        + "".join(f"{key!r} = {str(value).lower() if isinstance(value, bool) else repr(value)}\n"
                  for key, value in verl.items())
    )  # fmt: skip
    with cluster(train("--config", recipe, "--output", run), folder / "log.txt") as started:
        assert started.wait(LIMIT) == 0, started.tail()
    return run


def of(run: Path) -> list[tuple[dict[str, Any], Rollouts]]:
    return [(row, load_rollouts(run, row["iteration"])) for row in metrics(run)]


@pytest.mark.timeout(2 * LIMIT)
def test_rollouts_are_what_was_said_and_heard(run: Path) -> None:
    """Each from its text: a call, the tool's answer to a right one, and what was said to that."""
    found = of(run)
    assert [row["iteration"] for row, _ in found] == [1, 2]
    for row, r in found:
        turns, observed = [], 0
        assert r.sampled is not None
        for k, text in enumerate(r.completions):
            prompt = r.prompts[k]
            target = int(prompt.split("/")[0])
            hidden = re.search(r"(\d)/1:", text)
            pieces = [r.pieces[t] for t in r.tokens[r.rows(k)].tolist()]
            own = r.sampled[r.rows(k)].tolist()
            if hidden is None:
                assert all(own)
                assert r.rewards[k] == 0.0
                turns.append(1)
                continue
            call, answer = text[: hidden.start()], text[hidden.end() :]
            # what the tool says stands between the eos of the call and the answer
            assert pieces[: len(call) + 1] == [*call, "<eos>"]
            heard = len(hidden[0])
            assert "".join(pieces[len(call) + 1 :][:heard]) == hidden[0]
            assert own == [True] * (len(call) + 1) + [False] * heard + [True] * (
                len(own) - len(call) - 1 - heard
            )
            assert is_sum(call, target, 3)
            assert r.rewards[k] == 0.5 + 0.5 * is_sum(answer, int(hidden[1]), 1)
            turns.append(2)
            observed += heard
        assert set(turns) == {1, 2}
        assert row["rollout/turns_mean"] == pytest.approx(sum(turns) / len(turns))
        assert row["rollout/observed_mean"] == pytest.approx(observed / len(turns))
        assert row["rollout/tokens"] == int(r.sampled.sum())
        assert row["reward/mean"] == pytest.approx(r.rewards.mean().item())
        assert row["reward/failed"] == 0


def is_sum(text: str, target: int, k: int) -> bool:
    digits = text.split("+")
    known = all(len(d) == 1 and d in "123456789" for d in digits)
    return known and len(digits) == k and sum(map(int, digits)) == target


@pytest.mark.timeout(2 * LIMIT)
def test_only_sampled_tokens_count(run: Path) -> None:
    """By the model's plain forward pass over what was said and heard, of the first iteration."""
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    row, r = of(run)[0]
    assert r.sampled is not None
    entropies = []
    for k in range(len(r)):
        prompt, ids = TOKENIZER(r.prompts[k])["input_ids"], r.tokens[r.rows(k)].tolist()
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        logp, own = logits.log_softmax(-1), r.sampled[r.rows(k)]
        expected = logp[range(len(ids)), ids][own]
        assert torch.allclose(r.logp[r.rows(k)][own], expected, atol=1e-4)
        assert torch.allclose(r.sampler_logp[r.rows(k)][own], expected, atol=1e-3)
        entropies.append(-(logp.exp() * logp).sum(-1)[own])
    assert row["entropy/exact"] == pytest.approx(torch.cat(entropies).mean().item(), rel=1e-4)
    for values in (r.logp, r.sampler_logp, r.entropy, r.advantage):
        assert torch.equal(values.isnan(), ~r.sampled)
    # the weights of the first iteration have reached the engine
    _, second = of(run)[1]
    own = second.sampled
    assert (second.logp - second.sampler_logp)[own].abs().max() < 1e-3


@pytest.mark.timeout(2 * LIMIT)
def test_what_is_left_is_a_run(run: Path) -> None:
    lines = (run / "evaluation.jsonl").read_text().splitlines()
    assert len(lines) == 2  # one split, before and after
    assert (run / "final" / "model.safetensors").exists()
    assert (run / "report.html").stat().st_size > 10_000
