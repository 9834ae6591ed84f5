"""Token statistics from existing logits, with accurate values and gradients.

One fold over the whole vocabulary, and an explicit gradient (`sums`): autograd through the formulas
would cancel where a policy is nearly certain.

Shapes: N tokens, V vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from .fold_torch import TorchFold
from .reference import TokenStats, check_logits, is_dual
from .reference import token_stats_from_logits as oracle
from .sums import LOWEST, Head, Sums, coefficients, once

_P = ParamSpec("_P")
_T = TypeVar("_T")


def uncompiled(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorator: `torch.compiler.disable` without importing the compiler.

    That import takes longer than torch's own. Until someone imports the compiler nothing is
    compiled; afterwards the function is disabled as usual.
    """
    disabled: list[Callable[_P, _T]] = []

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **kwargs)

    return call


class LogitStats(torch.autograd.Function):
    """Statistics [N] each of softmax(head(outputs)) from raw outputs [N, V] of any precision."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        outputs, targets, head, moments = args
        z = _logits(outputs, head)
        forbidden = bool((z < LOWEST).any())
        found = Sums.empty(len(z), z.dtype, z.device, moments)
        if z.numel():
            TorchFold((len(z), z.shape[1]), z, forbidden).fold(z, 0, targets, found)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(outputs, targets, *found)
        ctx.head, ctx.forbidden = head, forbidden
        return tuple(x.to(z.dtype) for x in found.stats())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyrefly: ignore[bad-override]
        once()
        outputs, targets, *kept = ctx.saved_tensors
        found = Sums(*kept)
        z = _logits(outputs, ctx.head)
        if z.numel():
            by = coefficients(found, (*grad_outputs, None, None)[:4], targets)
            fold = TorchFold((len(z), z.shape[1]), z, ctx.forbidden)
            fold.gradient_(z, 0, targets, found, by, ctx.head)
        return z.to(outputs.dtype), None, None, None


def _logits(outputs: Tensor, head: Head) -> Tensor:
    """A copy, float32 or better, with scale, softcap and temperature applied."""
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    return head.apply_(outputs.to(dtype, copy=True))


def token_stats_from_logits(
    logits: Tensor, targets: Tensor, temperature: float = 1.0, moments: bool = False
) -> TokenStats:
    """Statistics of softmax(logits / temperature), differentiable once or in forward mode.

    Args:
        logits: [..., V] float of any precision; computed in float32 (float64 stays).
        targets: [...] int64 token ids in 0..V-1.
        temperature: above 0.
        moments: also return `sum_p2` and `sum_p2_logp`.

    Raises:
        ValueError: shapes do not fit, a target is out of range, or the temperature is not above 0.
    """
    check_logits(logits, targets, temperature)
    if is_dual(logits):
        return oracle(logits, targets, temperature, moments)
    _check_range(targets, logits.shape[-1])
    flat = logits.reshape(-1, logits.shape[-1])
    found = plain_stats(flat, targets.flatten(), Head(temperature=temperature), moments)
    return TokenStats(*(x.view(targets.shape) for x in found))


@uncompiled
def _check_range(targets: Tensor, columns: int) -> None:
    """Raise on ids outside the logits' columns: they would get a log-prob all the same."""
    if not targets.numel():
        return
    least, most = (int(end) for end in targets.aminmax())
    if least < 0 or most >= columns:
        raise ValueError(
            f"token_stats_from_logits: targets must be in 0..{columns - 1}, got {least}..{most}; "
            "positions to ignore are for the mask, or for token_stats(..., ignore_index=...)"
        )


@uncompiled
def plain_stats(outputs: Tensor, targets: Tensor, head: Head, moments: bool) -> list[Tensor]:
    """The statistics [N] each of raw outputs [N, V] of a head."""
    return list(LogitStats.apply(outputs, targets, head, moments))
