"""Sampling and measuring, held against transformers' own generation and unpadded passes."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import entrostat as es
from builders import json_lines, refused
from entrostat.config import TrainConfig, from_dict
from entrostat.models.head import find_head
from entrostat.models.loading import load_policy
from entrostat.models.policy import Policy
from entrostat.models.rollout import _nucleus, sample
from entrostat.trainers.lab.state import build

PROMPTS = ["23/4:", "6/3:", "40/6:", "17/5:", "9/3:"]


def run(policy: Policy, rollouts: int = 1, **changes):
    settings = {
        "max_new_tokens": 13, "eos": policy.eos, "pad": policy.pad,
        "generator": torch.Generator().manual_seed(3),
    } | changes  # fmt: skip
    prompts = [policy.encode(p, chat=False, system="") for p in PROMPTS]
    return sample(policy.model, prompts, rollouts=rollouts, **settings)


def test_nearly_greedy_sampling_is_transformers_greedy(policy: Policy) -> None:
    sequences = run(policy, top_p=1e-6)
    for row, prompt in enumerate(PROMPTS):
        ids = policy.encode(prompt, chat=False, system="")
        expected = policy.model.generate(
            torch.tensor([ids]), max_new_tokens=13, do_sample=False, eos_token_id=policy.eos,
            pad_token_id=policy.pad,
        )[0, len(ids) :]  # fmt: skip
        got = sequences.completions[row][sequences.mask[row]]
        assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("batch", [3, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_statistics_match_an_unpadded_pass(policy: Policy, batch: int, temperature: float) -> None:
    """Log-prob and entropy from one sequence at a time, in float64, by log_softmax."""
    sequences = run(policy, rollouts=4, batch=batch, temperature=temperature, exact=True)
    stats = policy.measure(sequences, temperature, micro_batch=7)
    model = load_policy(TrainConfig()).model.double()
    for row in range(len(sequences.tokens)):
        P, n = sequences.prompt_width, int(sequences.mask[row].sum())
        keep = sequences.attention[row].bool()
        ids = sequences.tokens[row][keep]
        with torch.no_grad():
            logits = model(ids[None]).logits[0, -n - 1 : -1] / temperature
        logp = logits.log_softmax(-1)
        expected = logp.gather(1, sequences.tokens[row, P : P + n, None])[:, 0]
        entropy = -(logp.exp() * logp).sum(-1)
        torch.testing.assert_close(stats.logp[row, :n].double(), expected, atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(stats.entropy[row, :n].double(), entropy, atol=2e-5, rtol=1e-5)
        sampler = sequences.sampler_logp[row, :n].double()
        torch.testing.assert_close(sampler, expected, atol=2e-5, rtol=1e-5)
        sampler = sequences.sampler_entropy[row, :n].double()
        torch.testing.assert_close(sampler, entropy, atol=2e-5, rtol=1e-5)
    assert (sequences.sampler_entropy[~sequences.mask] == 0).all()
    assert (stats.logp[~sequences.mask] == 0).all()
    assert (sequences.sampler_logp[~sequences.mask] == 0).all()


def test_the_samplers_own_figures_train_alike(tmp_path: Path) -> None:
    """Without a pass that measures: the same tokens, and weights that differ by rounding."""
    ends, lines = [], []
    for measure in (True, False):
        run = es.train(from_dict({
            "iterations": 2, "sampling": {"prompts": 8, "measure": measure},
            "eval": {"prompts": 0}, "output": str(tmp_path / str(measure)),
        }))  # fmt: skip
        ends.append(load_file(run / "final" / "model.safetensors"))
        lines.append(json_lines(run / "metrics.jsonl"))
    first, second = (line[0]["entropy/exact"] for line in lines)
    assert first == pytest.approx(second, abs=1e-6)
    assert "mismatch/logp_abs_max" in lines[0][0]
    assert "mismatch/logp_abs_max" not in lines[1][0]
    start = load_policy(TrainConfig()).model.state_dict()
    for name, weight in ends[0].items():
        moved = (weight - start[name]).norm()
        assert (ends[1][name] - weight).norm() < 0.02 * moved


def test_the_samplers_own_figures_are_refused_where_they_are_rounded() -> None:
    config = from_dict({"precision": "bf16", "sampling": {"measure": False}})
    refused(lambda: build(config, None, print), "sampling.measure", "bf16")


def test_every_sequence_ends_with_eos_or_is_cut(policy: Policy) -> None:
    sequences = run(policy, rollouts=20, max_new_tokens=9)
    for row in range(len(sequences.tokens)):
        ids = sequences.completions[row][sequences.mask[row]].tolist()
        ended = ids[-1] in policy.eos
        assert ended == bool(sequences.finished[row])
        assert not any(t in policy.eos for t in ids[:-1])
        assert ended or len(ids) == 9
        assert (sequences.completions[row][~sequences.mask[row]] == policy.pad).all()
    assert 0 < sequences.finished.sum() < len(sequences.tokens)


def test_sampling_that_fails_restores_the_training_mode(policy: Policy) -> None:
    """Gradient checkpointing needs it; `can_share` catches such a failure and continues."""
    model = copy.deepcopy(policy.model)
    layer = model.model.layers[1]
    layer.training = True
    with pytest.raises(IndexError):  # a token outside the vocabulary
        sample(model, [[99]], max_new_tokens=1, eos=[1], pad=0, generator=None)
    assert [module for module in model.modules() if module.training] == [layer]


def test_frequencies_follow_the_policy(policy: Policy) -> None:
    """The first token of 4,000 samples against its exact distribution, by a chi-square bound."""
    prompts = [policy.encode("23/4:", chat=False, system="")]
    sequences = sample(
        policy.model, prompts, rollouts=4000, max_new_tokens=1, batch=1000,
        eos=policy.eos, pad=policy.pad, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    with torch.no_grad():
        p = policy.model(torch.tensor(prompts[:1])).logits[0, -1].double().softmax(-1)
    counts = torch.bincount(sequences.completions[:, 0], minlength=len(p)).double()
    expected = 4000 * p
    often = expected > 5
    statistic = ((counts - expected)[often] ** 2 / expected[often]).sum()
    assert often.sum() >= 8
    assert statistic < 30  # 9 degrees of freedom: exceeded one time in 2,000


def test_nucleus_by_hand() -> None:
    p = torch.tensor([[0.1, 0.5, 0.15, 0.25], [0.97, 0.01, 0.01, 0.01]])
    kept = _nucleus(p, 0.7)
    # .5 alone is below .7, .5 + .25 reaches it; .97 alone does
    assert kept.tolist() == [[0, 0.5, 0, 0.25], [pytest.approx(0.97), 0, 0, 0]]


def test_rollouts_are_read_back(tmp_path: Path) -> None:
    from entrostat.config import from_dict

    config = from_dict(
        {"method": "grpo", "iterations": 2, "output": str(tmp_path / "run"),
         "sampling": {"prompts": 4, "rollouts": 4}, "eval": {"prompts": 0}}
    )  # fmt: skip
    path = es.train(config)
    r = es.load_rollouts(path)
    assert r.iteration == 2
    assert es.load_rollouts(path, 1).iteration == 1
    assert len(r) == len(r.prompts) == 16
    assert int(r.start[-1]) == len(r.tokens) == len(r.logp) == len(r.entropy)
    from entrostat.tasks.target_sum import TargetSum

    task, again = TargetSum(), 0
    examples = {task.example(i, "train").prompt: task.example(i, "train") for i in range(20)}
    for i in range(len(r)):
        text = "".join(r.pieces[int(t)] for t in r.tokens[r.rows(i)]).replace("<eos>", "")
        assert text == r.completions[i]
        assert r.rewards[i] == task.score(text, examples[r.prompts[i]])
        advantages = r.advantage[r.rows(i)]
        assert (advantages == advantages[0]).all()  # grpo: one number per rollout
        assert bool((advantages != 0).any()) == bool(r.trained[i])
        again += int(r.rewards[i])
    lines = (path / "metrics.jsonl").read_text().splitlines()

    assert json.loads(lines[1])["reward/mean"] == again / 16
    assert json.loads(lines[1])["entropy/exact"] == pytest.approx(float(r.entropy.mean()), rel=1e-5)
    refused(lambda: es.load_rollouts(path, 9), "no iteration 9")
    (tmp_path / "junk.safetensors").write_bytes(b"\x80\x04junk")
    refused(lambda: es.load_rollouts(tmp_path / "junk.safetensors"), "is not a rollout file")


def test_packing_by_hand() -> None:
    """Two prompts, three completions: what stands where, who sees whom."""
    from entrostat.models.packing import pack
    from entrostat.models.rollout import Sequences

    # prompt 0 is (7, 8), prompt 1 is (9,); completions (1, 2, 3), (4,) and (5, 6), eos included
    tokens = torch.tensor([[7, 8, 1, 2, 3], [0, 9, 5, 6, 0], [7, 8, 4, 0, 0]])
    attention = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 0], [1, 1, 1, 0, 0]])
    sequences = Sequences(
        tokens, attention, 2, attention[:, 2:].bool(), torch.zeros(3, 3),
        torch.ones(3, dtype=torch.bool), torch.tensor([0, 1, 0]),
    )  # fmt: skip
    packed = pack(sequences)
    # places: 7 8 | 1 2 | (4 predicts nothing more) | 9 | 5
    assert packed.tokens[0, :6].tolist() == [7, 8, 1, 2, 9, 5]
    assert packed.positions[0, :6].tolist() == [0, 1, 2, 3, 0, 1]
    # 1, 2, 3 come from 8, 1, 2; 5, 6 from 9, 5; 4 from 8
    assert packed.source.tolist() == [1, 2, 3, 4, 5, 1]
    sees = packed.attention[0, 0, :6, :6].int().tolist()
    assert sees == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1, 1],
    ]


def test_siblings_do_not_see_each_other_and_rows_fill_up(policy: Policy) -> None:
    sequences = run(policy, rollouts=40)
    from entrostat.models.packing import pack

    packed = pack(sequences)
    assert packed.tokens.shape[0] > 3
    assert packed.tokens.numel() < 0.75 * sequences.tokens.numel()
    one_by_one = torch.cat(
        [
            policy.measure(sequences[torch.tensor([i])], 1.0, 1).logp[:1, :]
            for i in range(len(sequences.tokens))
        ]
    )
    together = policy.measure(sequences, 1.0, len(sequences.tokens)).logp
    torch.testing.assert_close(together, one_by_one, atol=2e-5, rtol=1e-5)


def test_padded_and_packed_give_the_same_gradient(policy: Policy) -> None:
    sequences = run(policy, rollouts=6)
    gradients = []
    for packs in (True, False):
        policy.packs = packs
        policy.model.zero_grad()
        stats = policy.token_stats(sequences, 1.0)
        (stats.logp.sum() + stats.entropy.square().sum()).backward()
        gradients.append({n: p.grad.clone() for n, p in policy.trained().items()})
    policy.packs = True
    policy.model.zero_grad()
    for name, gradient in gradients[0].items():
        scale = gradients[1][name].abs().max()
        torch.testing.assert_close(gradient / scale, gradients[1][name] / scale, atol=1e-4, rtol=0)


def test_models_that_cannot_pack_are_padded(tmp_path: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from entrostat.models.pretrain import tokenizer

    settings = {
        "vocab_size": 15, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "eos_token_id": 1,
    }  # fmt: skip
    sliding = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
    for name, more, packs in (("full", {}, True), ("sliding", sliding, False)):
        Qwen2ForCausalLM(Qwen2Config(**settings, **more)).save_pretrained(tmp_path / name)
        tokenizer().save_pretrained(tmp_path / name)
        assert load_policy(TrainConfig(model=str(tmp_path / name))).packs is packs


GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
LLAMA = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("GPT2", GPT2),  # learned positions
        ("Llama", LLAMA),
        ("Mistral", LLAMA | {"sliding_window": 4}),
        ("Qwen3", LLAMA),  # normalised queries and keys
        ("Gemma2", LLAMA | {"sliding_window": 4, "query_pre_attn_scalar": 8}),  # soft caps
        ("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),  # no positions: ALiBi
        ("Cohere", LLAMA | {"logit_scale": 0.25}),  # a factor on the logits
        ("Granite", LLAMA | {"logits_scaling": 4.0}),  # a divisor
    ],
)
@pytest.mark.parametrize("with_logits", [True, False])
def test_other_architectures_match_an_unpadded_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, settings: dict, with_logits: bool
) -> None:
    """Sampler and trainer against one sequence at a time, whatever way the model allows."""
    import transformers

    if not with_logits:  # statistics from hidden states, in tiles of 4 tokens x 6 columns
        monkeypatch.setattr("entrostat.models.capabilities.SMALLEST_VOCABULARY", 1)
        monkeypatch.setattr("entrostat.core.stats.choose.PLAIN_LOGITS", 0)
        monkeypatch.setattr("entrostat.core.stats.choose.TILE", (4, 6))

    from entrostat.models.pretrain import tokenizer

    torch.manual_seed(0)
    special = {"vocab_size": 15, "eos_token_id": 1, "bos_token_id": 1, "pad_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(**settings, **special)
    name = {"GPT2": "GPT2LMHeadModel"}.get(kind, f"{kind}ForCausalLM")
    getattr(transformers, name)(config).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    policy = load_policy(TrainConfig(model=str(tmp_path)))
    assert (policy.head is None) is with_logits
    sequences = run(policy, rollouts=3, share=policy.shares)
    stats = policy.measure(sequences, 1.0, micro_batch=6)
    for row in range(len(sequences.tokens)):
        n = int(sequences.mask[row].sum())
        ids = sequences.tokens[row][sequences.attention[row].bool()]
        with torch.no_grad():
            logp = policy.model(ids[None]).logits[0, -n - 1 : -1].float().log_softmax(-1)
        expected = logp.gather(1, ids[-n:, None])[:, 0]
        torch.testing.assert_close(stats.logp[row, :n], expected, atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(sequences.sampler_logp[row, :n], expected, atol=2e-5, rtol=1e-5)
        entropy = -(logp.exp() * logp).sum(-1)
        torch.testing.assert_close(stats.entropy[row, :n], entropy, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_statistics_without_logits_have_the_same_gradient(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, packs: bool, temperature: float
) -> None:
    """Embedding and head are one matrix here: both parts of its gradient must arrive."""
    monkeypatch.setattr("entrostat.core.stats.choose.PLAIN_LOGITS", 0)
    sequences = run(policy, rollouts=6)
    policy.packs = packs
    gradients = []
    for head in (None, find_head(policy.model)):
        policy.head = head
        policy.model.zero_grad()
        stats = policy.token_stats(sequences, temperature)
        (stats.logp.sum() + stats.entropy.square().sum()).backward()
        gradients.append({n: p.grad.clone() for n, p in policy.trained().items()})
    policy.packs, policy.head = True, None
    policy.model.zero_grad()
    for name, gradient in gradients[0].items():
        scale = gradients[1][name].abs().max()
        torch.testing.assert_close(gradient / scale, gradients[1][name] / scale, atol=1e-4, rtol=0)


def test_a_large_vocabulary_never_meets_its_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training a model of 5000 tokens, the model's own head computes one row per pass."""
    import transformers

    from entrostat.models.pretrain import tokenizer

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**LLAMA, vocab_size=5000, eos_token_id=1, pad_token_id=0)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    policy = load_policy(TrainConfig(model=str(tmp_path)))
    assert policy.head is not None
    sequences = run(policy, rollouts=3)
    seen = []
    policy.model.get_output_embeddings().register_forward_hook(
        lambda module, inputs, output: seen.append(output.shape[:-1].numel())
    )
    stats = policy.token_stats(sequences, 1.0)
    stats.entropy.sum().backward()
    assert seen == [1]
    assert stats.entropy[sequences.mask].min() > 8  # log 5000 is 8.5: an untrained model


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings:UserWarning")  # peft's
def test_an_adapter_on_the_head_is_part_of_it(policy: Policy) -> None:
    from peft import LoraConfig, get_peft_model

    for target, known in (("q_proj", True), ("lm_head", False)):
        model = copy.deepcopy(policy.model)
        adapted = get_peft_model(model, LoraConfig(target_modules=[target]))
        assert (find_head(adapted) is not None) == known
