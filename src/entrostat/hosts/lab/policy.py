"""The policy: a Hugging Face causal LM with its tokenizer, loaded, measured and saved.

Shapes: B sequences, T completion tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ..._names import unknown
from ...config import TINY, TrainConfig
from ...stats import TokenStats, token_stats_from_logits
from .rollout import Sequences, positions

SMALL = 10_000_000
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def tiny_directory() -> Path:
    """Where the shipped tiny policy lies: config, tokenizer and safetensors weights."""
    return Path(str(resources.files("entrostat") / "assets" / "tiny"))


@dataclass
class Policy:
    """A causal LM ready to sample and to train.

    Attributes:
        model: on its device, float32 weights, in eval mode without dropout.
        tokenizer: its tokenizer.
        device: where it is.
        eos: ids that end a completion.
        pad: id used for padding.
        autocast: context for every forward pass.
        context: tokens that a sequence may have, or None where the model does not say.
    """

    model: Any
    tokenizer: Any
    device: torch.device
    eos: list[int]
    pad: int
    autocast: Callable[[], AbstractContextManager]
    context: int | None

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that are trained, by name."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def encode(self, prompt: str, chat: bool, system: str) -> list[int]:
        """Token ids of a prompt, through the chat template where asked for.

        Raises:
            ValueError: no tokens come out.
        """
        if chat:
            turns = [{"role": "system", "content": system}] if system else []
            turns.append({"role": "user", "content": prompt})
            text = self.tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True
            )
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        else:
            ids = self.tokenizer(prompt)["input_ids"]
            while ids and ids[-1] in self.eos:  # some tokenizers close every text
                ids = ids[:-1]
        if not ids:
            raise ValueError(f"the tokenizer makes no tokens of the prompt {prompt[:80]!r}")
        return ids

    def decode(self, sequences: Sequences) -> list[str]:
        """The completions as text, without eos and padding."""
        rows = zip(sequences.completions.tolist(), sequences.mask.tolist(), strict=True)
        skip = {*self.eos, self.pad}
        return self.tokenizer.batch_decode(
            [[t for t, keep in zip(*row, strict=True) if keep and t not in skip] for row in rows]
        )

    def token_stats(self, sequences: Sequences, temperature: float) -> TokenStats:
        """Log-prob and entropy of every completion token, [B, T] float32, with gradient.

        Columns that are padding in every row are not computed; they and all of mask 0 hold zeros.
        """
        P, T = sequences.prompt_width, sequences.mask.shape[1]
        used = sequences.attention.any(0)
        start = int(used.int().argmax())
        length = int(used[P:].sum())
        tokens = sequences.tokens[:, start : P + length]
        attention = sequences.attention[:, start : P + length]
        with self.autocast():
            logits = self.model(
                input_ids=tokens,
                attention_mask=attention,
                position_ids=positions(attention),
                use_cache=False,
                logits_to_keep=length + 1,
            ).logits[:, :-1]
        stats = token_stats_from_logits(logits, sequences.completions[:, :length], temperature)
        mask = sequences.mask[:, :length]
        return TokenStats(
            *(
                torch.nn.functional.pad(torch.where(mask, x, 0), (0, T - length))
                for x in (stats.logp, stats.entropy)
            )
        )

    @torch.no_grad()
    def measure(self, sequences: Sequences, temperature: float, micro_batch: int) -> TokenStats:
        """`token_stats` of the policy as it stands, in micro-batches, without gradient."""
        rows = torch.arange(len(sequences.tokens), device=self.device)
        stats = [self.token_stats(sequences[r], temperature) for r in rows.split(micro_batch)]
        return TokenStats(torch.cat([s.logp for s in stats]), torch.cat([s.entropy for s in stats]))

    def save(self, directory: Path) -> None:
        """Config, tokenizer and `model.safetensors`, adapters merged in."""
        model = self.model
        if hasattr(model, "merge_and_unload"):
            import copy

            model = copy.deepcopy(model).merge_and_unload()
        model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)


def load_policy(config: TrainConfig) -> Policy:
    """Load the model and tokenizer a configuration names.

    Raises:
        ValueError: one line: no such model, no tokenizer, no eos, or no such device.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = _device(config.device)
    name = str(tiny_directory()) if config.model == TINY else config.model
    if not Path(name).exists() and (name.startswith((".", "/", "~")) or "/" not in name):
        siblings = [p.name for p in Path().iterdir() if (p / "config.json").exists()]
        raise ValueError(
            unknown("model", config.model, [TINY, *siblings])
            + " A model is a directory, a Hugging Face name (OWNER/NAME) or 'tiny'."
        )
    if Path(name).is_dir() and not (Path(name) / "config.json").exists():
        raise ValueError(f"model {config.model!r}: the directory has no config.json")
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(name)
        model: Any = AutoModelForCausalLM.from_pretrained(
            name, dtype=torch.float32, use_safetensors=True
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0][:300]
        raise ValueError(f"model {config.model!r}: cannot load it: {reason}") from None
    _no_dropout(model)
    if config.gradient_checkpointing:
        # transformers renamed it; the old name warns, older releases have no other
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    if config.lora.rank:
        model = _with_lora(model, config)
    model.to(device)
    # checkpointing works in train mode only; without dropout the two modes compute the same
    model.train(config.gradient_checkpointing)
    eos = _eos(model, tokenizer)
    pad = tokenizer.pad_token_id
    autocast: Callable[[], AbstractContextManager] = nullcontext
    if config.precision != "fp32":
        autocast = partial(torch.autocast, device.type, dtype=_DTYPES[config.precision])
    context = getattr(model.config, "max_position_embeddings", None)
    return Policy(model, tokenizer, device, eos, eos[0] if pad is None else pad, autocast, context)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {name!r}: this machine has no usable GPU; use --device cpu")
    return torch.device(name)


def _eos(model: Any, tokenizer: Any) -> list[int]:
    ends: list[int] = []
    for found in (tokenizer.eos_token_id, getattr(model.generation_config, "eos_token_id", None)):
        for token in found if isinstance(found, list) else [found]:
            if token is not None and token not in ends:
                ends.append(token)
    if not ends:
        raise ValueError("the model's tokenizer has no eos token, so no completion could end")
    return ends


def _no_dropout(model: torch.nn.Module) -> None:
    """Ratios compare two passes over the same weights: noise between them would be a lie."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010 - a plain float, not a module


def _with_lora(model: Any, config: TrainConfig) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ValueError("lora.rank needs the extra: pip install 'entrostat[peft]'") from None
    targets: Any = config.lora.targets
    if targets != "all-linear":
        targets = [name.strip() for name in targets.split(",")]
    try:
        settings = LoraConfig(
            r=config.lora.rank, lora_alpha=config.lora.alpha, target_modules=targets,
            lora_dropout=0.0, task_type="CAUSAL_LM",
        )  # fmt: skip
        if config.gradient_checkpointing:
            model.enable_input_require_grads()
        return get_peft_model(model, settings)
    except ValueError as error:
        raise ValueError(f"lora.targets {config.lora.targets!r}: {error}") from None


def learning_rate(config: TrainConfig, trained: int) -> float:
    """The configured learning rate, or the default for so many trained parameters."""
    if config.optim.lr is not None:
        return config.optim.lr
    if config.lora.rank:
        return 1e-5
    return 3e-4 if trained < SMALL else 1e-6
