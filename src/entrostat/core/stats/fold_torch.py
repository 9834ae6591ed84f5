"""Operations on a tile of logits in plain torch: any device, float32 or float64.

On a CPU a tile is processed in strips of rows, so that a strip stays in a core's cache from one
operation to the next. On a GPU a strip is the whole tile: kernel launches cost more.

Shapes: a tile has R tokens and C columns of the vocabulary, from column `left` on.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .sums import LOWEST, Coefficients, Head, Sums

_STRIP = 2**18  # numbers in a strip: a megabyte of float32


class TorchFold:
    """Folds tiles into the sums and turns tiles into gradients, in its own buffers.

    Args:
        largest_tile: (R, C) of the largest tile.
        like: a tensor of the tiles' dtype and device.
        forbidden: whether some logits may be -inf.
    """

    def __init__(self, largest_tile: tuple[int, int], like: Tensor, forbidden: bool) -> None:
        rows, columns = largest_tile
        self.forbidden = forbidden
        strip = rows * columns if like.is_cuda else _STRIP
        self.height = max(1, min(rows, strip // max(1, columns)))
        self._buffers = [like.new_empty(self.height * columns)]
        self._like = like

    def fold(self, z: Tensor, left: int, targets: Tensor, into: Sums) -> None:
        """Add a tile of logits z [R, C], which it overwrites, to the sums of its tokens [R].

        If the tile has a larger logit, the previous largest joins the sums. Exactly one index is
        left out of the sums, also on ties.
        """
        mine, local = _inside(targets, left, z)
        into.target[mine] = z[mine, local]
        before = into.largest.clone()
        torch.maximum(before, z.amax(1), out=into.largest)
        higher = (into.largest > before).nonzero()[:, 0]  # few, after the first tiles
        if len(higher):
            index = z[higher].argmax(1)
            z[higher, index] = LOWEST
            into.top[higher] = left + index
            first = before[higher].isneginf()
            shift = before[higher].double() - into.largest[higher].double()
            shift = torch.where(first, 0, shift).clamp(min=LOWEST)
            decay = torch.where(first, 0, shift.exp())
            rest, slope = into.rest[higher], into.slope[higher]
            into.rest[higher] = decay * (rest + 1)
            into.slope[higher] = decay * (slope + shift * (rest + 1))
            if into.rest2 is not None and into.slope2 is not None:
                rest2, slope2 = into.rest2[higher], into.slope2[higher]
                into.rest2[higher] = decay.square() * (rest2 + 1)
                into.slope2[higher] = decay.square() * (slope2 + shift * (rest2 + 1))
        for rows in self._strips(z):
            strip, sums = z[rows], into.of(rows)
            e = self._buffer(0, strip)
            torch.exp(self._measure_(strip, sums.largest), out=e)
            sums.rest.add_(e.sum(1))
            sums.slope.add_(strip.mul_(e).sum(1))
            if sums.rest2 is not None and sums.slope2 is not None:
                sums.slope2.add_(strip.mul_(e).sum(1))
                sums.rest2.add_(e.square_().sum(1))

    def gradient_(
        self, z: Tensor, left: int, targets: Tensor, found: Sums, by: Coefficients, head: Head
    ) -> Tensor:
        """Turn logits z [R, C] into the gradient of the head's raw outputs, in place."""
        capped = None if head.softcap is None else z.clone()
        for rows in self._strips(z):
            strip, now = z[rows], by.of(rows)
            e = self._buffer(0, strip)
            torch.exp(self._measure_(strip, found.largest[rows]), out=e)
            if now.c is None:
                strip = strip.zero_() if now.b is None else strip.mul_(now.b[:, None])
            else:
                t = self._buffer(1, strip)
                if now.d is None:
                    t.copy_(now.c[:, None].expand_as(t))
                else:
                    torch.mul(strip, now.d[:, None], out=t).add_(now.c[:, None])
                t.mul_(e)
                strip = strip.copy_(t) if now.b is None else strip.mul_(now.b[:, None]).add_(t)
            strip.add_(now.a[:, None]).mul_(e)
        mine, local = _inside(found.top, left, z)
        z[mine, local] = by.at_top[mine]
        if by.at_target is not None:
            mine, local = _inside(targets, left, z)
            z[mine, local] += by.at_target[mine]
        return head.backward_(z, capped)

    def _strips(self, z: Tensor) -> Iterator[slice]:
        for begin in range(0, len(z), self.height):
            yield slice(begin, min(begin + self.height, len(z)))

    def _buffer(self, number: int, like: Tensor) -> Tensor:
        while len(self._buffers) <= number:
            self._buffers.append(torch.empty_like(self._buffers[0]))
        return self._buffers[number][: like.numel()].view_as(like)

    def _measure_(self, z: Tensor, largest: Tensor) -> Tensor:
        """Subtract the largest [r] from logits [r, C], in place."""
        if self.forbidden:
            return z.sub_(largest.clamp(min=LOWEST)[:, None]).clamp_(min=LOWEST)
        return z.sub_(largest[:, None])


def _inside(columns: Tensor, left: int, tile: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, columns within the tile) of the tokens whose column [R] lies in the tile."""
    inside = ((columns >= left) & (columns < left + tile.shape[1])).nonzero()[:, 0]
    return inside, columns[inside] - left
