"""The policy: a Hugging Face causal LM with its tokenizer, loaded, measured and saved.

Shapes: B sequences, T completion tokens, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from torch import Tensor

from ..core.stats import TokenStats, token_stats_from_logits
from ..errors import in_one_line
from ..model_files import write_provenance
from .attention import row_attention
from .head import LanguageHead, caught, only_at
from .packing import Packed, pack
from .rollout import Sequences, positions
from .stops import cut


@dataclass
class Policy:
    """A causal LM ready to sample and to train."""

    model: Any  # on its device, float32 weights, in eval mode without dropout
    tokenizer: Any  # its tokenizer
    device: torch.device  # the model's device
    eos: list[int]  # ids that end a completion
    pad: int  # id used for padding
    autocast: Callable[[], AbstractContextManager]  # context for every forward pass
    context: int | None  # most tokens of a sequence, or None if the model does not define it
    packs: bool = False  # whether training passes pack sequences (`packing`)
    rows: bool = False  # whether packed rows attend by plain products (`attention`)
    # length of the model's sliding windows; longer sequences are not packed
    window: int | None = None
    shares: bool = False  # whether sampling computes a prompt once for its rollouts
    # whether sampling multiplies by reordered copies of the weights (`prepacked`)
    prepacks: bool = False
    graphs: bool = False  # whether sampling decodes with CUDA graphs (`kv_cache`)
    # the map from hidden states to logits, if statistics are computed without logits
    head: LanguageHead | None = None
    half: torch.dtype | None = None  # the dtype of autocast, or None
    # the known origin of the weights (`models.provenance`), or None
    origin: dict[str, Any] | None = None

    def moved(self, device: torch.device) -> Policy:
        """The policy after its model was moved to a device; CPU-only optimisations are off."""
        if device.type == self.device.type:
            return replace(self, device=device)
        half, own = self.half, self.autocast
        autocast = own if half is None else partial(torch.autocast, device.type, dtype=half)
        return replace(
            self, device=device, autocast=autocast, prepacks=False, rows=False, graphs=False
        )

    def trained(self) -> dict[str, torch.nn.Parameter]:
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def encode(self, prompt: str, chat: bool, system: str) -> list[int]:
        return token_ids(self.tokenizer, self.eos, prompt, chat, system)

    def decode(self, sequences: Sequences, stop: Sequence[str] = ()) -> list[str]:
        """The completions as text, without eos and padding, cut before the first of `stop`."""
        rows = zip(sequences.completions.tolist(), sequences.mask.tolist(), strict=True)
        own = [[token for token, keep in zip(*row, strict=True) if keep] for row in rows]
        return [cut(text, stop) for text in self.texts(own)]

    def texts(self, rows: list[list[int]]) -> list[str]:
        skip = {*self.eos, self.pad}
        return self.tokenizer.batch_decode([[t for t in row if t not in skip] for row in rows])

    def token_stats(
        self, sequences: Sequences, temperature: float, moments: bool = False
    ) -> TokenStats:
        """Log-prob and entropy (and moments) of every completion token, with gradient.

        Each [B, T] float32, 0 at mask 0. Packed if the model accepts our mask, else padded. Without
        logits if the model's head is known and its vocabulary is large.
        """
        targets = sequences.completions[sequences.mask]  # [n]
        if self.head is None:
            packs = self.packs_all(sequences)
            logits = self.packed(sequences) if packs else self.padded(sequences)  # [n, V]
            stats = token_stats_from_logits(logits, targets, temperature, moments)
        else:
            hidden = self.hidden(sequences)
            stats = self.head.stats(self.model, hidden, targets, temperature, moments)
        place = sequences.mask.flatten().nonzero()[:, 0]
        return TokenStats(
            *(
                x.new_zeros(sequences.mask.numel()).index_copy(0, place, x).view_as(sequences.mask)
                for x in (stats.logp, stats.entropy, stats.sum_p2, stats.sum_p2_logp)
                if x is not None
            )
        )

    def hidden(self, sequences: Sequences) -> Tensor:
        """[n, D]: the head's input at the positions that predict completion tokens."""
        if self.packs_all(sequences):
            packed = pack(sequences, wide=self.rows)
            with caught(self.model, packed.source) as found:
                self._run_packed(packed)
            (hidden,) = found
        else:
            T = sequences.mask.shape[1]
            with caught(self.model) as found:
                self._run_padded(sequences)
            hidden = found[0][:, -T - 1 : -1][sequences.mask]
        # the head then multiplies in half precision, whatever the last norm returns
        return hidden if self.half is None else hidden.to(self.half)

    def packs_all(self, sequences: Sequences) -> bool:
        if self.packs and self.window is not None:
            return int(sequences.attention.sum(-1).max()) <= self.window
        return self.packs

    def packed(self, sequences: Sequences) -> Tensor:
        """[n, V] logits."""
        packed = pack(sequences, wide=self.rows)
        with only_at(self.model, packed.source):
            return self._run_packed(packed).logits

    def padded(self, sequences: Sequences) -> Tensor:
        """[n, V] logits."""
        T = sequences.mask.shape[1]
        return self._run_padded(sequences).logits[:, -T - 1 : -1][sequences.mask]

    def _run_packed(self, packed: Packed) -> Any:
        with self.autocast(), row_attention(self.model) if self.rows else nullcontext():
            return self.model(
                input_ids=packed.tokens, attention_mask=packed.attention,
                position_ids=packed.positions, use_cache=False,
            )  # fmt: skip

    def _run_padded(self, sequences: Sequences) -> Any:
        with self.autocast():
            return self.model(
                input_ids=sequences.tokens, attention_mask=sequences.attention,
                position_ids=positions(sequences.attention), use_cache=False,
                logits_to_keep=sequences.mask.shape[1] + 1,
            )  # fmt: skip

    @torch.no_grad()
    def measure(self, sequences: Sequences, temperature: float, micro_batch: int) -> TokenStats:
        """`token_stats` of the current policy, in micro-batches, without gradient."""
        rows = torch.arange(len(sequences.tokens), device=self.device)
        stats = [self.token_stats(sequences[r], temperature) for r in rows.split(micro_batch)]
        return TokenStats(torch.cat([s.logp for s in stats]), torch.cat([s.entropy for s in stats]))

    def reference(self) -> Policy:
        """The current policy, frozen: a copy of the weights, or those under the adapters."""
        if hasattr(self.model, "disable_adapter"):
            return replace(self, autocast=self._without_adapters)
        return replace(self, model=copy.deepcopy(self.model).requires_grad_(False))

    @contextmanager
    def _without_adapters(self) -> Iterator[None]:
        with self.model.disable_adapter(), self.autocast():
            yield

    def save(self, directory: Path) -> None:
        """Write config, tokenizer and `model.safetensors`, adapters merged in."""
        model = self.model
        if hasattr(model, "merge_and_unload"):
            model = copy.deepcopy(model).merge_and_unload()
        model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        if self.origin is not None:
            write_provenance(directory, self.origin)


