"""Small things that many modules of tests are made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from entrostat.config import TrainConfig, from_dict


def f64(values: Any) -> torch.Tensor:
    """Numbers, or nested lists of them, as float64."""
    return torch.tensor(values, dtype=torch.float64)


def seed(n: int) -> torch.Generator:
    """A generator of its own."""
    return torch.Generator().manual_seed(n)


def json_lines(file: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def config_with(data: dict[str, Any], **changes: Any) -> TrainConfig:
    """Settings with some changed: a table keeps the keys that a change does not name."""
    for key, value in changes.items():
        old = data.get(key, {})
        data = data | {key: old | value if isinstance(value, dict) else value}
    return from_dict(data)


def refused(call: Callable[[], Any], *parts: str, error: type[BaseException] = ValueError) -> str:
    """What an error says that a call raises; it has all `parts`: names, values, no sentence."""
    with pytest.raises(error) as caught:
        call()
    said = str(caught.value)
    assert [part for part in parts if part not in said] == [], said
    return said
