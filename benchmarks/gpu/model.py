"""A Llama with random weights and a tokenizer of made-up words: speed without a download."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from kit import Kit

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL = ("<pad>", "</s>")


def word(number: int) -> str:
    """A word of its own for each number: its digits to the base 26, as letters."""
    text = ""
    while True:
        text = LETTERS[number % 26] + text
        number //= 26
        if not number:
            return text


def make_model(kit: Kit) -> Path:
    """The model's directory, made where it is not there yet.

    Full size: Qwen2.5-0.5B's shape, 494 million parameters, in float32.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    directory = kit.output / "model"
    if (directory / "model.safetensors").exists():
        return directory
    V = kit.size(151936, 6000)
    config = LlamaConfig(
        vocab_size=V, hidden_size=kit.size(896, 32), intermediate_size=kit.size(4864, 64),
        num_hidden_layers=kit.size(24, 2), num_attention_heads=kit.size(14, 2),
        num_key_value_heads=kit.size(2, 1), max_position_embeddings=2048,
        tie_word_embeddings=True, pad_token_id=0, bos_token_id=None, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(kit.device):
        model = LlamaForCausalLM(config)
    model.save_pretrained(directory)
    words = {text: i for i, text in enumerate(SPECIAL)}
    words |= {word(i): i for i in range(len(SPECIAL), V)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=SPECIAL[0], eos_token=SPECIAL[1],
        unk_token=SPECIAL[0],
    ).save_pretrained(directory)  # fmt: skip
    assert json.loads((directory / "config.json").read_text(encoding="utf-8"))["vocab_size"] == V
    return directory
