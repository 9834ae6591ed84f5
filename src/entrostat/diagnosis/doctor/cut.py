"""The same rollouts laid out in another way: does an objective decide the same?

Ranks that are threads of this process hold a part of the rollouts each, as ranks of a cluster and
micro-batches of a host do that plans over all of them (`Objective.plan`).

Shapes: B rollouts, T completion tokens at most.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from ...core.batch import Terms, TokenBatch
from ...core.distributed import Communicator
from ...core.objective import Objective
from ...core.thread_ranks import Threads

_NEAR = 1e-5  # of a decision: a rounding of float32, a hundred times
_DECIDED = ("advantage", "scale", "weight", "ratio_min", "ratio_max", "frozen", "abs_kl", "entropy",
            "ref_kl")  # fmt: skip


def first(objective: Objective, count: int) -> Objective:
    """The objective of the first methods of the chain, as their controllers stand."""
    found = Objective(
        objective.methods[:count], objective.names[:count], objective.advantage,
        objective.aggregation, objective.max_length,
    )  # fmt: skip
    found.states = list(objective.states[:count])
    return found


def decided(objective: Objective, batch: TokenBatch) -> Terms:
    """What an objective makes of measured rollouts [B, T], from rewards to terms."""
    chance = torch.Generator().manual_seed(0)
    return objective.plan(objective.rollouts(batch), chance)


def culprit(objective: Objective, batch: TokenBatch, wider: TokenBatch) -> str | None:
    """The first method of the chain that decides otherwise on the same rollouts laid out wider."""
    T = batch.mask.shape[1]

    def differs(part: Objective) -> bool:
        mine, theirs = decided(part, batch), decided(part, wider)
        return _differ(mine, theirs, batch.mask, lambda x: x[:, :T])

    return _first(objective, differs)


def cut_culprit(objective: Objective, batch: TokenBatch) -> str | None:
    """The first method of the chain that decides otherwise where two ranks have half each."""
    B = len(batch)
    halves = [torch.arange(start, B, 2) for start in (0, 1)]
    order = torch.cat(halves).argsort()

    def differs(part: Objective) -> bool:
        try:
            parts = Threads(2).run(
                lambda ranks: decided(part, _of(batch, halves[ranks.rank], ranks))
            )
        except threading.BrokenBarrierError:
            return True  # it asks on one rank what it does not ask on the other
        whole = decided(part, batch)
        for name in _DECIDED:
            values = [getattr(terms, name) for terms in parts]
            full = getattr(whole, name)
            if full is None or any(value is None for value in values):
                if full is not None or any(value is not None for value in values):
                    return True
                continue
            if _apart(full, torch.cat(values)[order], batch.mask):
                return True
        return False

    return _first(objective, differs)


def _first(objective: Objective, differs: Callable[[Objective], bool]) -> str | None:
    if not differs(objective):
        return None
    counts = range(1, len(objective.methods) + 1)
    return next(objective.names[k - 1] for k in counts if differs(first(objective, k)))


def _of(batch: TokenBatch, rows: Tensor, ranks: Communicator) -> TokenBatch:
    return batch[rows.to(batch.mask.device)].replace(ranks=ranks)


def _differ(mine: Terms, theirs: Terms, mask: Tensor, fit: Callable[[Tensor], Tensor]) -> bool:
    for name in _DECIDED:
        a, b = getattr(mine, name), getattr(theirs, name)
        if (a is None) != (b is None):
            return True
        if a is not None and _apart(a, fit(b), mask):
            return True
    return False


def _apart(a: Tensor, b: Tensor, mask: Tensor) -> bool:
    """Whether two [B, T] differ by more than rounding at some token."""
    a, b = a[mask].double(), b[mask].double()
    return not torch.allclose(a, b, rtol=_NEAR, atol=1e-9)
