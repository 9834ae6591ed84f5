"""Sums, ranks and random numbers that do not depend on the order or split of their terms.

    sums     terms are rounded to multiples of 2^-b of a power of two above the largest magnitude:
             integers, whose sum does not depend on the order
    ranks    floats are mapped to integers of the same order, whose digits can be counted
    random   a hash of a seed, a rollout and a position

Pure functions of one process's data; `entrostat.core.distributed` combines processes. Sums stay on
the device; ranks and random numbers use numpy, which selects in a tenth of torch's time on the CPU.

Shapes: B rows, T columns, n any length. At most 2^22 columns for sums of rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

_SPARE = 14  # bits that a sum keeps beyond those of the largest term
_ROW_BITS = 40  # of a unit of a row's sum: with 2^22 columns, 62 bits
_PIECE = 1 << 16  # terms widened to float64 at once: they stay in the cache
_LIMIT = 900  # magnitudes are clamped to 2^-900 .. 2^900
# Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014): SplitMix64
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))

# ---------------------------------------------------------------------------- sums


def magnitude(values: Tensor) -> float:
    """The largest |value|; 0 for an empty tensor, inf if a value is not finite."""
    if not values.numel():
        return 0.0
    low, high = values.aminmax()
    top = max(-float(low), float(high))
    return top if math.isfinite(top) else math.inf


def exponent(top: float) -> int:
    """The exponent e with top < 2^e, clamped to [-900, 900]."""
    return min(_LIMIT, max(-_LIMIT, math.frexp(top)[1]))


def units(values: Tensor, e: int, bits: int) -> list[int]:
    """The sum of values [n], in units of 2^(e - bits), 2^(e - 2 bits), ...

    Values are float32 or float64, below 2^e in magnitude. There are enough units to keep 14 bits
    more than the dtype has of a value near 2^e. `bits` is at most 51, and n 2^bits at most 2^62.
    """
    anchors = [math.ldexp(1.5, e + 52 - bits * (i + 1)) for i in range(_limbs(values.dtype, bits))]
    counts, flat = [0] * len(anchors), values.reshape(-1)
    for at in range(0, len(flat), _PIECE):
        piece = flat[at : at + _PIECE].double()
        for i, total in enumerate(_anchored(piece, anchors)):
            counts[i] += int(total)
    offsets = (int(np.float64(anchor).view(np.int64)) * values.numel() for anchor in anchors)
    return [_signed(x - offset) for x, offset in zip(counts, offsets, strict=True)]


def from_units(counts: Sequence[int], e: int, bits: int) -> float:
    """The sum that has these units, rounded once."""
    total = 0
    for count in counts:
        total = (total << bits) + count
    return math.ldexp(float(total), e - bits * len(counts))


def row_sums(values: Tensor) -> Tensor:
    """[B, T] -> [B] float64: row sums that do not depend on padding; NaN for a non-finite row.

    Terms are rounded to multiples of 2^-40 of their row's largest magnitude (float64: of 2^-80).
    """
    if not values.numel():
        return values.new_zeros(len(values), dtype=torch.float64)
    low, high = values.aminmax(dim=-1)
    top = torch.maximum(-low, high).double()
    e = ((top.view(torch.int64) >> 52) - 1022).clamp(-_LIMIT, _LIMIT)
    power = ((e + 1023) << 52).view(torch.float64)
    scales = [2.0 ** (-_ROW_BITS * (i + 1)) * power for i in range(_limbs(values.dtype, _ROW_BITS))]
    step, found = max(1, _PIECE // values.shape[1]), []
    for at in range(0, len(values), step):
        anchors = [1.5 * 2.0**52 * unit[at : at + step, None] for unit in scales]
        sums = _anchored(values[at : at + step].double(), anchors)
        offsets = (anchor.view(torch.int64)[:, 0] * values.shape[1] for anchor in anchors)
        found.append(torch.stack([x - y for x, y in zip(sums, offsets, strict=True)]))
    counts = torch.cat(found, -1).double()
    total = sum((count * unit for count, unit in zip(counts, scales, strict=True)), 0 * top)
    return total + (top - top)


def _limbs(dtype: torch.dtype, bits: int) -> int:
    return math.ceil(((24 if dtype == torch.float32 else 53) + _SPARE) / bits)


def _anchored(x: Tensor, anchors: Sequence[float | Tensor]) -> list[Tensor]:
    """Sums of x [..., n] in units of each anchor's last place, plus n times its bits, int64.

    Near an anchor of 1.5 * 2^52 units a float64 is a whole number of units. Adding x to the anchor
    rounds x, and the bits of the sum, read as an integer, count units. The rounding error goes to
    the next anchor. Sums and offsets wrap in int64.
    """
    found = []
    for left, anchor in zip(reversed(range(len(anchors))), anchors, strict=True):
        rounded = x + anchor
        found.append(rounded.view(torch.int64).sum(-1))
        if left:
            x = x - (rounded - anchor)
    return found


def _signed(x: int) -> int:
    """The int64 that is x modulo 2^64."""
    return (x + 2**63) % 2**64 - 2**63


# ---------------------------------------------------------------------------- ranks


def keys(values: Array) -> Array:
    """Unsigned integers in the order of values [n] float32 or float64; unsigned ones as they are.

    The bits of floats are in the order of their magnitudes: those of negative ones are flipped.
    """
    if values.dtype.kind == "u":
        return values
    bits = (values + values.dtype.type(0)).view(f"u{values.itemsize}")  # 0 and -0 are one
    sign = bits.dtype.type(1 << (8 * values.itemsize - 1))
    return np.where(bits & sign, ~bits, bits | sign)


def from_key(key: int, dtype: np.dtype) -> float | int:
    if dtype.kind == "u":
        return key
    sign = 1 << (8 * dtype.itemsize - 1)
    bits = key ^ sign if key & sign else key ^ (2 * sign - 1)
    return np.array(bits, dtype=f"u{dtype.itemsize}").view(dtype).item()


# ---------------------------------------------------------------------------- chance


def hashes(seed: int, rollout: Array, row: Array, column: Array) -> Array:
    """[n] uint64, uniform, one per token: SplitMix64's stream of its rollout, at its position.

    Of a seed of at most 64 bits, identities `rollout` [B], rows and columns [n], int64 each.
    """
    streams = _mixed((rollout + 1).view(np.uint64) * _GAMMA + np.uint64(seed))
    z = (column + 1).view(np.uint64)
    z *= _GAMMA
    z += streams[row]
    return _mixed(z)


def _mixed(z: Array) -> Array:
    """SplitMix64's finaliser, in place; one to one."""
    for shift, factor in _ROUNDS:
        z ^= z >> np.uint64(shift)
        if factor != 1:
            z *= np.uint64(factor)
    return z
