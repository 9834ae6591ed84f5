"""Random streams by name: nothing to save, nothing to restore."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch

Purpose = Literal["prompts", "sample", "shuffle", "select", "evaluate", "analysis"]
_PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


def stream_seed(seed: int, iteration: int, purpose: Purpose) -> int:
    """A number below 2^63 for one stream; streams of different arguments are independent."""
    words = np.random.SeedSequence([seed, iteration, _PURPOSES.index(purpose)])
    return int(words.generate_state(1, np.uint64)[0] >> 1)


def generator(seed: int, iteration: int, purpose: Purpose, device: torch.device) -> torch.Generator:
    """A generator at the start of one stream."""
    return torch.Generator(device).manual_seed(stream_seed(seed, iteration, purpose))
