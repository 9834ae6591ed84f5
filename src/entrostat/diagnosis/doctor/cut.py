"""Check that an objective decides the same when rollouts are padded or split differently.

Threads of this process act as ranks that each hold a part of the rollouts, like the ranks and
micro-batches of a trainer that plans over all rollouts (`Objective.plan`).

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

_NEAR = 1e-5  # relative: a hundred times the rounding of float32
_DECIDED = ("advantage", "scale", "weight", "ratio_min", "ratio_max", "frozen", "abs_kl", "entropy",
            "ref_kl")  # fmt: skip
Decisions = dict[str, Tensor]  # [B, T] each; without the fields that are None in the terms


def first(objective: Objective, count: int) -> Objective:
    """The objective with only the first `count` methods, and their controller states."""
    found = Objective(
        objective.methods[:count], objective.names[:count], objective.advantage,
        objective.aggregation, objective.max_length,
    )  # fmt: skip
    found.states = list(objective.states[:count])
    return found


def culprit(objective: Objective, batch: TokenBatch, wider: TokenBatch) -> str | None:
    """The first method of the chain that decides differently when the batch has more padding."""
    T = batch.mask.shape[1]

    def laid_out(part: Objective) -> Decisions:
        return {name: x[:, :T] for name, x in _decided(part, wider).items()}

    return _first(objective, batch, laid_out)


def cut_culprit(objective: Objective, batch: TokenBatch) -> str | None:
    """The first method of the chain that decides differently when two ranks hold half each."""
    halves = [torch.arange(start, len(batch), 2).to(batch.mask.device) for start in (0, 1)]
    order = torch.cat(halves).argsort()

    def cut(part: Objective) -> Decisions | None:
        def on(ranks: Communicator) -> Decisions:
            return _decided(part, batch[halves[ranks.rank]].replace(ranks=ranks))

        try:
            parts = Threads(2).run(on)
        except threading.BrokenBarrierError:
            return None  # one rank called a collective operation that the other did not
        one, other = parts
        if one.keys() != other.keys():
            return None
        return {name: torch.cat([one[name], other[name]])[order] for name in one}

    return _first(objective, batch, cut)


def _decided(objective: Objective, batch: TokenBatch) -> Decisions:
    """Plan an objective on measured rollouts [B, T], from rewards to terms."""
    chance = torch.Generator().manual_seed(0)
    terms = objective.plan(objective.rollouts(batch), chance)
    return {name: x for name in _DECIDED if (x := getattr(terms, name)) is not None}


def _first(
    objective: Objective, batch: TokenBatch, other: Callable[[Objective], Decisions | None]
) -> str | None:
    """The first method with which the chain's decisions differ from those of `other`."""

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
    """Whether two tensors [B, T] differ by more than rounding at some token."""
    return not torch.allclose(a[mask].double(), b[mask].double(), rtol=_NEAR, atol=1e-9)
