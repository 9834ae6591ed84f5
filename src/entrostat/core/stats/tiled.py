"""Token statistics from hidden states and the head's weight, without the [N, V] logits in memory.

Logits exist one tile of R tokens x C columns of the vocabulary at a time. The forward pass folds
each tile into a few sums per token (`sums`). The backward pass recomputes each tile, turns it into
its gradient in place and multiplies that into the gradients of hidden states and weight. Tiles are
float32 (float64 for float64 inputs) and sums over tiles float64. Gradients of hidden states and
weight accumulate in the tiles' dtype.

Shapes: N tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .fold_torch import TorchFold
from .sums import LOWEST, Head, Sums, coefficients, once

Tile = tuple[int, int]  # tokens, columns

# measured on two cores (docs/numerics.md) and on an H200 (docs/gpu.md), whose 132
# multiprocessors 33 x 256 columns fill; a tile has 554 MB there
TILE: Tile = (1024, 2048)
CUDA_TILE: Tile = (16384, 8448)
_HALF = (torch.bfloat16, torch.float16)


class _Tiles:
    """Computes tiles of logits into one buffer, and multiplies their gradients back."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, head: Head,
        tile: Tile,
    ) -> None:  # fmt: skip
        self.hidden, self.weight, self.bias, self.head = hidden, weight, bias, head
        self.rows = list(_spans(len(hidden), tile[0]))
        self.columns = list(_spans(len(weight), tile[1]))
        self.dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        # tensor cores multiply 16-bit operands and add in float32; elsewhere operands are widened
        self.half = hidden.is_cuda and hidden.dtype in _HALF
        self.operand = hidden.dtype if self.half else self.dtype
        self.size = (min(tile[0], len(hidden)), min(tile[1], len(weight)))
        self._tile = hidden.new_empty(self.size[0] * self.size[1], dtype=self.dtype)
        # compared in the statistics' precision: fp16 cannot represent LOWEST
        self.forbidden = bias is not None and bool((bias.to(self.dtype) < LOWEST).any())

    def fold(self, triton: bool) -> Any:
        """A `TorchFold`, or a `TritonFold`, which has the same two operations."""
        if triton:
            from .fold_triton import TritonFold

            return TritonFold(self.size, self.operand)
        return TorchFold(self.size, self._tile, self.forbidden)

    def weight_of(self, span: slice) -> Tensor:
        return self.weight[span].to(self.operand)

    def hidden_of(self, span: slice) -> Tensor:
        return self.hidden[span].to(self.operand)

    def logits(self, hidden: Tensor, weight: Tensor, columns: slice) -> Tensor:
        z = self._tile[: len(hidden) * len(weight)].view(len(hidden), len(weight))
        if self.half:
            torch.mm(hidden, weight.t(), out_dtype=torch.float32, out=z)
        else:
            torch.mm(hidden, weight.t(), out=z)
        if self.bias is not None:
            z.add_(self.bias[columns].to(self.dtype))
        return self.head.apply_(z)

    def add_product_(self, into: Tensor, left: Tensor, right: Tensor) -> None:
        if self.half:
            left, right = left.to(self.operand), right.to(self.operand)
            torch.addmm(into, left, right, out_dtype=torch.float32, out=into)
        else:
            into.addmm_(left, right)


@contextmanager
def matrix_units(hidden: Tensor) -> Iterator[None]:
    """Context: multiply bf16 hidden states with AMX, if the processor has it.

    Operands of float32 products are rounded to bf16, sums stay float32: two to four times as fast.
    """
    units: Any = torch.backends.mkldnn.matmul  # pyrefly: ignore[missing-attribute]
    before = units.fp32_precision
    if not hidden.is_cuda and hidden.dtype == torch.bfloat16 and has_amx():
        units.fp32_precision = "bf16"
    try:
        yield
    finally:
        units.fp32_precision = before


def has_amx() -> bool:
    """Whether the processor has matrix units for bf16 that torch may use."""
    return torch.backends.mkldnn.is_available() and torch.cpu._is_amx_tile_supported()


