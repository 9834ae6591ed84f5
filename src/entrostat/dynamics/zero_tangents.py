"""Tangents of zero as tensors, where forward mode would have torch's placeholders.

Where one operand of a sum or product has a tangent and the other has none, torch puts a placeholder
in the latter's place and works out its shape in Python, which takes forty times what the same
operation on two tangents takes. A model has such a pair wherever it turns a query by its position
or adds an epsilon: a third of the time of a small model's analysis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

_PAIRS = {torch.add, torch.sub, torch.mul, Tensor.add, Tensor.sub, Tensor.mul}


class ZeroTangents(TorchFunctionMode):
    """While open, the other operand of a tensor with a tangent has one too, of zeros.

    Values and tangents are the same to the last bit where they are finite; zero times an infinite
    value is a tangent of NaN, where the placeholder gave none.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """What `func` returns, given two operands with tangents where one has one."""
        if func in _PAIRS and len(args) == 2:
            moving = [_has_tangent(x) for x in args]
            if moving[0] != moving[1]:
                like = args[moving.index(True)]
                args = [x if has else _still(x, like) for x, has in zip(args, moving, strict=True)]
        return func(*args, **(kwargs or {}))


def _has_tangent(x: Any) -> bool:
    return isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None


def _still(x: Any, like: Tensor) -> Any:
    """`x` with a tangent of zero; as it is where that would change the result's type."""
    x = x if isinstance(x, Tensor) else torch.tensor(x, dtype=like.dtype, device=like.device)
    return forward_ad.make_dual(x, torch.zeros_like(x)) if x.dtype == like.dtype else x
