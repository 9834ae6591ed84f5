"""Rollouts of several turns in the lab: who said what, what is trained on, what a failure costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import entrostat as es
from builders import refused
from entrostat.config import TrainConfig
from entrostat.core.batch import TokenBatch
from entrostat.data.generation import Answers, ObservationTokenizer, answer
from entrostat.data.prompts import encode
from entrostat.errors import RunStopped
from entrostat.models.loading import load_policy
from entrostat.models.packing import pack
from entrostat.models.policy import Policy
from entrostat.models.rollout import Sequences
from entrostat.trainers.lab import train
from lab_runs import small
from lab_turns import Talks


def ask(policy: Policy, task: Any, config: TrainConfig | None = None, **how: Any) -> Answers:
    """Two rollouts of each of four prompts."""
    config = config or TrainConfig()
    examples = [task.example(i, "train") for i in range(4)]
    prompts = encode(policy, config, examples, 13)
    settings = {
        "rollouts": 2, "generator": torch.Generator().manual_seed(0), "training": True,
    } | how  # fmt: skip
    return answer(policy, config, task, "train", examples, prompts, **settings)


@pytest.mark.parametrize("batch", [2, 6, 256])
def test_masks_turns_and_rewards_by_hand(policy: Policy, batch: int) -> None:
    """Every token of every rollout, put together again from what the worlds heard and said."""
    task, config = Talks(), TrainConfig()
    config.sampling.batch = batch
    answers = ask(policy, task, config)
    sequences, turns = answers.sequences, [1, 1, 2, 2, 3, 3, 3, 3]
    assert answers.judged == [(0.5 + n / 10, "") for n in turns]
    # the worlds of the fourth prompt would have gone on: their rollouts ran out of turns
    assert sequences.finished.tolist() == [True] * 6 + [False] * 2
    assert sequences.prompt.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    observation = policy.tokenizer("5/2:", add_special_tokens=False)["input_ids"]
    assert len(observation) == 4
    for row, text in enumerate(answers.texts):
        world = task.world(text)
        assert len(world.said) == turns[row]
        assert world.closed
        ids, own = [], []
        for turn, spoken in enumerate(world.said):
            spoken = policy.tokenizer(spoken, add_special_tokens=False)["input_ids"]
            spoken += [policy.eos[0]] if len(spoken) < 13 else []
            ids += (observation if turn else []) + spoken
            own += [False] * (4 if turn else 0) + [True] * len(spoken)
        there = sequences.completed[row]
        assert sequences.completions[row][there].tolist() == ids
        assert sequences.mask[row][there].tolist() == own
        assert not sequences.mask[row][~there].any()
    assert answers.figures == {
        "rollout/turns_mean": sum(turns) / 8, "rollout/observed_mean": 4 * (1 + 2 + 2) * 2 / 8,
    }  # fmt: skip
    judged = ask(policy, Talks(), training=False).judged
    assert judged == [(n / 10, "") for n in turns]


def test_a_turn_is_drawn_as_its_context_says(policy: Policy) -> None:
    """The sampler's log-probs, of every turn, against one unpadded pass over the whole rollout."""
    sequences = ask(policy, Talks(), exact=True).sequences
    model = load_policy(TrainConfig()).model.double()
    for row in range(8):
        ids = sequences.tokens[row][sequences.attention[row].bool()]
        n = int(sequences.completed[row].sum())
        with torch.no_grad():
            logp = model(ids[None]).logits[0].log_softmax(-1)[-n - 1 : -1]
        own = sequences.mask[row, :n]
        expected = logp.gather(1, ids[-n:, None])[:, 0]
        entropy = -(logp.exp() * logp).sum(-1)
        got, H = sequences.sampler_logp[row, :n], sequences.sampler_entropy[row, :n]
        torch.testing.assert_close(got[own].double(), expected[own], atol=1e-4, rtol=0)
        torch.testing.assert_close(H[own].double(), entropy[own], atol=1e-4, rtol=0)
        assert (got[~own] == 0).all()


def reference_gradient(sequences: Sequences, advantages: Tensor) -> dict[str, Tensor]:
    """d/dw of -1/N sum A log p over sampled tokens, a rollout at a time, float64, no masks."""
    model = load_policy(TrainConfig()).model.double()
    loss, N = 0, 0
    for row in range(len(sequences.tokens)):
        ids = sequences.tokens[row][sequences.attention[row].bool()]
        places = [
            place - len(ids)
            for place, own in zip(
                range(len(ids) - int(sequences.completed[row].sum()), len(ids)),
                sequences.mask[row].tolist(), strict=False,
            )
            if own
        ]  # fmt: skip
        logp = model(ids[None]).logits[0].log_softmax(-1)
        for place in places:
            loss = loss - advantages[row].double() * logp[place - 1, ids[place]]
            N += 1
    (loss / N).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("packs", [True, False])
