"""A minibatch over several ranks of torch.distributed.

    batch = TokenBatch(..., rollout=place_in_what_was_sampled, ranks=ranks(process_group))
    terms = objective.plan(batch, shared_generator(seed, step))     # its own rows, planned globally

Methods reduce a few numbers over all ranks (`entrostat.core.distributed`); `ProcessGroup` does the
communication. Without a process group every operation is the identity.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from .distributed import Array, Communicator


class ProcessGroup(Communicator):
    """A process group of torch.distributed as a `Communicator`, for `TokenBatch.ranks`.

    Args:
        group: of torch.distributed; None is the default group.
        device: the backend's device: the rank's GPU for NCCL, the CPU for gloo.
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
    """The communicator of a group; a single process if torch.distributed is off or world is 1."""
    return ProcessGroup(process_group, device) if _world(process_group) > 1 else Communicator()


def shared_generator(seed: int, *stream: int | str) -> torch.Generator:
    """A CPU generator, seeded from the arguments and so in the same state on every rank.

    Args:
        seed: of the run.
        stream: its purpose and step, so that a resumed run repeats its choices.
    """
    words = "/".join(str(word) for word in (seed, *stream))
    digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def sum_over_ranks(values: dict[str, Tensor]) -> dict[str, float]:
    """Each value [] summed over all ranks; every rank passes the same names in the same order."""
    if not values:
        return {}
    total = torch.stack([value.detach().double() for value in values.values()])
    if _world(None) > 1:
        dist.all_reduce(total)
    return dict(zip(values, total.tolist(), strict=True))


def _world(process_group: Any) -> int:
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size(process_group)
