"""Sampling with weights reordered for a few rows: the same products, and nothing is left behind.

The reference is the layer's own forward: its products differ by the order of float32 sums, in bf16
by the rounding of the result (u = 2^-8 of itself) as well.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from entrostat.config import TrainConfig
from entrostat.models import capabilities as abilities
from entrostat.models import prepacked
from entrostat.models.loading import load_policy
from entrostat.models.rollout import sample

pytestmark = pytest.mark.skipif(
    not prepacked.can_prepack(), reason="this torch has no such operators"
)


def bf16(on: bool) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=on)


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@torch.no_grad()
def test_a_layer_multiplies_as_before(half: bool, bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(48, 80, bias=bias)
    net = nn.Sequential(layer)
    for shape in [(5, 48), (5, 1, 48), (7, 48), (1, 48), (200, 48)]:
        x = torch.randn(shape)
        with bf16(half):
            expected = layer(x)
            with prepacked.prepacked(net):
                found = [net(x) for _ in range(12)]
        for y in found:
            assert y.dtype == expected.dtype
            assert y.shape == expected.shape
            bound = 2**-7 * expected.abs().max().item() if half else 1e-5
            torch.testing.assert_close(y, expected, rtol=0, atol=bound)


@torch.no_grad()
def test_reordered_only_after_a_while_and_for_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    reorder = prepacked._reorder
    monkeypatch.setattr(
        prepacked, "_reorder", lambda layer, rows: made.append(rows) or reorder(layer, rows)
    )
    net = nn.Sequential(nn.Linear(16, 16))
    with prepacked.prepacked(net):
        for rows, times in ((4, 8), (4, 1), (4, 20), (3, 5), (4, 9), (129, 30)):
            for _ in range(times):
                net(torch.ones(rows, 16))
    assert made == [4, 4]  # the ninth with four rows, and again after three had come between


@torch.no_grad()
def test_new_weights_are_seen_the_next_time() -> None:
    net, x = nn.Sequential(nn.Linear(8, 8, bias=False)), torch.ones(2, 8)
    for scale in (1.0, 3.0):
        net[0].weight.fill_(scale)
        with prepacked.prepacked(net):
            for _ in range(12):
                assert net(x).eq(8 * scale).all()
    assert "forward" not in vars(net[0])


def test_the_layers_are_their_own_again_after_an_error() -> None:
    net = nn.Sequential(nn.Linear(8, 8))
    with pytest.raises(RuntimeError), prepacked.prepacked(net):
        net(torch.ones(2, 5))
    assert "forward" not in vars(net[0])
    net(torch.ones(2, 8)).sum().backward()  # and have gradients


def test_layers_of_others_stay_as_they_are() -> None:
    class Own(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) + 1

    net = nn.Sequential(Own(4, 4), nn.Linear(4, 4))
    theirs = net[1].forward = lambda x: x * 0
    with prepacked.prepacked(net), torch.no_grad():
        for _ in range(12):
            assert net(torch.ones(2, 4)).eq(0).all()
    assert net[1].forward is theirs


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_samples_the_same(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from entrostat.models.pretrain import tokenizer

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, vocab_size=15,
        num_attention_heads=4, num_key_value_heads=2, eos_token_id=1, pad_token_id=0,
        bos_token_id=1, max_position_embeddings=128, initializer_range=0.2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(abilities, "SMALL", 0)
    policy = load_policy(TrainConfig(model=str(tmp_path), precision=precision))
    assert policy.prepacks

    def drawn(prepack: bool) -> torch.Tensor:
        found = sample(
            policy.model, [[2, 3, 4], [5, 6]], rollouts=3, max_new_tokens=40, eos=[], pad=0,
            generator=torch.Generator().manual_seed(1), autocast=policy.autocast, prepack=prepack,
            temperature=1e-3 if precision == "bf16" else 1.0,
        )  # fmt: skip
        return found.sampler_logp if precision == "fp32" else found.tokens[:, :8]

    if precision == "fp32":  # the same draws: log-probs differ by rounding
        torch.testing.assert_close(drawn(True), drawn(False), rtol=0, atol=1e-4)
    else:  # greedy, until a near tie falls the other way
        assert drawn(True).equal(drawn(False))


def test_small_models_and_other_precisions_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not load_policy(TrainConfig()).prepacks  # the tiny policy
    monkeypatch.setattr(abilities, "SMALL", 0)
    assert not load_policy(TrainConfig(precision="fp16")).prepacks
