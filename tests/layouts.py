"""A minibatch laid out in other ways: rows permuted and cut over ranks, other padding; ranks that
are threads of this process."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

import entrostat as es
from contract_test import moved
from entrostat.hosts.ranks import shared_generator
from entrostat.whole import Ranks

B, T = 24, 61
IDLE = 3  # the group that has no part in the policy term
PER_TOKEN = (
    "logp", "old_logp", "entropy", "old_entropy", "ref_logp", "sum_p2", "sum_p2_logp",
    "process_rewards", "influence",
)  # fmt: skip


def fields(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """24 rollouts of 6 prompts, every field; ragged, with holes and one without a token.

    Half of the rows are multiples of 1/4, so that many tokens tie; the others are not, so that
    their sums round otherwise in every order.
    """
    g = torch.Generator().manual_seed(3)

    def rand() -> torch.Tensor:
        x = torch.rand(B, T, generator=g, dtype=torch.float64)
        return torch.where(torch.arange(B)[:, None] % 2 == 0, (4 * x).round() / 4, x)

    old = -0.05 - 3 * rand().square()
    mask = torch.arange(T) < torch.randint(2, T + 1, (B, 1), generator=g)
    mask &= torch.rand(B, T, generator=g) > 0.1
    mask[7] = False
    data = {
        "old_logp": old, "logp": -(old + (2 * rand() - 1) * math.log(2)).abs(),
        "entropy": 0.1 + 2 * rand(), "old_entropy": 0.1 + 2 * rand(),
        "ref_logp": old + 0.2 * rand(), "sum_p2": rand(), "sum_p2_logp": -rand(),
        "process_rewards": rand() - 0.4, "influence": rand() - 0.5,
        "rewards": (torch.rand(B, generator=g, dtype=torch.float64) * 4).round() / 3,
    }  # fmt: skip
    data = {key: value.to(dtype) for key, value in data.items()}
    identity = torch.randperm(1000, generator=g)[:B].sort().values
    data["tempered"] = torch.zeros(B, dtype=torch.bool)
    return data | {"mask": mask, "group": torch.arange(B) // 4 * 7 % 6, "rollout": identity}


def laid_out(data: dict[str, torch.Tensor], rows: torch.Tensor, columns: int = 0) -> es.TokenBatch:
    """The batch of some rows in some order, with so many more columns of padding than they need."""
    own = {key: value[rows] for key, value in data.items()}
    used = own["mask"].any(0).nonzero()
    width = columns + (int(used.max()) + 1 if len(used) else 0)

    def fit(key: str, value: torch.Tensor) -> torch.Tensor:
        if value.ndim == 1:
            return value
        junk = False if key == "mask" else math.nan
        out = torch.full((len(value), width), junk, dtype=value.dtype)
        n = min(width, T)
        out[:, :n] = value[:, :n]
        return out

    return es.TokenBatch(**{key: fit(key, value) for key, value in own.items()})


def cuts(world: int, seed: int = 0) -> list[torch.Tensor]:
    """Rows of each of `world` ranks: all in random order, cut anywhere; the second has none.

    One rank has all, and as many as rows have one each.
    """
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(B, generator=g)
    if world in (1, B):
        return list(order.tensor_split(world))
    ends = torch.randint(1, B, (world - 2,), generator=g).sort().values.tolist()
    starts = [0, *ends, B]
    parts = [order[a:b] for a, b in pairwise(starts)]
    return [parts[0], order[:0], *parts[1:]][:world]


class Threads:
    """Ranks that are threads: `run(f)` calls f(ranks) once per rank; what each returned."""

    def __init__(self, world: int) -> None:
        self.world, self._slots = world, [None] * world
        self._barrier = threading.Barrier(world)

    def run(self, work: Callable[[Ranks], Any]) -> list[Any]:
        found, failed = [None] * self.world, []

        def body(rank: int) -> None:
            try:
                found[rank] = work(_Thread(rank, self))
            except threading.BrokenBarrierError:
                pass
            except BaseException as error:
                failed.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=body, args=(rank,)) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        return found

    def shared(self, rank: int, value: Any) -> list[Any]:
        """What each rank handed in."""
        self._slots[rank] = value
        self._barrier.wait(60)
        got = list(self._slots)
        self._barrier.wait(60)
        return got


class _Thread(Ranks):
    def __init__(self, rank: int, threads: Threads) -> None:
        self.rank, self.world, self._threads = rank, threads.world, threads

    def sum(self, numbers: np.ndarray) -> np.ndarray:
        return np.sum(self._threads.shared(self.rank, numbers), axis=0)

    def max(self, numbers: np.ndarray) -> np.ndarray:
        return np.max(self._threads.shared(self.rank, numbers), axis=0)

    def gather(self, rows: np.ndarray) -> np.ndarray:
        return np.concatenate(self._threads.shared(self.rank, rows))

    def exchange(
        self, parts: Sequence[torch.Tensor], sizes: Sequence[int]
    ) -> Sequence[torch.Tensor]:
        got = [theirs[self.rank] for theirs in self._threads.shared(self.rank, parts)]
        assert [len(part) for part in got] == list(sizes)
        return got


def decided(spec: Any, batch: es.TokenBatch) -> tuple[es.TokenBatch, es.Terms]:
    """What an objective whose controllers have moved makes of the batch; one group is idle."""
    objective = moved(es.make_objective(spec, max_length=16))
    assert batch.group is not None
    batch = objective.prepare(objective.outcome_advantages(batch).replace(idle=batch.group == IDLE))
    return batch, objective.plan(batch, shared_generator(5, "select", 3))


def differences(
    found: tuple[es.TokenBatch, es.Terms], whole: tuple[es.TokenBatch, es.Terms], rows: torch.Tensor
) -> list[str]:
    """The names of what differs in a bit at some token from these rows of the whole's."""
    mask, names = found[0].mask, []
    for mine, theirs in zip(found, whole, strict=True):
        for name, value in vars(mine).items():
            expected = vars(theirs)[name]
            if name in ("logp", "whole", "rollout", "ranks"):
                continue
            if not isinstance(value, torch.Tensor) or value.ndim == 0:
                alike = value == expected
            elif expected is None:
                alike = False
            elif value.ndim == 1:
                alike = torch.equal(value, expected[rows])
            else:
                fitted = torch.zeros_like(value)
                n = min(value.shape[1], expected.shape[1])
                fitted[:, :n] = expected[rows][:, :n]
                alike = bool(((value == fitted) | ~mask).all())
            if not alike:
                names.append(name)
    return names
