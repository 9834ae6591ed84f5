"""The rollout engine of main_ppo_verl.py against transformers, one prompt at a time."""

from __future__ import annotations

import asyncio

import pytest
import torch
from harness import TINY, plain_model
from rollout_engine import Server
from transformers import AutoTokenizer

TOKENIZER = AutoTokenizer.from_pretrained(TINY)
PROMPTS = [TOKENIZER.encode(text) for text in ("9/3:", "23/4:", "31/6:", "12/5:")]
EOS = 1


def server(batch: int = 8) -> Server:
    return Server(TINY, seed=3, response_length=13, batch=batch)


@torch.no_grad()
def test_log_probs_are_those_of_the_tokens_at_the_temperature() -> None:
    model = plain_model()
    rows = server().sample(PROMPTS, {"temperature": 0.7})
    for prompt, (tokens, logps) in zip(PROMPTS, rows, strict=True):
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        expected = (logits / 0.7).log_softmax(-1)[range(len(tokens)), tokens]
        assert torch.allclose(torch.tensor(logps), expected, atol=1e-5)
        assert tokens.index(EOS) == len(tokens) - 1 if EOS in tokens else len(tokens) == 13


def test_greedy_is_generate() -> None:
    model = plain_model()
    rows = server().sample(PROMPTS, {"temperature": 0, "max_tokens": 9})
    for prompt, (tokens, _) in zip(PROMPTS, rows, strict=True):
        out = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=9)
        assert tokens == out[0, len(prompt) :].tolist()


def test_the_token_that_completes_a_stop_is_the_last() -> None:
    whole = [tokens for tokens, _ in server().sample(PROMPTS, {"temperature": 0})]
    stopped = server().sample(PROMPTS, {"temperature": 0, "stop": ["+"]})
    plus = TOKENIZER.convert_tokens_to_ids("+")
    assert [tokens for tokens, _ in stopped] == [row[: row.index(plus) + 1] for row in whole]


def test_requests_are_answered_each_by_its_own_parameters() -> None:
    async def ask() -> list[list[int]]:
        engine = server(batch=2)
        await engine.update({}, 7)
        limits = [3, 5, 3, 3]
        outputs = await asyncio.gather(*(
            engine.generate(prompt, {"temperature": 0, "max_tokens": limit, "top_p": 1.0}, x=None)
            for prompt, limit in zip(PROMPTS, limits, strict=True)
        ))  # fmt: skip
        assert [len(out.token_ids) for out in outputs] == limits
        assert all(out.extra_fields["global_steps"] == 7 for out in outputs)
        return [out.token_ids for out in outputs]

    one_by_one = [server().sample([p], {"temperature": 0})[0][0] for p in PROMPTS]
    for given, whole in zip(asyncio.run(ask()), one_by_one, strict=True):
        assert given == whole[: len(given)]


def test_what_it_does_not_obey_is_refused() -> None:
    with pytest.raises(ValueError, match=r"top_p=0\.9"):
        asyncio.run(server().generate(PROMPTS[0], {"top_p": 0.9}))
