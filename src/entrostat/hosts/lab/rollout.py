"""Sampling with a KV cache: left-padded prompts, stop at eos, temperature and nucleus.

Shapes: B sequences, P prompt tokens at most, T completion tokens at most, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Sequences:
    """Prompts left-padded, completions right-padded, side by side.

    Attributes:
        tokens: [B, P + T] int64.
        attention: [B, P + T] int64, 1 on prompt and completion tokens.
        prompt_width: P.
        mask: [B, T] bool, the completion tokens, the closing eos included.
        sampler_logp: [B, T] float32, log-prob at the sampling temperature as sampled, 0 at mask 0.
        finished: [B] bool, whether the sequence ended with eos.
    """

    tokens: Tensor
    attention: Tensor
    prompt_width: int
    mask: Tensor
    sampler_logp: Tensor
    finished: Tensor

    @property
    def completions(self) -> Tensor:
        """[B, T] int64."""
        return self.tokens[:, self.prompt_width :]

    def __getitem__(self, rows: Tensor) -> Sequences:
        """Some rows."""
        return Sequences(
            self.tokens[rows], self.attention[rows], self.prompt_width,
            self.mask[rows], self.sampler_logp[rows], self.finished[rows],
        )  # fmt: skip


def positions(attention: Tensor) -> Tensor:
    """[B, S] position ids under left padding: the first real token is 0."""
    return (attention.cumsum(-1) - 1).clamp(min=0)


@torch.no_grad()
def sample(
    model: torch.nn.Module,
    prompts: list[list[int]],
    *,
    max_new_tokens: int,
    eos: list[int],
    pad: int,
    generator: torch.Generator,
    temperature: float = 1.0,
    top_p: float = 1.0,
    batch: int = 256,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
    on_progress: Callable[[int], None] | None = None,
) -> Sequences:
    """One completion for each prompt (repeat a prompt for a group).

    Args:
        model: a Hugging Face causal LM.
        prompts: token ids, none empty.
        max_new_tokens: T.
        eos: ids that end a sequence.
        pad: id for padding.
        generator: on the model's device.
        temperature: above 0.
        top_p: nucleus; the log-probs stay those of the whole distribution.
        batch: sequences at once; each chunk is padded to its own longest prompt.
        autocast: context for the forward passes.
        on_progress: called with the number of tokens sampled since the last call.
    """
    device = next(model.parameters()).device
    training = model.training
    model.eval()  # in train mode, gradient checkpointing switches the cache off
    P = max(map(len, prompts))
    T = max_new_tokens
    tokens = torch.full((len(prompts), P + T), pad, device=device)
    attention = torch.zeros((len(prompts), P + T), dtype=torch.int64, device=device)
    logps = torch.zeros((len(prompts), T), device=device)
    for row, prompt in enumerate(prompts):
        tokens[row, P - len(prompt) : P] = torch.tensor(prompt, device=device)
        attention[row, P - len(prompt) : P] = 1
    ends = torch.tensor(eos, device=device)
    finished = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for first in range(0, len(prompts), batch):
        rows = torch.arange(first, min(first + batch, len(prompts)), device=device)
        width = max(len(prompts[int(r)]) for r in rows)
        feed = tokens[rows, P - width : P]
        seen = attention[rows, P - width : P]
        place = positions(seen)
        cache = None
        for step in range(T):
            with autocast():
                out = model(
                    input_ids=feed, attention_mask=seen, position_ids=place,
                    past_key_values=cache, use_cache=True, logits_to_keep=1,
                )  # fmt: skip
            cache = out.past_key_values
            logp = torch.log_softmax(out.logits[:, -1].float() / temperature, -1)  # [b, V]
            choice = torch.multinomial(_nucleus(logp.exp(), top_p), 1, generator=generator)
            alive = ~finished[rows]
            tokens[rows, P + step] = torch.where(alive, choice[:, 0], pad)
            logps[rows, step] = torch.where(alive, logp.gather(1, choice)[:, 0], 0)
            attention[rows, P + step] = alive.long()
            finished[rows] |= alive & torch.isin(choice[:, 0], ends)
            if on_progress is not None:
                on_progress(int(alive.sum()))
            keep = ~finished[rows]
            left = int(keep.sum())
            if left == 0 or step == T - 1:
                break
            # rows that ended only cost time; dropping them copies the cache, so not each step
            if left <= len(rows) * 3 // 4:
                rows = rows[keep]
                cache.batch_select_indices(keep.nonzero()[:, 0])
                seen, place = seen[keep], place[keep]
            feed = tokens[rows, P + step : P + step + 1]
            seen = torch.cat([seen, attention[rows, P + step : P + step + 1]], -1)
            place = place[:, -1:] + 1
    model.train(training)
    used = int(attention[:, P:].sum(-1).max())
    return Sequences(
        tokens[:, : P + used], attention[:, : P + used], P,
        attention[:, P : P + used].bool(), logps[:, :used], finished,
    )  # fmt: skip


def _nucleus(p: Tensor, top_p: float) -> Tensor:
    """[b, V]: probabilities outside the smallest set of mass >= top_p set to 0."""
    if top_p >= 1:
        return p
    ordered, index = p.sort(-1, descending=True)
    outside = ordered.cumsum(-1) - ordered >= top_p
    return p.scatter(-1, index, ordered.masked_fill(outside, 0))
