"""Collective operations over the global minibatch, of which each process may hold some rollouts.

    lp, A = batch.whole.mean(batch.logp, terms.advantage)
    chosen = batch.whole.largest(size, candidates, count, generator)

In one process nothing is communicated. With several ranks every rank makes the same calls and gets
the same result, for some kilobytes a call; only `companions` moves tokens. A result depends on the
rollouts, positions and values alone, bit for bit: not on the number of ranks, the order of the rows
or the padding. Sums add integers. Order statistics are found digit by digit from counts. Random
choices, ties included, take the smallest hashes of a draw of the generator, the rollout's id and
the position (`entrostat.core.deterministic`).

Shapes: B rollouts of this process, T token columns, A rollouts of all processes. B, T and the
values may differ by rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import deterministic as exact
from .deterministic import row_sums

Array = NDArray[Any]

_DIGIT = 11  # bits; 2048 counts per round


class Communicator:
    """Collectives of a single process; process_ranks.py has those of several."""

    rank: int = 0  # this process
    world: int = 1  # number of processes

    def sum(self, numbers: Array) -> Array:
        """[n] int64 -> their sums over all ranks."""
        return numbers

    def max(self, numbers: Array) -> Array:
        """[n] float64, none NaN -> their maxima over all ranks."""
        return numbers

    def gather(self, rows: Array) -> Array:
        """[B, n] int64 -> [A, n]: the rows of all ranks, in the order of the ranks."""
        return rows

    def exchange(self, parts: Sequence[Tensor], sizes: Sequence[int]) -> Sequence[Tensor]:
        """All-to-all: send one [n] to each rank, receive one of these sizes from each."""
        return parts


@dataclass(frozen=True, eq=False)
class GlobalBatch:
    """Collective operations over the global minibatch. `TokenBatch.whole` is the batch's own.

    Every rank has to make the same calls in the same order.

    Args:
        mask: [B, T] bool, this process's tokens.
        rollout: [B] int64, globally unique rollout ids; None numbers the rows that have a token.
        ranks: the processes that hold the minibatch.

    Raises:
        ValueError: several ranks and no `rollout`: row numbers would collide between ranks.
    """

    mask: Tensor
    rollout: Tensor | None = None
    ranks: Communicator = Communicator()  # noqa: RUF009 (it has no state)
    _known: dict[int | None, list[int]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.ranks.world > 1 and self.rollout is None:
            raise ValueError(
                "TokenBatch: rollout is None, which on several ranks says of no rollout who it is; "
                "pass rollout=[B] int64, for example its place in the batch that was sampled"
            )

    def asks(self, mask: Tensor, rollout: Tensor | None, ranks: Communicator) -> bool:
        """Whether it was built from these very tensors and this communicator."""
        return self.mask is mask and self.rollout is rollout and self.ranks is ranks

    def over(self, mask: Tensor) -> GlobalBatch:
        """The same rollouts with other tokens [B, T] bool."""
        return GlobalBatch(mask, self.rollout, self.ranks)

    # ------------------------------------------------------------------ counts

    @property
    def tokens(self) -> int:
        """N, the tokens at mask 1."""
        return self._sizes()[0]

    @property
    def sequences(self) -> int:
        """The number of rollouts that have a token."""
        return self._sizes()[1]

    def _sizes(self) -> list[int]:
        # no cached_property: ranks that are threads would wait for its lock
        # _version detects in-place edits of the mask; inference tensors have none
        version = None if self.mask.is_inference() else self.mask._version
        if version is None or version not in self._known:
            lengths = self.mask.sum(-1)
            self._known.clear()
            self._known[version] = self._sum([int(lengths.sum()), int((lengths > 0).sum())])
        return self._known[version]

    @property
    def width(self) -> int:
        """The largest T of any rank."""
        return int(self._max([self.mask.shape[1]])[0])

    def count(self, chosen: Tensor) -> int:
        """The number of True entries in `chosen`, bool of any shape."""
        return self._count(_array(chosen))

    # ------------------------------------------------------------------ sums and extremes

    def sum(self, *values: Tensor) -> list[float]:
        """The sum of each of values [B, T] over the mask; NaN where one is not finite.

        Terms are rounded to multiples of 2^-b of the largest magnitude, b at least 14 more than the
        dtype has bits: the error is below the values' own rounding.
        """
        terms = [torch.where(self.mask, x, 0) for x in values]
        tops = self._max([exact.magnitude(x) for x in terms])
        bits = min(51, 62 - self.tokens.bit_length())  # leave room for the sum
        exponents = [exact.exponent(top) for top in tops]
        parts = [exact.units(x, e, bits) for x, e in zip(terms, exponents, strict=True)]
        units = iter(self._sum([unit for part in parts for unit in part]))
        found = []
        for part, e, top in zip(parts, exponents, tops, strict=True):
            total = exact.from_units([next(units) for _ in part], e, bits)
            found.append(total if math.isfinite(top) else math.nan)
        return found

    def mean(self, *values: Tensor) -> list[float]:
        """The mean of each of values [B, T] over the mask; 0 where no token is left."""
        return [total / max(1, self.tokens) for total in self.sum(*values)]

    def max(self, *values: Tensor) -> list[float]:
        """The largest of each of values [B, T] over the mask; -inf where no token is left."""
        held = (torch.where(self.mask, x, -math.inf) for x in values)
        return self._max([float(x.max()) if x.numel() else -math.inf for x in held])

    def min(self, *values: Tensor) -> list[float]:
        """The smallest of each of values [B, T] over the mask; inf where no token is left."""
        return [-x for x in self.max(*(-x for x in values))]

    # ------------------------------------------------------------------ by size, at random

    def quantile(self, values: Tensor, q: float) -> float:
        """The q-quantile of values [B, T] over the mask, linearly interpolated; NaN if empty."""
        if not self.tokens:
            return math.nan
        kept = _array(values)[_array(self.mask)]
        place = q * (self.tokens - 1)
        rank = math.floor(place + 1e-9)  # .29 * 100 is 28.999999999999996
        share, below = max(0.0, place - rank), self._at(kept, rank)
        if not share or self._count(kept <= below) > rank + 1:
            return below
        above = kept[kept > below]
        (nearest,) = self._max([-float(above.min()) if len(above) else -math.inf])
        return below + (-nearest - below) * share

    def largest(
        self, values: Tensor, candidates: Tensor, count: int, generator: torch.Generator | None
    ) -> Tensor:
        """[B, T] bool: the `count` candidates of largest value (all if there are fewer).

        Args:
            values: [B, T] float.
            candidates: [B, T] bool.
            count: how many.
            generator: as in `pick`, to choose between equal values at the threshold; nothing is
                drawn if all of them are taken.
        """
        inside, size = _array(candidates), _array(values)
        if (total := self._count(inside)) <= count:
            return candidates
        if count <= 0:
            return torch.zeros_like(candidates)
        least = self._at(size[inside], total - count)
        above, ties = inside & (size > least), inside & (size == least)
        return self._tensor(above | self._pick(ties, count - self._count(above), generator))

    def pick(self, candidates: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
        """[B, T] bool: `count` of the candidates (all if there are fewer), uniformly at random.

        Args:
            candidates: [B, T] bool.
            count: how many.
            generator: the run's, in the same state on every rank; one number is drawn unless all
                candidates are taken. None takes torch's global generator.
        """
        return self._tensor(self._pick(_array(candidates), count, generator))

    def _pick(self, inside: Array, count: int, generator: torch.Generator | None) -> Array:
        if self._count(inside) <= count:
            return inside
        chosen = np.zeros(inside.shape, dtype=bool)  # in C order, whatever the order of `inside`
        if count > 0:
            device = None if generator is None else generator.device
            seed = torch.empty((), dtype=torch.int64, device=device).random_(generator=generator)
            flat = np.flatnonzero(inside)
            row = flat // inside.shape[1]
            hashes = exact.hashes(int(seed), self._who, row, flat - row * inside.shape[1])
            chosen.reshape(-1)[flat[hashes <= self._at(hashes, count - 1)]] = True
        return chosen

    @cached_property
    def _who(self) -> Array:
        """[B] int64: rollout ids; rows without a token take no number."""
        who = self.mask.any(-1).cumsum(0) - 1 if self.rollout is None else self.rollout.long()
        return _array(who)

    def _at(self, values: Array, rank: int) -> float | int:
        """The value at position `rank` of the sorted values [n] of all ranks."""
        if self.ranks.world == 1:
            return np.partition(values, rank)[rank].item()
        keys, found = exact.keys(values), 0
        for shift in reversed(range(0, 8 * keys.itemsize, _DIGIT)):
            digit = (keys >> keys.dtype.type(shift)).astype(np.int64) & ((1 << _DIGIT) - 1)
            up_to = self.ranks.sum(np.bincount(digit, minlength=1 << _DIGIT)).cumsum()
            d = int(np.searchsorted(up_to, rank, side="right"))
            rank -= int(up_to[d - 1]) if d else 0
            keys, found = keys[digit == d], found << _DIGIT | d
        return exact.from_key(found, values.dtype)

    # ------------------------------------------------------------------ by rollout

    def gather(self, *values: Tensor) -> tuple[list[Tensor], Tensor]:
        """Gather a few numbers per rollout over all ranks, in the order of the rollout ids.

        Args:
            values: [B] each, of any dtype of at most 64 bits.

        Returns:
            ([A] each, [B] int64: positions of this process's rows in them).
        """
        B, device = len(self.mask), self.mask.device
        if self.ranks.world == 1 and self.rollout is None:
            return list(values), torch.arange(B, device=device)
        columns = [self._who, np.full(B, self.ranks.rank), *(_array(_bits(x)) for x in values)]
        everyone = self.ranks.gather(np.stack(columns, -1))
        order = everyone[:, 0].argsort(kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        found = torch.from_numpy(everyone[order, 2:].T.copy()).to(device)
        mine = torch.from_numpy(place[everyone[:, 1] == self.ranks.rank]).to(device)
        return [_from_bits(x, y.dtype) for x, y in zip(found, values, strict=True)], mine

    def group_sums(self, group: Tensor, *values: Tensor) -> list[Tensor]:
        """[B] each -> [B] each: the sum over a rollout's group [B] int, across ranks."""
        (groups, *everyone), mine = self.gather(group, *values)
        _, index = groups.unique(return_inverse=True)
        return [x.new_zeros(len(x)).index_add_(0, index, x)[index[mine]] for x in everyone]

    def companions(self, group: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens of all rollouts of the groups that this process has a part of, compacted.

        The one call that moves tokens: a group on several ranks is sent to each of these ranks.

        Args:
            group: [B] int.
            values: [B, T].

        Returns:
            (positions [C] int64 of these rollouts in `gather`'s order, ascending; their values
            [C, L], L the longest rollout's length, at least 1; 0 beyond a rollout's own tokens).
        """
        me = self.ranks.rank
        (groups, length, rank), mine = self.gather(
            group, self.mask.sum(-1), torch.full_like(group, me)
        )
        row = mine.new_zeros(len(groups))
        row[mine] = torch.arange(len(group), device=row.device)
        parts, places = [], []
        for other in range(self.ranks.world):
            there = torch.isin(groups, groups[rank == other]) & (rank == me)
            rows = row[there.nonzero()[:, 0]]
            parts.append(values[rows][self.mask[rows]])
            here = torch.isin(groups, group) & (rank == other)
            places.append(here.nonzero()[:, 0])
        got = self.ranks.exchange(parts, [int(length[p].sum()) for p in places])
        place, order = torch.cat(places).sort()
        length = length[torch.cat(places)]
        L = max([1, *length.tolist()])
        tokens = values.new_zeros(len(place), L)
        tokens[torch.arange(L, device=tokens.device) < length[:, None]] = torch.cat(list(got))
        return place, tokens[order]

    # ------------------------------------------------------------------ plain numbers over ranks

    def _count(self, chosen: Array) -> int:
        return self._sum([int(np.count_nonzero(chosen))])[0]

    def _sum(self, numbers: list[int]) -> list[int]:
        return self.ranks.sum(np.array(numbers, dtype=np.int64)).tolist()

    def _max(self, numbers: list[float]) -> list[float]:
        # backends differ in how a maximum treats NaN
        held = [math.inf if math.isnan(x) else float(x) for x in numbers]
        return self.ranks.max(np.array(held)).tolist()

    def _tensor(self, chosen: Array) -> Tensor:
        return torch.from_numpy(chosen).to(self.mask.device)


def _array(values: Tensor) -> Array:
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()  # not in numpy


def _bits(values: Tensor) -> Tensor:
    return values.double().view(torch.int64) if values.is_floating_point() else values.long()


def _from_bits(bits: Tensor, dtype: torch.dtype) -> Tensor:
    return (bits.view(torch.float64) if dtype.is_floating_point else bits).to(dtype)


Ranks, Whole = Communicator, GlobalBatch  # their names before 0.1

__all__ = ["Communicator", "GlobalBatch", "Ranks", "Whole", "row_sums"]
