"""The tiny policy: a small transformer, supervised on answers some of which are wrong.

Wrong demonstrations leave room for reinforcement learning, and entropy to lose.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..config.ranges import check_ranges, within
from ..logs.files import atomic_directory
from ..tasks.target_sum import TargetSum, demonstration

VOCABULARY = ("<pad>", "<eos>", *"0123456789", "+", "/", ":")
PAD, EOS = 0, 1


@dataclass(frozen=True)
class PretrainConfig:
    """Settings of the tiny policy's pretraining."""

    output: str = "runs/tiny"
    """Directory for config, tokenizer, weights and model card."""
    steps: int = within(1500, 1)
    """Updates."""
    batch: int = within(256, 1)
    """Demonstrations per update."""
    lr: float = 2e-3
    """AdamW's learning rate, after `warmup` steps, falling as a cosine to 0."""
    warmup: int = 50
    """Updates over which the learning rate rises."""
    wrong: float = within(0.4, 0, 1)
    """Share of demonstrations with one digit replaced at random."""
    hidden: int = within(64, 1)
    """Width."""
    layers: int = within(3, 1)
    """Blocks."""
    seed: int = 0
    """Decides weights and demonstrations."""

    def validate(self) -> None:
        check_ranges(self)
        if self.hidden % 16:
            raise ValueError(f"hidden must be a multiple of 16, got {self.hidden}")


def pretrain(config: PretrainConfig, on_step: Callable[[int, float], None] | None = None) -> Path:
    """Train the policy; returns its directory, loadable by `AutoModelForCausalLM`.

    The same configuration on the same machine and library versions gives the same bytes.
    """
    config.validate()
    path = Path(config.output)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"output {str(path)!r} is not empty; choose another --output")
    with atomic_directory(path) as part:  # raises now if it is not writable
        model, loss = _trained(config, on_step)
        model.save_pretrained(part)
        tokenizer().save_pretrained(part)
        size = sum(p.numel() for p in model.parameters())
        (part / "README.md").write_text(_card(config, size, loss), encoding="utf-8")
    return path


def _trained(
    config: PretrainConfig, on_step: Callable[[int, float], None] | None
) -> tuple[Any, float]:
    """The model, and its loss on the last batch in nats per token."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    model: Any = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(VOCABULARY), hidden_size=config.hidden,
            intermediate_size=3 * config.hidden, num_hidden_layers=config.layers,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
            tie_word_embeddings=True, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=None,
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    task, rng = TargetSum(seed=config.seed), random.Random(config.seed)
    ids = {character: i for i, character in enumerate(VOCABULARY)}
    loss = math.nan
    for step in range(1, config.steps + 1):
        tokens, labels = [], []
        for row in range(config.batch):
            # indices from 10^9 on are for pretraining: reinforcement learning starts at 0
            example = task.example(10**9 + step * config.batch + row, "train")
            answer = demonstration(example, rng, rng.random() < config.wrong)
            prompt = [ids[c] for c in example.prompt]
            completion = [*(ids[c] for c in answer), EOS]
            tokens.append(prompt + completion)
            labels.append([-100] * len(prompt) + completion)
        width = max(map(len, tokens))
        x = torch.tensor([t + [PAD] * (width - len(t)) for t in tokens])
        y = torch.tensor([t + [-100] * (width - len(t)) for t in labels])
        rise = min(1.0, step / max(1, config.warmup))
        done = max(0, step - config.warmup) / max(1, config.steps - config.warmup)
        for group in optimizer.param_groups:
            group["lr"] = config.lr * rise * (1 + math.cos(math.pi * done)) / 2
        logits = model(input_ids=x, use_cache=False).logits
        error = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), y[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        error.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss = error.item()
        if on_step is not None:
            on_step(step, loss)
    return model, loss


def tokenizer() -> Any:
    """A tokenizer with one token per character of the task, without merges."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(
        models.WordLevel({c: i for i, c in enumerate(VOCABULARY)}, unk_token="<pad>")  # noqa: S106
    )
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>",  # noqa: S106
        padding_side="left", model_max_length=64, clean_up_tokenization_spaces=False,
    )  # fmt: skip


def _card(config: PretrainConfig, parameters: int, loss: float) -> str:
    settings = "\n".join(f"- {key}: {value}" for key, value in asdict(config).items())
    settings = settings.replace(f"- output: {config.output}\n", "")
    return f"""---
library_name: transformers
license: apache-2.0
pipeline_tag: text-generation
---
# entrostat tiny policy

A Qwen2 architecture with {parameters:,} parameters (hidden {config.hidden}, {config.layers} layers,
4 heads, 2 key-value heads, tied embeddings) and one token per character, for the task `target_sum`:
`23/4:` asks for four digits 1-9 joined by `+` whose sum is 23.

It exists to show what reinforcement learning does to a policy's entropy within a minute on one CPU
core. It can do nothing else.

## How it was made

`entrostat pretrain` with seed {config.seed}: supervised on generated demonstrations,
{1 - config.wrong:.0%} right and {config.wrong:.0%} with one digit replaced at random, loss on the
answer only, AdamW with betas (.9, .95), gradient norm at most 1. No data from anywhere else.

{settings}

Loss on the last batch: {loss:.3f} nats per token.
"""
