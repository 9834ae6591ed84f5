"""Small things that many modules of tests are made of."""

from __future__ import annotations

from typing import Any

import torch


def f64(values: Any) -> torch.Tensor:
    """Numbers, or nested lists of them, as float64."""
    return torch.tensor(values, dtype=torch.float64)


def seed(n: int) -> torch.Generator:
    """A generator of its own."""
    return torch.Generator().manual_seed(n)
