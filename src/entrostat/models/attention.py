"""Attention within short packed rows on a CPU, as plain products.

torch's fused attention is made for long rows: for 16 rows of 96 places its backward pass on a CPU
took a quarter of a whole update of SmolLM2. Here the probabilities [R, H, S, S] are kept and every
product is one batched multiplication, by matrix units where the precision is bf16; sums and softmax
are float32.

Shapes: R rows, S places, H query heads on J key-value heads of size D, G = H / J.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..core.stats.tiled import matrix_units

NAME = "entrostat_rows"


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        """Softmax(scaling q k^T where `mask`) v: [R, J, G S, D] of q's dtype."""
        q, k, v, mask, scaling = args
        with torch.autocast(q.device.type, enabled=False), matrix_units(q):
            p = torch.bmm(_flat(q), _flat(k).transpose(1, 2)).mul_(scaling)
            R, S = len(q), k.shape[2]
            p.view(R, -1, S, S).masked_fill_(~mask, -torch.inf)  # [R, H, S, S]
            p = torch.softmax(p, -1)
            out = torch.bmm(p, _flat(v))
        ctx.save_for_backward(q, k, v, p if q.dtype == torch.float32 else p.to(q.dtype))
        ctx.scaling = scaling
        return out.view_as(q).to(q.dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyrefly: ignore[bad-override]
        q, k, v, p = ctx.saved_tensors
        p = p.float()
        with torch.autocast(q.device.type, enabled=False), matrix_units(q):
            d = _flat(grad_outputs[0])
            dv = torch.bmm(p.transpose(1, 2), d)
            ds = torch.bmm(d, _flat(v).transpose(1, 2))
            # of the softmax: p (dp - sum p dp)
            ds.sub_((ds * p).sum(-1, keepdim=True)).mul_(p).mul_(ctx.scaling)
            dq = torch.bmm(ds, _flat(k))
            dk = torch.bmm(ds.transpose(1, 2), _flat(q))
        return (*(g.view_as(x).to(x.dtype) for g, x in ((dq, q), (dk, k), (dv, v))), None, None)


def _flat(x: Tensor) -> Tensor:
    """[R, J, n, D] as float32 [R J, n, D]."""
    return x.reshape(-1, *x.shape[2:]).float()


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor,
    scaling: float | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """As transformers asks for: query [R, H, S, D], key and value [R, J, S, D] -> [R, S, H, D]."""
    if kwargs.get("softcap") is not None:
        raise ValueError("entrostat_rows has no softcap")  # found when the model is tried
    R, H, S, D = query.shape
    J = key.shape[1]
    scaling = D**-0.5 if scaling is None else scaling
    query, key = query.to(value.dtype), key.to(value.dtype)  # as fused attention does
    grouped = query.reshape(R, J, H // J * S, D)
    out = _Rows.apply(grouped, key, value, attention_mask, scaling)
    return out.view(R, H, S, D).transpose(1, 2).contiguous(), None


@cache
def _register(name: str, attend: Callable[..., tuple[Tensor, None]]) -> None:
    # what this imports brings torch's compiler, which takes longer than torch itself
    from transformers import AttentionInterface

    AttentionInterface.register(name, attend)


@contextmanager
def attending(model: Any, name: str, attend: Callable[..., tuple[Tensor, None]]) -> Iterator[None]:
    """While open, a model attends by a function of ours, known to transformers as `name`."""
    _register(name, attend)
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


def row_attention(model: Any) -> AbstractContextManager[None]:
    """While open, a model's layers attend by `_attend`, given a bool mask [R, 1, S, S]."""
    return attending(model, NAME, _attend)
