"""Reference implementation: log-prob, entropy and moments from logits, in plain operations.

Differentiable in both modes and any number of times. Its values are accurate. Its gradients are
autograd's: in float32 they cancel where a policy is nearly certain, which those of `plain` do not.

The usual forms cancel where a policy is nearly certain: logsumexp rounds 1 + rest to 1, and
logsumexp - E[z] subtracts two numbers of the size of the logits. Measured from the largest logit,
with z' = z - max z <= 0 and rest = sum over all tokens but that one of exp z',

    log p_j = z'_j - log1p(rest)        H = log1p(rest) - sum_j p_j z'_j

have terms of one sign only, so both keep float32's relative accuracy however small 1 - p_max is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..batch import at_least_float32
from .sums import Head

LOGITS = 2**22  # at most, in memory at once in forward mode


@dataclass
class TokenStats:
    """Statistics of next-token distributions, each [...], float32 or better, differentiable.

    Attributes:
        logp: log pi(target).
        entropy: nats.
        sum_p2: sum over the vocabulary of pi^2, or None unless moments were asked for.
        sum_p2_logp: sum over the vocabulary of pi^2 log pi, or None.
    """

    logp: Tensor
    entropy: Tensor
    sum_p2: Tensor | None = None
    sum_p2_logp: Tensor | None = None


def token_stats_from_logits(
    logits: Tensor, targets: Tensor, temperature: float = 1.0, moments: bool = False
) -> TokenStats:
    """`entrostat.token_stats_from_logits`, differentiable in both modes and any number of times.

    Raises:
        ValueError: shapes do not fit, or the temperature is not above 0.
    """
    check_logits(logits, targets, temperature)
    z = at_least_float32(logits)
    if temperature != 1:
        z = z / temperature
    top = z.detach().argmax(-1, keepdim=True)  # one index, also on ties
    shifted = z - z.gather(-1, top)
    rest = shifted.exp().scatter(-1, top, 0).sum(-1, keepdim=True)
    log_norm = rest.log1p()
    # exp(shifted - log_norm) would round its argument once more
    p = shifted.exp() / (1 + rest)
    # a token of probability 0 (logit -inf) adds 0, not 0 * -inf
    finite = shifted.masked_fill(shifted == -torch.inf, 0)
    entropy = (log_norm - (p * finite).sum(-1, keepdim=True)).squeeze(-1)
    logp = (shifted.gather(-1, targets.unsqueeze(-1)) - log_norm).squeeze(-1)
    if not moments:
        return TokenStats(logp, entropy)
    p2 = p.square()
    return TokenStats(logp, entropy, p2.sum(-1), (p2 * (finite - log_norm)).sum(-1))


def check_logits(logits: Tensor, targets: Tensor, temperature: float) -> None:
    if targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"token_stats_from_logits: targets must be {list(logits.shape[:-1])} for logits "
            f"{list(logits.shape)}, got {list(targets.shape)}"
        )
    if not temperature > 0:
        raise ValueError(f"token_stats: temperature must be above 0, got {temperature}")


def is_dual(*tensors: Tensor | None) -> bool:
    """Whether any tensor carries a tangent (`torch.autograd.forward_ad`)."""
    return any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def forward_mode_stats(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, head: Head, moments: bool
) -> list[Tensor]:
    """The statistics [N] each of hidden [N, D] and weight [V, D], with their tangents.

    `plain` and `tiled` have explicit gradients for the backward pass only. This uses the operations
    above on some tokens at a time, so that the [N, V] logits are never in memory.
    """
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    weight = weight.to(dtype)
    bias = None if bias is None else bias.to(dtype)
    rows = max(1, LOGITS // len(weight))
    parts = []
    for h, ids in zip(hidden.to(dtype).split(rows), targets.split(rows), strict=True):
        with torch.autocast(hidden.device.type, enabled=False):
            z = torch.nn.functional.linear(h, weight, bias) * head.scale
        if head.softcap is not None:
            z = head.softcap * torch.tanh(z / head.softcap)
        stats = token_stats_from_logits(z, ids, head.temperature, moments)
        found = (stats.logp, stats.entropy, stats.sum_p2, stats.sum_p2_logp)
        parts.append([x for x in found if x is not None])
    return [torch.cat(columns) for columns in zip(*parts, strict=True)]
