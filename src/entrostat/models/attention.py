"""Attention within short packed rows on a CPU, as plain matrix products.

torch's fused attention is made for long rows: for 16 rows of 96 positions its backward pass on a
CPU took a quarter of a whole update of SmolLM2. Here the probabilities [R, H, S, S] are kept and
every product is one batched multiplication, by matrix units if the precision is bf16; sums and
softmax are float32.

Shapes: R rows, S positions, H query heads on J key-value heads of size D, G = H / J.
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
            # gradient of the softmax: p (dp - sum p dp)
            ds.sub_((ds * p).sum(-1, keepdim=True)).mul_(p).mul_(ctx.scaling)
            dq = torch.bmm(ds, _flat(k))
            dk = torch.bmm(ds.transpose(1, 2), _flat(q))
        return (*(g.view_as(x).to(x.dtype) for g, x in ((dq, q), (dk, k), (dv, v))), None, None)


def _flat(x: Tensor) -> Tensor:
    """[R, J, n, D] as float32 [R J, n, D]."""
    return x.reshape(-1, *x.shape[2:]).float()


def grouped(name: str, attend: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, None]]:
    """Wrap an `attend` function of `attending` in transformers' attention interface."""

    def forward(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor,
        scaling: float | None = None, **kwargs: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        """Query [b, H, n, D], key and value [b, J, S, D] -> [b, n, H, D]."""
        if kwargs.get("softcap") is not None:
            raise ValueError(f"{name} has no softcap")  # raised when the model is probed
        b, H, n, D = query.shape
        J = key.shape[1]
        query, key = query.to(value.dtype), key.to(value.dtype)  # as fused attention does
        scaling = D**-0.5 if scaling is None else scaling
        out = attend(query.reshape(b, J, H // J * n, D), key, value, attention_mask, scaling)
        return out.reshape(b, H, n, D).transpose(1, 2).contiguous(), None

    return forward


@cache
def _register(name: str, attend: Callable[..., Tensor]) -> None:
    # this also imports torch's compiler, which takes longer than torch itself
    from transformers import AttentionInterface

    AttentionInterface.register(name, grouped(name, attend))


@contextmanager
def attending(model: Any, name: str, attend: Callable[..., Tensor]) -> Iterator[None]:
    """Context in which a model attends by our function, registered in transformers as `name`.

    `attend` maps a query [b, J, G n, D], key and value [b, J, S, D], the mask and the scale of the
    products to [b, J, G n, D]. The G query heads of a key-value head are rows, so that keys and
    values are not repeated.
    """
    _register(name, attend)
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


def row_attention(model: Any) -> AbstractContextManager[None]:
    """Context in which a model attends by plain products, with a bool mask [R, 1, S, S]."""
    return attending(model, NAME, _Rows.apply)
