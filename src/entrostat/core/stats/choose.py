"""`token_stats`: statistics from hidden states and the head; selects the implementation."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from .plain import plain_stats, uncompiled
from .reference import TokenStats, forward_mode_stats, is_dual
from .sums import Head
from .tiled import CUDA_TILE, TILE, Tile, TiledStats

Implementation = Literal["auto", "plain", "tiled", "triton"]
# up to this many logits the plain form is faster, as measured in docs/numerics.md
PLAIN_LOGITS = 2**21


def token_stats(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    moments: bool = False,
    *,
    scale: float = 1.0,
    ignore_index: int = -100,
    implementation: Implementation = "auto",
    tile: Tile | None = None,
) -> TokenStats:
    """Statistics of softmax(softcap(scale (hidden weight^T + bias)) / temperature), differentiable.

    The [N, V] logits are never held: memory grows with N + V. Log-prob and entropy keep float32's
    relative accuracy where the policy is nearly certain. Gradients flow into hidden, weight and
    bias (first derivatives only); those not required are not computed. Forward-mode
    differentiation works too.

    Args:
        hidden: [..., D] float, the input of the language-model head.
        weight: [V, D] float, the head; a sharded (DTensor) weight is gathered once.
        targets: [...] int64 token ids in 0..V-1, or `ignore_index`.
        bias: [V] float, or None; -inf for an impossible token.
        temperature: above 0.
        softcap: c of c tanh(logits / c), or None.
        moments: also return `sum_p2` and `sum_p2_logp`.
        scale: factor on the head's output, which some models have.
        ignore_index: positions with this target get 0 and no gradient.
        implementation: "plain" (all logits at once; faster for tiny vocabularies), "tiled" (never
            all logits), "triton" ("tiled" with Triton kernels, for CUDA) or "auto".
        tile: (tokens, vocabulary columns) of a tile of logits.

    Returns:
        `TokenStats` of [...] tensors, float32 (float64 for float64 inputs).

    Raises:
        ValueError: shapes do not fit, or a target or a setting is out of range.

    Example:
        >>> hidden, weight = torch.zeros(2, 4), torch.zeros(8, 4)
        >>> token_stats(hidden, weight, torch.tensor([3, -100])).entropy
        tensor([2.0794, 0.0000])
    """
    _check(hidden, weight, targets, bias, temperature, softcap, scale, tile)
    weight, bias = _whole(weight), _whole(bias)
    keep = targets.flatten() != ignore_index
    everything = bool(keep.all())
    flat, ids = hidden.reshape(-1, hidden.shape[-1]), targets.flatten().contiguous()
    if not everything:
        flat, ids = flat[keep], ids[keep]
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= len(weight)):
        raise ValueError(
            f"token_stats: targets must be in 0..{len(weight) - 1} or ignore_index "
            f"({ignore_index}), got {int(ids.min())}..{int(ids.max())}"
        )
    head = Head(scale, softcap, temperature)
    if implementation == "auto":
        few = flat.shape[0] * len(weight) <= PLAIN_LOGITS
        implementation = "plain" if few else "triton" if _has_triton(flat) else "tiled"
    if implementation not in get_args(Implementation):
        raise ValueError(
            "token_stats: implementation must be 'auto', 'plain', 'tiled' or 'triton', got "
            f"{implementation!r}"
        )
    if is_dual(flat, weight, bias):
        found = forward_mode_stats(flat, weight, bias, ids, head, moments)
    elif implementation == "plain":
        found = _plain(flat, weight, bias, ids, head, moments)
    else:
        tile = tile or (CUDA_TILE if flat.is_cuda else TILE)
        triton = implementation == "triton"
        found = list(_tiled(flat, weight, bias, ids, head, moments, tile, triton))
    if not everything:
        place = keep.nonzero()[:, 0]
        found = [x.new_zeros(keep.shape).index_copy(0, place, x) for x in found]
    return TokenStats(*(x.view(targets.shape) for x in found))


def _plain(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, head: Head, moments: bool
) -> list[Tensor]:
    dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    with torch.autocast(hidden.device.type, enabled=False):
        z = torch.nn.functional.linear(
            hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        )
    return plain_stats(z, targets, head, moments)


_tiled = uncompiled(TiledStats.apply)


def _has_triton(hidden: Tensor) -> bool:
    return hidden.is_cuda and hidden.dtype != torch.float64 and find_spec("triton") is not None


def _check(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, temperature: float,
    softcap: float | None, scale: float, tile: Tile | None,
) -> None:  # fmt: skip
    if weight.ndim != 2 or hidden.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"token_stats: hidden is [..., {hidden.shape[-1]}], weight {list(weight.shape)}; "
            "the last dimensions must be equal"
        )
    if targets.shape != hidden.shape[:-1]:
        raise ValueError(
            f"token_stats: targets must be {list(hidden.shape[:-1])} for hidden "
            f"{list(hidden.shape)}, got {list(targets.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"token_stats: bias must be {list(weight.shape[:1])}, got {list(bias.shape)}"
        )
    for name, value in (("temperature", temperature), ("softcap", softcap), ("scale", scale)):
        if value is not None and not value > 0:
            raise ValueError(f"token_stats: {name} must be above 0, got {value}")
    if tile is not None and min(tile) < 1:
        raise ValueError(f"token_stats: tile must be two numbers above 0, got {tile}")


def _whole(parameter: Any) -> Any:
    """Gather a sharded parameter; its gradient is averaged over the ranks as in FSDP."""
    if parameter is None or not hasattr(parameter, "full_tensor"):
        return parameter
    from torch.distributed.tensor import Partial

    placements = [Partial("avg")] * parameter.device_mesh.ndim
    return parameter.full_tensor(grad_placements=placements)
