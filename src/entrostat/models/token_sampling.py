"""One token per sequence from its logits, with the log-prob it has at the sampling temperature.

`torch.multinomial` draws a random number for every entry of the vocabulary: 256 rows of 49,152 take
it .4 s on two cores, ten times the model's own time for them. For large vocabularies one uniform
number per row is looked up in the cumulative distribution instead, first by blocks, then inside
one. Such numbers may also be given: an evaluation brings its own, which do not depend on what else
is in the batch.

Shapes: b sequences, V vocabulary, C entries of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor

# below this, one draw an entry is as fast, and samples of earlier versions stay what they were
LARGE = 4096
_BLOCK = 256

Source = torch.Generator | Tensor | None


def choose(
    logits: Tensor, temperature: float, top_p: float, source: Source
) -> tuple[Tensor, Tensor]:
    """Tokens [b] int64 and their log-probs [b] float32; NaN where the logits are none.

    The log-prob is that of the whole distribution also where `top_p` cuts it, or `source` is None.

    Args:
        logits: [b, V].
        temperature: above 0.
        top_p: nucleus.
        source: a generator; or a uniform number per sequence, [b] float64 in [0, 1), whose token
            then depends on its own row alone; or None for the most likely token.
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
    """The entries [b] at which the cumulative sums of e [b, V] pass u [b] of their totals [b].

    Sums over blocks and within the one chosen are float64: float32 over a whole vocabulary would
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
    # rounding of the two sums may point past the block's last entry that can be drawn at all
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
