"""What a run has left in its directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from entrostat.logs.rollouts import Rollouts


def metrics(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def correlation(r: Rollouts) -> float:
    """Of the probabilities that the rollout engine and the actor gave the same tokens."""
    assert r.logp.isfinite().all()
    assert r.sampler_logp.isfinite().all()
    return float(torch.stack([r.logp, r.sampler_logp]).double().exp().corrcoef()[0, 1])
