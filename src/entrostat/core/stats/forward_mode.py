"""Statistics of tensors that carry a forward-mode tangent, by the oracle.

The accurate gradients of `plain` and `tiled` are written out for the backward pass; forward mode
goes through the oracle's plain operations instead, some tokens at a time, so that a large
vocabulary's logits are never all there.

Shapes: N tokens, D width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .reference import TokenStats, token_stats_from_logits
from .sums import Head

LOGITS = 2**22  # held at once


def is_dual(*tensors: Tensor | None) -> bool:
    """Whether one of them carries a tangent (`torch.autograd.forward_ad`)."""
    return any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def forward_mode_stats(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, head: Head, moments: bool
) -> list[Tensor]:
    """The statistics [N] each, their tangents with them."""
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
        stats: TokenStats = token_stats_from_logits(z, ids, head.temperature, moments)
        found = (stats.logp, stats.entropy, stats.sum_p2, stats.sum_p2_logp)
        parts.append([x for x in found if x is not None])
    return [torch.cat(columns) for columns in zip(*parts, strict=True)]
