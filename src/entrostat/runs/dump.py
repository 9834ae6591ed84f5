"""Rollouts as they are written down: without padding, with their texts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def flatten(values: Tensor, mask: Tensor) -> Tensor:
    """[B, T] -> [n]: the entries at mask 1, row after row, on the CPU."""
    return values[mask].cpu()


def token_pieces(tokenizer: Any, tokens: Tensor) -> dict[int, str]:
    """Text of each id among `tokens` [n]."""
    ids = torch.unique(tokens).tolist()
    return dict(zip(ids, tokenizer.batch_decode([[i] for i in ids]), strict=True))
