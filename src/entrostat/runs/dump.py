"""The texts of the tokens that are written down."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def token_pieces(tokenizer: Any, tokens: Tensor) -> dict[int, str]:
    """Text of each id among `tokens` [n]."""
    ids = torch.unique(tokens).tolist()
    return dict(zip(ids, tokenizer.batch_decode([[i] for i in ids]), strict=True))
