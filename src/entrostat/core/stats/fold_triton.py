"""Operations on a tile of logits: one Triton kernel forward and one backward.

A program handles one token's row of a tile, block by block in registers. A tile is read once and,
for the gradient, written once, in the dtype of the products that follow. The arithmetic is that of
`fold_torch`. Tests without a GPU run the kernels in Triton's interpreter (TRITON_INTERPRET=1).

Shapes: a tile has R tokens and C columns of the vocabulary, from column `left` on.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .sums import LOWEST, Coefficients, Head, Sums

_LOWEST = tl.constexpr(LOWEST)
# columns in registers at once, and their warps, chosen by measurement (docs/gpu.md)
BLOCK = 2048
WARPS = 4


@triton.jit
def _fold_kernel(
    z_ptr, stride, columns, left, targets, top, largest, target, rest, slope, rest2, slope2,
    MOMENTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    z_row = z_ptr + row.to(tl.int64) * stride
    goal = tl.load(targets + row) - left
    if (goal >= 0) & (goal < columns):
        tl.store(target + row, tl.load(z_row + goal))
    now = tl.load(largest + row)
    where = tl.load(top + row)
    total, total_z = tl.load(rest + row), tl.load(slope + row)
    square, square_z = tl.load(rest2 + row), tl.load(slope2 + row)
    for start in range(0, columns, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < columns
        z = tl.load(z_row + place, mask=inside, other=-float("inf"))
        before = now
        peak = tl.max(z, axis=0)
        higher = peak > before
        now = tl.maximum(before, peak)
        index = tl.full([], -1, tl.int32)
        if higher:  # rare after the first block; the search costs as much as a sum
            index = start + tl.argmax(z, axis=0).to(tl.int32)
        z = tl.maximum(z - tl.maximum(now, _LOWEST), _LOWEST)
        e = tl.exp(z)
        e = tl.where(inside & (place != index), e, 0.0)
        ze = z * e
        first = before == -float("inf")
        # the previous maximum joins the sums
        moved = higher & (first == 0)
        shift = tl.where(moved, before.to(tl.float64) - now.to(tl.float64), 0.0)
        shift = tl.maximum(shift, _LOWEST)
        decay = tl.where(higher & first, 0.0, tl.exp(shift))
        joins = tl.where(moved, 1.0, 0.0).to(tl.float64)
        old = total + joins
        total = decay * old + tl.sum(e, axis=0).to(tl.float64)
        total_z = decay * (total_z + shift * old) + tl.sum(ze, axis=0).to(tl.float64)
        if MOMENTS:
            old = square + joins
            decay = decay * decay
            square = decay * old + tl.sum(e * e, axis=0).to(tl.float64)
            square_z = decay * (square_z + shift * old) + tl.sum(ze * e, axis=0).to(tl.float64)
        where = tl.where(higher, (left + index).to(tl.int64), where)
    tl.store(largest + row, now)
    tl.store(top + row, where)
    tl.store(rest + row, total)
    tl.store(slope + row, total_z)
    if MOMENTS:
        tl.store(rest2 + row, square)
        tl.store(slope2 + row, square_z)


@triton.jit
def _gradient_kernel(
    z_ptr, stride, out_ptr, out_stride, columns, left, factor, targets, top, largest,
    a, b, c, d, at_top, at_target,
    HAS_B: tl.constexpr, HAS_C: tl.constexpr, HAS_D: tl.constexpr, HAS_TARGET: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < columns
    z_row = z_ptr + row.to(tl.int64) * stride
    z = tl.load(z_row + place, mask=inside, other=-float("inf"))
    z = tl.maximum(z - tl.maximum(tl.load(largest + row), _LOWEST), _LOWEST)
    e = tl.exp(z)
    g = tl.load(a + row) + tl.zeros_like(z)
    if HAS_B:
        g += tl.load(b + row) * z
    if HAS_C:
        second = tl.load(c + row) + tl.zeros_like(z)
        if HAS_D:
            second += tl.load(d + row) * z
        g += e * second
    g = e * g
    g = tl.where(place == tl.load(top + row) - left, tl.load(at_top + row), g)
    if HAS_TARGET:
        here = place == tl.load(targets + row) - left
        g += tl.where(here, tl.load(at_target + row), 0.0)
    out_row = out_ptr + row.to(tl.int64) * out_stride
    tl.store(out_row + place, (g * factor).to(out_ptr.dtype.element_ty), mask=inside)


class TritonFold:
    """Folds tiles into the sums and turns tiles into gradients, on the GPU; float32 tiles.

    Args:
        largest_tile: (R, C) of the largest tile.
        operand: the dtype that gradients are multiplied in; a 16-bit dtype gets its own buffer.
    """

    def __init__(self, largest_tile: tuple[int, int], operand: torch.dtype) -> None:
        self._size, self._operand = largest_tile, operand
        self._buffer: Tensor | None = None

    def fold(self, z: Tensor, left: int, targets: Tensor, into: Sums) -> None:
        moments = into.rest2 is not None
        second = (into.rest2, into.slope2) if moments else (into.rest, into.slope)  # not used
        rows, columns = z.shape
        if rows and columns:
            _fold_kernel[(rows,)](
                z, z.stride(0), columns, left, targets, into.top, into.largest, into.target,
                into.rest, into.slope, *second,
                MOMENTS=moments, **_launch(columns),
            )  # fmt: skip

    def gradient_(
        self, z: Tensor, left: int, targets: Tensor, found: Sums, by: Coefficients, head: Head
    ) -> Tensor:
        """Turn logits z [R, C] float32 into the gradient of the head's raw outputs.

        Written to z or to the 16-bit buffer. A softcap's derivative is applied in float32.
        """
        rows, columns = z.shape
        capped = None if head.softcap is None else z.clone()
        factor = head.factor if head.softcap is None else 1.0
        out = z if capped is not None else self._output(z)
        if rows and columns:
            launch = _launch(columns)
            _gradient_kernel[(rows, triton.cdiv(columns, launch["BLOCK"]))](
                z, z.stride(0), out, out.stride(0), columns, left, factor, targets, found.top,
                found.largest, by.a, _or(by.b, by.a), _or(by.c, by.a), _or(by.d, by.a), by.at_top,
                _or(by.at_target, by.a),
                HAS_B=by.b is not None, HAS_C=by.c is not None, HAS_D=by.d is not None,
                HAS_TARGET=by.at_target is not None, **launch,
            )  # fmt: skip
        return out if capped is None else head.backward_(z, capped)

    def _output(self, z: Tensor) -> Tensor:
        if z.dtype == self._operand:
            return z
        if self._buffer is None:
            R, C = self._size
            self._buffer = z.new_empty(R * C, dtype=self._operand)
        return self._buffer[: z.numel()].view_as(z)


def _or(given: Tensor | None, other: Tensor) -> Tensor:
    """`given`, or `other` as a placeholder for a kernel argument that is not read."""
    return other if given is None else given


def _launch(columns: int) -> dict[str, int]:
    block = min(BLOCK, triton.next_power_of_2(columns))
    return {"BLOCK": block, "num_warps": max(1, min(WARPS, block // 32))}
