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

_TENSORS = [f.name for f in fields(TokenBatch) if f.name not in ("ranks", "reward_weights")]


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
    given = {name: getattr(batch, name) for name in _TENSORS}
    mine: dict[str, Any] = {
        name: at_least_float32(x.detach()) for name, x in given.items() if x is not None
    }
    whole: dict[str, Any] = {"reward_weights": batch.reward_weights}
    world = _world(process_group)
    if world == 1:
        return TokenBatch(**mine, **whole)
    everyone: list[dict[str, Tensor]] = [{}] * world
    sent = {name: x.cpu() for name, x in mine.items()}
    dist.all_gather_object(everyone, sent, group=process_group)
    _check_alike(everyone)
    width = max(theirs["mask"].shape[1] for theirs in everyone)
    for name in mine:
        parts = [theirs[name] for theirs in everyone]
        if parts[0].ndim == 2 and name != "reward_parts":
            parts = [pad(part, (0, width - part.shape[1])) for part in parts]
        whole[name] = torch.cat(parts).to(batch.mask.device)
    return TokenBatch(**whole)


def _check_alike(everyone: list[dict[str, Tensor]]) -> None:
    kinds = [{name: (x.dtype, x.ndim) for name, x in theirs.items()} for theirs in everyone]
    for rank, theirs in enumerate(kinds):
        odd = [name for name in _TENSORS if theirs.get(name) != kinds[0].get(name)]
        if odd:
            raise ValueError(
                f"gather_batch: ranks 0 and {rank} differ in {odd[0]} (missing on one, or another "
                "dtype or number of dimensions); fill the same fields alike on every rank"
            )


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
