"""A minibatch over several ranks of torch.distributed.

    batch = TokenBatch(..., rollout=place_in_what_was_sampled, ranks=ranks(process_group))
    terms = objective.plan(batch, shared_generator(seed, step))     # its own rows, decided as one

Methods ask all ranks for a few numbers (`entrostat.core.distributed`); `ProcessGroup` carries them.
Tokens are put together for one purpose only, a dump: `gather_batch`. Without a process group all of
this is the identity.

Shapes: B rollouts of a rank, T its tokens at most, A rollouts of all; B and T may differ by rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from .batch import TokenBatch, at_least_float32
from .distributed import Array, Communicator

_FIELDS = tuple(f.name for f in fields(TokenBatch) if f.name != "ranks")
_DTYPES = (torch.bool, torch.int32, torch.int64, torch.float32, torch.float64)


class ProcessGroup(Communicator):
    """Several processes of torch.distributed: what `TokenBatch.ranks` is on each of them.

    Args:
        group: of torch.distributed; None is the default one.
        device: where its backend works: NCCL on the rank's GPU, gloo on the CPU.
    """

    def __init__(self, group: Any = None, device: torch.device | str = "cpu") -> None:
        self.group, self.device = group, torch.device(device)
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)

    def sum(self, numbers: Array) -> Array:
        return self._reduced(numbers, dist.ReduceOp.SUM)

    def max(self, numbers: Array) -> Array:
        return self._reduced(numbers, dist.ReduceOp.MAX)

    def gather(self, rows: Array) -> Array:
        sizes = np.zeros(self.world, dtype=np.int64)
        sizes[self.rank] = len(rows)
        sizes = self.sum(sizes)
        mine = np.zeros((sizes.max(), rows.shape[1]), dtype=np.int64)
        mine[: len(rows)] = rows
        sent = torch.from_numpy(mine).to(self.device)
        got = [torch.empty_like(sent) for _ in range(self.world)]
        dist.all_gather(got, sent, group=self.group)
        parts = (part[:n].cpu().numpy() for part, n in zip(got, sizes, strict=True))
        return np.concatenate(list(parts))

    def exchange(self, parts: Sequence[Tensor], sizes: Sequence[int]) -> Sequence[Tensor]:
        sent = torch.cat(list(parts)).to(self.device)
        got = sent.new_empty(sum(sizes))
        dist.all_to_all_single(
            got, sent, list(sizes), [len(part) for part in parts], group=self.group
        )
        return got.to(parts[0].device).split(list(sizes))

    def _reduced(self, numbers: Array, how: Any) -> Array:
        held = torch.from_numpy(numbers).to(self.device, copy=True)
        dist.all_reduce(held, how, group=self.group)
        return held.cpu().numpy()


def ranks(process_group: Any = None, device: torch.device | str = "cpu") -> Communicator:
    """The processes of a group; one where torch.distributed is not in use, or the group has one."""
    return ProcessGroup(process_group, device) if _world(process_group) > 1 else Communicator()


def gather_batch(batch: TokenBatch, process_group: Any = None) -> TokenBatch:
    """The batches of all ranks as one [A, T], in the order of the ranks, on each of them.

    Every rank of the process group has to call it. Nothing in the whole carries a gradient; bf16
    and fp16 become float32.

    Args:
        batch: this rank's; all ranks fill the same fields with the same dtypes.
        process_group: of torch.distributed; None is the default one. Where torch.distributed is
            not in use, or the group has one rank, the batch itself is returned, detached.
    """
    mine = _detached(batch)
    B, T = batch.mask.shape
    if _world(process_group) == 1:
        return TokenBatch(**mine)
    device = batch.mask.device
    world = dist.get_world_size(process_group)
    head = torch.tensor([B, T, *_describe(mine)], device=device)
    heads = [torch.empty_like(head) for _ in range(world)]
    dist.all_gather(heads, head, group=process_group)
    shapes = [row.tolist() for row in heads]
    _check_alike(shapes)
    rows = [shape[0] for shape in shapes]
    height, width = max(rows), max(shape[1] for shape in shapes)
    whole: dict[str, Any] = {}
    for name, value in mine.items():
        if value is None:
            continue
        gap = (0, width - T, 0, height - B) if value.ndim == 2 else (0, height - B)
        flags = value.dtype == torch.bool
        padded = pad(value.to(torch.uint8) if flags else value, gap).contiguous()
        parts = [torch.empty_like(padded) for _ in range(world)]
        dist.all_gather(parts, padded, group=process_group)
        whole[name] = torch.cat([part[:n] for part, n in zip(parts, rows, strict=True)])
    return TokenBatch(**whole)


def shared_generator(seed: int, *stream: int | str) -> torch.Generator:
    """A generator that is in the same state on every rank: on the CPU, seeded from its arguments.

    Args:
        seed: of the run.
        stream: what it is for and at which step, so that a resumed run repeats its choices.
    """
    words = "/".join(str(word) for word in (seed, *stream))
    digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def sum_over_ranks(values: dict[str, Tensor], process_group: Any = None) -> dict[str, float]:
    """Each value [] summed over all ranks; every rank passes the same names in the same order."""
    if not values:
        return {}
    total = torch.stack([value.detach().double() for value in values.values()])
    if _world(process_group) > 1:
        dist.all_reduce(total, group=process_group)
    return dict(zip(values, total.tolist(), strict=True))


def _world(process_group: Any) -> int:
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size(process_group)


def _detached(batch: TokenBatch) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in _FIELDS:
        value = getattr(batch, name)
        out[name] = None if value is None else at_least_float32(value.detach())
    return out


def _describe(values: dict[str, Any]) -> list[int]:
    """A number a field: -1 for none, else its dtype and its number of dimensions."""
    return [
        -1 if x is None else 2 * (_DTYPES.index(x.dtype) if x.dtype in _DTYPES else 99) + x.ndim
        for x in values.values()
    ]


def _check_alike(shapes: list[list[int]]) -> None:
    for i, name in enumerate(_FIELDS):
        column = [shape[2 + i] for shape in shapes]
        if len(set(column)) > 1:
            odd = next(rank for rank, code in enumerate(column) if code != column[0])
            raise ValueError(
                f"gather_batch: ranks 0 and {odd} differ in {name} (missing on one, or another "
                "dtype or number of dimensions); fill the same fields alike on every rank"
            )
