"""Sampling with a KV cache: left-padded prompts, temperature and nucleus, to eos or a stop.

`torch.multinomial` draws a random number for every entry of the vocabulary: for 256 rows of 49,152
it takes .4 s on two cores, ten times the model's own time. For large vocabularies one uniform
number per row is looked up in the cumulative distribution instead, first by blocks, then inside one
block. The numbers may also be given: an evaluation has its own, independent of the other sequences
in the batch.

Shapes: B sequences (b at once), P prompt tokens and T completion tokens at most, V vocabulary, C
entries of a vocabulary block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..core.stats import token_stats_from_logits
from ..errors import RunStopped
from .kv_cache import GraphedDecoder, autocast_dtype, branch
from .prepacked import prepacked
from .stops import EarlyStop, Stops

# below this, one draw per entry is as fast, and samples of earlier versions stay the same
LARGE = 4096
_BLOCK = 256
Source = torch.Generator | Tensor | None


@dataclass
class Sequences:
    """Prompts left-padded, completions right-padded, side by side.

    Between a rollout's turns are the observation tokens of its environment: completion tokens at
    mask 0.
    """

    tokens: Tensor  # [B, P + T] int64
    attention: Tensor  # [B, P + T] int64, 1 on prompt and completion tokens
    prompt_width: int  # P
    # [B, T] bool, the tokens that the policy sampled, the closing eos or stop included
    mask: Tensor
    # [B, T] float32, log-prob at the sampling temperature as sampled, 0 at mask 0
    sampler_logp: Tensor
    # [B] bool, whether the sequence ended with eos or a stop; with several turns, whether its
    # environment ended it
    finished: Tensor
    prompt: Tensor  # [B] int64, equal for sequences of one prompt
    # [B, T] float32, nats, of the distribution sampled from, 0 at mask 0; None if not requested
    sampler_entropy: Tensor | None = None
    # [B] bool, sequences dropped by early stopping; None without early stopping
    dropped: Tensor | None = None

    @classmethod
    def ragged(
        cls, prompts: Sequence[list[int]], completions: Sequence[list[int]], prompt: Sequence[int],
        pad: int, device: torch.device, *, finished: Sequence[bool] | None = None,
        mask: Sequence[list[bool]] | None = None, logp: Sequence[list[float]] | None = None,
        entropy: Sequence[list[float]] | None = None, dropped: Sequence[bool] | None = None,
    ) -> Sequences:  # fmt: skip
        """From lists of any lengths, one per sequence; by default all sampled and all finished."""

        def filled(
            rows: Sequence[list[Any]], fill: int, dtype: torch.dtype, side: str = "right"
        ) -> Tensor:
            tensors = [torch.tensor(row, dtype=dtype) for row in rows]
            return pad_sequence(tensors, True, fill, side).to(device)

        def figures(rows: Sequence[list[float]]) -> Tensor:
            return filled(rows, 0, torch.float32).masked_fill(~sampled, 0)

        before = filled(prompts, pad, torch.int64, "left")
        there = filled([[1] * len(row) for row in prompts], 0, torch.int64, "left")
        real = filled([[True] * len(row) for row in completions], 0, torch.bool)
        sampled = real if mask is None else filled(mask, 0, torch.bool)
        return cls(
            torch.cat([before, filled(completions, pad, torch.int64)], 1),
            torch.cat([there, real.long()], 1),
            before.shape[1],
            sampled,
            torch.zeros(real.shape, device=device) if logp is None else figures(logp),
            torch.tensor([True] * len(prompts) if finished is None else finished, device=device),
            torch.tensor(prompt, device=device),
            None if entropy is None else figures(entropy),
            None if dropped is None else torch.tensor(dropped, device=device),
        )

    @property
    def completions(self) -> Tensor:
        """[B, T] int64."""
        return self.tokens[:, self.prompt_width :]

    @property
    def completed(self) -> Tensor:
        """[B, T] bool: all completion tokens, including observation tokens."""
        return self.attention[:, self.prompt_width :].bool()

    def __getitem__(self, rows: Tensor) -> Sequences:
        tensors = {name: x for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **{name: x[rows] for name, x in tensors.items()})

    def trimmed(self) -> Sequences:
        """The sequences without columns of padding only."""
        used = int(self.completed.sum(-1).max())
        S, H = self.prompt_width + used, self.sampler_entropy
        return replace(
            self, tokens=self.tokens[:, :S], attention=self.attention[:, :S],
            mask=self.mask[:, :used], sampler_logp=self.sampler_logp[:, :used],
            sampler_entropy=None if H is None else H[:, :used],
        )  # fmt: skip


def positions(attention: Tensor) -> Tensor:
    """[B, S] position ids under left padding: the first real token is 0."""
    return (attention.cumsum(-1) - 1).clamp(min=0)


@torch.no_grad()
def sample(
    model: torch.nn.Module,
    prompts: list[list[int]],
    *,
    rollouts: int = 1,
    max_new_tokens: int,
    eos: list[int],
    pad: int,
    generator: Source,
    temperature: float = 1.0,
    top_p: float = 1.0,
    batch: int = 256,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
    share: bool = True,
    prepack: bool = False,
    graph: bool = False,
    stops: Stops | None = None,
    exact: bool = False,
    enough: EarlyStop | None = None,
    where: str = "sampling",
    on_progress: Callable[[int], None] | None = None,
) -> Sequences:
    """Sample completions: B = len(prompts) * rollouts sequences, a prompt's side by side.

    Args:
        model: a Hugging Face causal LM.
        prompts: token ids, none empty.
        rollouts: completions per prompt; the prompt itself is computed once.
        max_new_tokens: T.
        eos: ids that end a sequence.
        pad: id for padding.
        generator: on the model's device; or uniform numbers [B, T], one per token; or None for the
            most likely tokens.
        temperature: above 0.
        top_p: nucleus; the log-probs stay those of the whole distribution.
        batch: sequences at once, in whole groups.
        autocast: context for the forward passes.
        share: compute a prompt once and branch its cache; False if the cache does not support it.
        prepack: multiply by reordered copies of the weights if that is faster (`prepacked`).
        graph: decode with one CUDA graph per step (`kv_cache`); needs `share`.
        stops: strings that also end a sequence.
        exact: also return entropies, and compute log-probs as in a training pass.
        enough: rule for early stopping of the sequences at once; None waits for all.
        where: context for error messages.
        on_progress: called with the number of tokens sampled since the last call.
    """
    device = next(model.parameters()).device
    P, T, B = max(map(len, prompts)), max_new_tokens, len(prompts) * rollouts
    ids = torch.tensor([[pad] * (P - len(p)) + p for p in prompts], device=device)
    real = torch.tensor([[0] * (P - len(p)) + [1] * len(p) for p in prompts], device=device)
    tokens = torch.full((B, P + T), pad, device=device)
    tokens[:, :P] = ids.repeat_interleave(rollouts, 0)
    attention = torch.zeros((B, P + T), dtype=torch.int64, device=device)
    attention[:, :P] = real.repeat_interleave(rollouts, 0)
    logps = torch.zeros((B, T), device=device)
    entropies = torch.zeros((B, T), device=device) if exact else None
    finished = torch.zeros(B, dtype=torch.bool, device=device)
    number = torch.arange(len(prompts), device=device).repeat_interleave(rollouts)
    dropped = None if enough is None else torch.zeros_like(finished)
    ends = torch.tensor(eos, device=device)
    # one context for all steps: autocast caches the weights that it has cast until it ends
    with _evaluating(model), autocast(), prepacked(model) if prepack else nullcontext():
        for group in torch.arange(len(prompts), device=device).split(max(1, batch // rollouts)):
            begin = group if share else group.repeat_interleave(rollouts)
            out = model(
                input_ids=ids[begin], attention_mask=real[begin],
                position_ids=positions(real[begin]), use_cache=True, logits_to_keep=1,
            )  # fmt: skip
            cache, logits = out.past_key_values, out.logits[:, -1]
            decode = None
            if share and graph:
                decode = GraphedDecoder(
                    model, cache, real[group], rollouts, P + T, autocast_dtype(device.type)
                )
            elif share:
                branch(cache, rollouts, room=T - 1)
            if share:
                logits = logits.repeat_interleave(rollouts, 0)
            here = slice(int(group[0]) * rollouts, (int(group[-1]) + 1) * rollouts)
            rows = torch.arange(here.start, here.stop, device=device)
            live = rows  # those of `rows` that have not ended
            place = real[group].sum(-1, keepdim=True).repeat_interleave(rollouts, 0)
            for step in range(T):
                source = generator[rows, step] if isinstance(generator, Tensor) else generator
                choice, logp = choose(logits, temperature, top_p, source)
                if not torch.isfinite(logp).all():
                    raise RunStopped(
                        f"{where}: the policy's logits are not finite. No update was made; the "
                        "last checkpoint is good: lower optim.lr or use --precision fp32"
                    )
                alive = ~finished[rows]
                tokens[rows, P + step] = torch.where(alive, choice, pad)
                if entropies is not None:
                    found = token_stats_from_logits(logits, choice, temperature)
                    logp = found.logp
                    entropies[rows, step] = torch.where(alive, found.entropy, 0)
                logps[rows, step] = torch.where(alive, logp, 0)
                attention[rows, P + step] = alive.long()
                if on_progress is not None:
                    on_progress(len(live))
                finished[rows] |= torch.isin(choice, ends)
                if stops is not None:
                    finished[live] |= stops.completed(tokens[live, P : P + step + 1])
                keep = ~finished[rows]
                live = rows[keep]
                if len(live) == 0 or step == T - 1:
                    break
                if enough is not None and enough.reached(finished[here], number[here]):
                    assert dropped is not None
                    dropped[here] = ~finished[here]
                    break
                # ended rows only cost time; dropping them copies the cache and recaptures the
                # graph, so not at every step
                if share and len(live) <= len(rows) * (2 if decode else 3) // 4:
                    kept = keep.nonzero()[:, 0]
                    (decode.select if decode else cache.batch_select_indices)(kept)
                    rows, place = live, place[keep]
                if decode:
                    logits = decode(tokens[rows, P + step], place, P + step)
                else:
                    logits = model(
                        input_ids=tokens[rows, P + step, None],
                        attention_mask=attention[rows, : P + step + 1],
                        position_ids=place, past_key_values=cache, use_cache=True,
                        logits_to_keep=1,
                    ).logits[:, -1]  # fmt: skip
                place = place + 1
    return Sequences(
        tokens, attention, P, attention[:, P:].bool(), logps, finished, number, entropies, dropped
    ).trimmed()


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Eval mode: in train mode, gradient checkpointing disables the cache."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def of_dropped(sequences: Sequences) -> dict[str, float]:
    """Metrics of the sequences dropped by early stopping; empty without early stopping.

    `rollout/dropped` counts them; `rollout/dropped_length_mean`, `_min` and `_max` are of their
    tokens so far, absent if none was dropped. Those of the other sequences are
    `rollout/length_mean` and `rollout/length_max`.
    """
    if sequences.dropped is None:
        return {}
    lengths = sequences.mask[sequences.dropped].sum(-1).double()
    figures = {"rollout/dropped": float(len(lengths))}
    if len(lengths):
        figures |= {
            "rollout/dropped_length_mean": float(lengths.mean()),
            "rollout/dropped_length_min": float(lengths.min()),
            "rollout/dropped_length_max": float(lengths.max()),
        }
    return figures


def choose(
    logits: Tensor, temperature: float, top_p: float, source: Source
) -> tuple[Tensor, Tensor]:
    """Sample tokens [b] int64 and log-probs [b] float32 from `logits` [b, V]; NaN for NaN logits.

    The log-prob is that of the whole distribution even with `top_p`. `source` is a generator; or a
    uniform number per sequence, [b] float64 in [0, 1), so that a token depends on its own row only;
    or None for the most likely token.
    """
    if source is None or logits.shape[-1] < LARGE or top_p < 1:
        logp = torch.log_softmax(logits.float() / temperature, -1)  # [b, V]
        if not torch.isfinite(logp.amax()):
            return logp.new_zeros(len(logp), dtype=torch.int64), logp[:, 0] * torch.nan
        if source is None:
            token = logp.argmax(-1)
        elif isinstance(source, Tensor):
            token, _ = _look_up(_nucleus(logp.exp(), top_p), source)
        else:
            token = torch.multinomial(_nucleus(logp.exp(), top_p), 1, generator=source)[:, 0]
        return token, logp.gather(1, token[:, None])[:, 0]
    z = logits.float() if temperature == 1 else logits.float() / temperature
    largest = z.amax(-1, keepdim=True)
    e = (z - largest).exp_()  # not normalised: the largest is 1
    if isinstance(source, Tensor):
        u = source
    else:
        u = torch.rand(len(e), generator=source, device=e.device, dtype=torch.float64)
    token, total = _look_up(e, u)
    at = z.gather(1, token[:, None])[:, 0]
    return token, at - largest[:, 0] - total.log().float()


def _look_up(e: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The entries [b] at which the cumulative sums of e [b, V] exceed u [b] times their totals [b].

    Sums over blocks and within the chosen block are float64: float32 over a whole vocabulary would
    move 1e-3 of the probability to the wrong token.
    """
    V = e.shape[1]
    if V % _BLOCK:
        e = torch.nn.functional.pad(e, (0, -V % _BLOCK))
    blocks = e.view(len(e), -1, _BLOCK)  # [b, V / C, C]
    upto = blocks.sum(-1, dtype=torch.float32).double().cumsum(-1)
    total = upto[:, -1]
    goal = u * total
    block = torch.searchsorted(upto, goal[:, None], right=True).clamp(max=upto.shape[1] - 1)
    before = torch.where(block > 0, upto.gather(1, (block - 1).clamp(min=0)), 0)
    inside = blocks[torch.arange(len(e), device=e.device), block[:, 0]].double().cumsum(-1)
    place = torch.searchsorted(inside, goal[:, None] - before, right=True)
    # rounding of the two sums may point past the block's last entry of nonzero probability
    last = torch.searchsorted(inside, inside[:, -1:].contiguous()).clamp(max=_BLOCK - 1)
    place = torch.minimum(place, last)
    return (block * _BLOCK + place)[:, 0].clamp(max=V - 1), total


def _nucleus(p: Tensor, top_p: float) -> Tensor:
    """[b, V]: probabilities outside the smallest set of mass >= top_p set to 0."""
    if top_p >= 1:
        return p
    ordered, index = p.sort(-1, descending=True)
    outside = ordered.cumsum(-1) - ordered >= top_p
    return p.scatter(-1, index, ordered.masked_fill(outside, 0))