def _spans(total: int, size: int) -> Iterator[slice]:
    for begin in range(0, total, size):
        yield slice(begin, min(begin + size, total))


def sums(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, head: Head,
    moments: bool, tile: Tile = TILE, triton: bool = False,
) -> Sums:  # fmt: skip
    """One pass over the vocabulary: hidden [N, D], weight [V, D], bias [V], targets [N] int64."""
    tiles = _Tiles(hidden, weight, bias, head, tile)
    found = Sums.empty(len(hidden), tiles.dtype, hidden.device, moments)
    fold = tiles.fold(triton)
    parts = [(rows, targets[rows], found.of(rows)) for rows in tiles.rows]
    for columns in tiles.columns:
        w = tiles.weight_of(columns)
        for rows, theirs, into in parts:
            z = tiles.logits(tiles.hidden_of(rows), w, columns)
            fold.fold(z, columns.start, theirs, into)
    return found


def gradients(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, head: Head, found: Sums,
    incoming: tuple[Tensor | None, ...], wanted: tuple[bool, ...],
    tile: Tile = TILE, triton: bool = False,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of hidden, weight and bias; recomputes each tile's logits.

    From the result of `sums` and the gradients [N] of log p, H, sum p^2 and sum p^2 log p (None for
    no gradient). `wanted` selects which of the three are computed; the others are None.
    """
    tiles = _Tiles(hidden, weight, bias, head, tile)
    by = coefficients(found, incoming, targets)
    fold = tiles.fold(triton)
    d_hidden = torch.zeros_like(hidden, dtype=tiles.dtype) if wanted[0] else None
    d_weight = torch.zeros_like(weight) if wanted[1] else None
    d_bias = torch.zeros_like(bias) if wanted[2] and bias is not None else None
    for columns in tiles.columns:
        w = tiles.weight_of(columns)
        dw, db = None, None if d_bias is None else w.new_zeros(len(w), dtype=tiles.dtype)
        if d_weight is not None:  # in place if that is precise enough, else in a separate tile
            exact = d_weight.dtype == tiles.dtype
            dw = d_weight[columns] if exact else torch.zeros_like(w, dtype=tiles.dtype)
        for rows in tiles.rows:
            h = tiles.hidden_of(rows)
            z = tiles.logits(h, w, columns)
            g = fold.gradient_(z, columns.start, targets[rows], found.of(rows), by.of(rows), head)
            if d_hidden is not None:
                tiles.add_product_(d_hidden[rows], g, w)
            if dw is not None:
                tiles.add_product_(dw, g.t(), h)
            if db is not None:
                db += g.sum(0, dtype=db.dtype)
        if d_bias is not None and db is not None:
            d_bias[columns] = db.to(d_bias.dtype)
        if d_weight is not None and dw is not None and dw.dtype != d_weight.dtype:
            d_weight[columns] = dw.to(d_weight.dtype)
    return None if d_hidden is None else d_hidden.to(hidden.dtype), d_weight, d_bias


class TiledStats(torch.autograd.Function):
    """`sums` and `gradients` for autograd; statistics [N] each, float32 or better."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        hidden, weight, bias, targets, head, moments, tile, triton = args
        with torch.autocast(hidden.device.type, enabled=False), matrix_units(hidden):
            found = sums(hidden, weight, bias, targets, head, moments, tile, triton)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, bias, targets, *found)
        ctx.head, ctx.tile, ctx.triton = head, tile, triton
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        return tuple(x.to(dtype) for x in found.stats())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyrefly: ignore[bad-override]
        once()
        hidden, weight, bias, targets, *found = ctx.saved_tensors
        incoming = (*grad_outputs, None, None)[:4]
        with torch.autocast(hidden.device.type, enabled=False), matrix_units(hidden):
            out = gradients(
                hidden, weight, bias, targets, ctx.head, Sums(*found), incoming,
                ctx.needs_input_grad[:3], ctx.tile, ctx.triton,
            )  # fmt: skip
        return *out, None, None, None, None, None
