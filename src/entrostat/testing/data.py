"""The batch that every rule starts from: every field that a method may read, irregular data.

Two prompts interleaved, sequences of unequal length with a hole, ratios from .5 to 2 on both sides
of every clip bound, two tokens at least in each quadrant of advantage and probability.

Shapes: B = 6 sequences, T = 5 tokens, 18 of them at mask 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import torch

from ..core.loss import Aggregation
from ..core.objective import Objective

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
MASK = torch.tensor(
    [
        [1, 1, 1, 1, 1],
        [1, 1, 0, 0, 0],
        [0, 1, 1, 0, 1],
        [1, 1, 1, 1, 0],
        [1, 0, 0, 0, 0],
        [0, 0, 1, 1, 1],
    ]
)
PER_TOKEN = ("logp", "old_logp", "entropy", "old_entropy", "ref_logp", "sum_p2", "sum_p2_logp",
             "process_rewards", "influence")  # fmt: skip
# the iterations that a controller observes before the checks: (entropy, progress)
SEEN = ((0.5, 0.0), (0.4, 0.4), (0.3, 0.7))

Data = dict[str, Any]


def statistics(old: torch.Tensor, rand: Callable[[], torch.Tensor]) -> Data:
    """The other [B, T] fields for these old log-probs, from uniform numbers `rand()` [B, T]."""
    return {
        "old_logp": old,
        "logp": -(old + (2 * rand() - 1) * math.log(2)).abs(),
        "entropy": 0.1 + 2 * rand(),
        "old_entropy": 0.1 + 2 * rand(),
        "ref_logp": old + 0.2 * rand(),
        "sum_p2": rand(),
        "sum_p2_logp": -rand(),
        "process_rewards": rand() - 0.4,
        "influence": rand() - 0.5,
    }


def contract_data(dtype: torch.dtype = torch.float64, seed: int = 171) -> Data:
    """Arguments of a `TokenBatch` without advantages; B = 6, T = 5."""
    g = torch.Generator().manual_seed(seed)

    def rand() -> torch.Tensor:
        return torch.rand(6, 5, generator=g, dtype=torch.float64)

    data = statistics(-0.05 - 3 * rand().square(), rand)
    data["rewards"] = torch.tensor([1.0, 0.0, 0.25, 1.0, 0.0, 0.5], dtype=torch.float64)
    data = {key: value.to(dtype) for key, value in data.items()}
    data["tempered"] = torch.zeros(6, dtype=torch.bool)
    return data | {"mask": MASK, "group": torch.tensor([4, 7, 4, 7, 4, 7])}


def observe(objective: Objective, entropy: float, progress: float) -> None:
    """Let an objective observe an iteration of this entropy, with every signal of a trainer."""
    objective.observe(
        entropy=entropy, nll=entropy + 0.6, progress=progress, stderr=0.01,
        response_mean=entropy + 0.02,
    )  # fmt: skip


def moved(objective: Objective) -> Objective:
    """The objective after three iterations, in which entropy fell."""
    for entropy, progress in SEEN:
        observe(objective, entropy, progress)
    return objective