def test_the_gradient_has_observations_as_context_only(policy: Policy, packs: bool) -> None:
    sequences = ask(policy, Talks()).sequences
    advantages = torch.tensor([1.0, -0.5, 0.25, -2.0, 0.5, 1.5, -1.0, 0.125])
    objective = es.make_objective(["ppo"], aggregation="token_mean")
    mine = replace(policy, packs=packs)
    mine.model.zero_grad()
    stats = mine.token_stats(sequences, 1.0)
    batch = TokenBatch(
        stats.logp, stats.logp.detach(), sequences.mask, advantages, rewards=advantages,
        group=sequences.prompt, entropy=stats.entropy, old_entropy=stats.entropy.detach(),
    )  # fmt: skip
    objective.loss(objective.prepare(batch)).loss.backward()
    expected = reference_gradient(sequences, advantages)
    for name, p in mine.model.named_parameters():
        torch.testing.assert_close(p.grad.double(), expected[name], atol=2e-6, rtol=1e-4)
    mine.model.zero_grad()


CHATML = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}<e>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


@pytest.mark.parametrize("ended", [True, False])
def test_a_chat_goes_on_as_its_template_has_it(policy: Policy, ended: bool) -> None:
    """Tokens of prompt, turn and reply are those of the conversation as a whole."""
    letters = [*"abcdefghijklmnopqrstuvwxyz \n.!", "<s>", "<e>"]
    bare = Tokenizer(WordLevel({c: i for i, c in enumerate(letters)}))
    bare.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="<e>", bos_token="<s>")
    tokenizer.chat_template = CHATML
    end = tokenizer.eos_token_id
    chat = replace(policy, tokenizer=tokenizer, eos=[end], model=Embeds(len(letters)))
    prompt = chat.encode("hello", chat=True, system="be kind")
    turn = tokenizer("well", add_special_tokens=False)["input_ids"] + ([end] if ended else [])
    heard = ObservationTokenizer(chat, True, "be kind")("no!", turn[-1])
    whole = tokenizer.apply_chat_template(
        [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"},
         {"role": "assistant", "content": "well"}, {"role": "user", "content": "no!"}],
        tokenize=False, add_generation_prompt=True,
    )  # fmt: skip
    assert prompt + turn + heard == tokenizer(whole, add_special_tokens=False)["input_ids"]
    # a system message may have any words
    assert ObservationTokenizer(chat, True, "you are entrostat, be kind")("no!", turn[-1]) == heard
    plain = ObservationTokenizer(chat, False, "")("no!", end)
    assert plain == tokenizer("no!", add_special_tokens=False)["input_ids"]
    tokenizer.chat_template = "{{ messages[-1]['content'] }}"
    refused(lambda: ObservationTokenizer(chat, True, "")("no!", end), "--prompt.chat")


class Embeds(torch.nn.Module):
    """A model as far as its vocabulary goes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(size, 1)

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.table


def test_packed_rows_hold_nothing_after_the_last_sampled_token(policy: Policy) -> None:
    """By hand: prompts of 2 and 1 tokens; a hole in the first row, observation last in the other.

    7 8 | 1 (2) 3        places 7 8 1 2, which predict 1 (from 8), 2 (not asked for), 3 (from 2)
      9 | 4 5 (6)        9 4, which predict 4 and 5
    """
    sequences = Sequences(
        torch.tensor([[7, 8, 1, 2, 3], [0, 9, 4, 5, 6]]),
        torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]), 2,
        torch.tensor([[True, False, True], [True, True, False]]), torch.zeros(2, 3),
        torch.ones(2, dtype=torch.bool), torch.tensor([0, 1]),
    )  # fmt: skip
    packed = pack(sequences)
    assert packed.tokens[0, :6].tolist() == [7, 8, 1, 2, 9, 4]
    assert not packed.tokens[0, 6:].any()
    assert packed.positions[0, :6].tolist() == [0, 1, 2, 3, 0, 1]
    assert packed.source.tolist() == [1, 3, 4, 5]


def test_a_turn_that_might_not_fit_is_not_begun(policy: Policy) -> None:
    """A turn takes 13 tokens at most, and what the world says 4."""
    task, config = Talks(), TrainConfig()
    task.lengths = (9,)
    config.sampling.max_context = 33
    answers = ask(policy, task, config)
    counts = set()
    for row, text in enumerate(answers.texts):
        said = task.world(text).said
        used = int(answers.sequences.attention[row].sum())
        turns = [len(turn) + (len(turn) < 13) for turn in said]
        prompt = int(answers.sequences.attention[row, : answers.sequences.prompt_width].sum())
        assert used == prompt + sum(turns) + 4 * (len(turns) - 1)  # the last reply is not heard
        before = used - turns[-1]
        assert before + 13 <= 33  # the last turn fitted ...
        assert len(turns) == 3 or used + 4 + 13 > 33  # ... and a further one would not
        counts.add(len(turns))
    assert counts == {2, 3}
    assert not answers.sequences.finished.any()
    config.sampling.max_context = 17
    refused(lambda: ask(policy, task, config), "sampling.max_context", error=RunStopped)


@pytest.mark.parametrize("turns", [0, 2.0, None])
def test_turns_that_are_none_are_refused(tmp_path: Path, turns: Any) -> None:
    task = Talks()
    task.turns = lambda split: turns
    refused(lambda: train(small(tmp_path / "run"), task=task), "'talks'")
