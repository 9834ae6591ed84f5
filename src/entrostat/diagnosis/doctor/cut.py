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

from ...core.batch import TokenBatch
from ...core.distributed import Communicator
from ...core.objective import Objective
from ...core.thread_ranks import Threads

_NEAR = 1e-5  # of a decision: a rounding of float32, a hundred times
_DECIDED = ("advantage", "scale", "weight", "ratio_min", "ratio_max", "frozen", "abs_kl", "entropy",
            "ref_kl")  # fmt: skip
Decisions = dict[str, Tensor]  # [B, T] each; without what the terms leave out


def first(objective: Objective, count: int) -> Objective:
    """The objective of the first methods of the chain, as their controllers stand."""
    found = Objective(
        objective.methods[:count], objective.names[:count], objective.advantage,
        objective.aggregation, objective.max_length,
    )  # fmt: skip
    found.states = list(objective.states[:count])
    return found


def culprit(objective: Objective, batch: TokenBatch, wider: TokenBatch) -> str | None:
    """The first method of the chain that decides otherwise on the same rollouts laid out wider."""
    T = batch.mask.shape[1]

    def laid_out(part: Objective) -> Decisions:
        return {name: x[:, :T] for name, x in _decided(part, wider).items()}

    return _first(objective, batch, laid_out)


def cut_culprit(objective: Objective, batch: TokenBatch) -> str | None:
    """The first method of the chain that decides otherwise where two ranks have half each."""
    halves = [torch.arange(start, len(batch), 2).to(batch.mask.device) for start in (0, 1)]
    order = torch.cat(halves).argsort()

    def cut(part: Objective) -> Decisions | None:
        def on(ranks: Communicator) -> Decisions:
            return _decided(part, batch[halves[ranks.rank]].replace(ranks=ranks))

        try:
            parts = Threads(2).run(on)
        except threading.BrokenBarrierError:
            return None  # it asks on one rank what it does not ask on the other
        one, other = parts
        if one.keys() != other.keys():
            return None
        return {name: torch.cat([one[name], other[name]])[order] for name in one}

    return _first(objective, batch, cut)


def _decided(objective: Objective, batch: TokenBatch) -> Decisions:
    """What an objective makes of measured rollouts [B, T], from rewards to terms."""
    chance = torch.Generator().manual_seed(0)
    terms = objective.plan(objective.rollouts(batch), chance)
    return {name: x for name in _DECIDED if (x := getattr(terms, name)) is not None}


def _first(
    objective: Objective, batch: TokenBatch, other: Callable[[Objective], Decisions | None]
) -> str | None:
    """The first method with which the chain decides otherwise than by `other`."""

    def differs(part: Objective) -> bool:
        theirs, mine = other(part), _decided(part, batch)
        if theirs is None or theirs.keys() != mine.keys():
            return True
        return any(_apart(mine[name], theirs[name], batch.mask) for name in mine)

    if not differs(objective):
        return None
    counts = range(1, len(objective.methods) + 1)
    return next(objective.names[k - 1] for k in counts if differs(first(objective, k)))


def _apart(a: Tensor, b: Tensor, mask: Tensor) -> bool:
    """Whether two [B, T] differ by more than rounding at some token."""
    return not torch.allclose(a[mask].double(), b[mask].double(), rtol=_NEAR, atol=1e-9)
