"""Random streams seeded by name, so that checkpoints need no generator state."""

from __future__ import annotations

import hashlib
from typing import Literal, get_args

import numpy as np
import torch

# a purpose's index determines its stream: never remove one ("hold" is unused)
Purpose = Literal[
    "prompts", "sample", "shuffle", "select", "evaluate", "analysis", "temper", "influence",
    "forecast", "hold", "redraw",
]  # fmt: skip
_PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


def stream_seed(seed: int, iteration: int, purpose: Purpose) -> int:
    """The seed of one stream, below 2^63; streams of different arguments are independent."""
    words = np.random.SeedSequence([seed, iteration, _PURPOSES.index(purpose)])
    return int(words.generate_state(1, np.uint64)[0] >> 1)


def generator(seed: int, iteration: int, purpose: Purpose, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(stream_seed(seed, iteration, purpose))


def shuffled(group: torch.Tensor, whole: bool, generator: torch.Generator) -> torch.Tensor:
    """Rollouts [B] in random order, int64 on the CPU.

    Equal numbers in `group` [B] are rollouts of one prompt, which stay together if `whole`.
    """
    if not whole:
        return torch.randperm(len(group), generator=generator)
    prompts, index = group.cpu().unique(return_inverse=True)
    return torch.randperm(len(prompts), generator=generator)[index].argsort(stable=True)


def uniform(seed: int, name: str, problem: int, samples: int, tokens: int) -> torch.Tensor:
    """Uniform numbers [samples, tokens] float64 in [0, 1) for the samples of a set's problem.

    Each sample has its own stream: its numbers do not depend on the number of samples, their length
    or other problems.
    """
    # the name as a number: Python's own hash differs between processes
    words = [seed, int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]), problem]
    rows = [np.random.default_rng([*words, i]).random(tokens) for i in range(samples)]
    return torch.from_numpy(np.stack(rows))