def token_ids(
    tokenizer: Any, eos: Sequence[int], prompt: str, chat: bool, system: str
) -> list[int]:
    """Token ids of a prompt, through the chat template if `chat`."""
    if system and not chat:
        raise ValueError("prompt.system needs a chat template; this run uses none")
    if chat:
        text = rendered(tokenizer, [{"role": "user", "content": prompt}], system)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        ids = tokenizer(prompt)["input_ids"]
        while ids and ids[-1] in eos:  # some tokenizers append eos
            ids = ids[:-1]
    if not ids:
        raise ValueError(f"the tokenizer makes no tokens of the prompt {prompt[:80]!r}")
    return ids


def token_pieces(tokenizer: Any, tokens: Tensor) -> dict[int, str]:
    ids = torch.unique(tokens).tolist()
    texts = tokenizer.batch_decode([[i] for i in ids]) if ids else []
    return dict(zip(ids, texts, strict=True))


def rendered(tokenizer: Any, turns: list[dict[str, str]], system: str) -> str:
    """Turns of a conversation in the chat template, up to the start of the policy's next turn."""
    first = [{"role": "system", "content": system}] if system else []
    try:
        return tokenizer.apply_chat_template(
            first + turns, tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # a template is third-party code
        known = isinstance(error, ValueError | TemplateError) and str(error).strip()
        reason = str(error).strip().splitlines()[0] if known else in_one_line(error)
        raise ValueError(
            f"the tokenizer's chat template: {reason}; see prompt.chat and prompt.system"
        ) from None


def vocabulary(model: Any) -> int:
    return model.get_input_embeddings().weight.shape[0]


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Ids that end a completion: the tokenizer's and those of the model's settings."""
    ends: list[int] = []
    for found in (tokenizer.eos_token_id, getattr(model.generation_config, "eos_token_id", None)):
        for token in found if isinstance(found, list) else [found]:
            if token is not None and token not in ends:
                ends.append(token)
    if not ends:
        raise ValueError("the model's tokenizer has no eos token, so no completion could end")
    size = vocabulary(model)
    outside = [token for token in ends if not 0 <= token < size]
    if outside:
        raise ValueError(
            f"eos token {outside[0]} is outside the model's vocabulary of {size}, so it could "
            "never be sampled; mend eos_token_id in tokenizer_config.json or generation_config.json"
        )
    return ends


def pad_token(model: Any, tokenizer: Any, ends: list[int]) -> int:
    """The tokenizer's pad id; without one that the model knows, the first end token."""
    pad = tokenizer.pad_token_id
    return pad if pad is not None and 0 <= pad < vocabulary(model) else ends[0]
