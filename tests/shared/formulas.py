"""Runs of three iterations that nobody trained: entropy 4, 3, then what a test wants."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from entrostat.study.plan import Named, Plan, make_places


def write_runs(plan: Plan, end_of: Callable[[Named], float]) -> None:
    """Give every run of a plan its metrics, and a score of a quarter of the last entropy."""
    make_places(plan)
    for each in plan.named:
        end = end_of(each)
        rows = [{"iteration": i, "entropy/exact": h, "reward/mean": 0.5}
                for i, h in ((1, 4.0), (2, 3.0), (3, end))]  # fmt: skip
        (each.path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        row: dict[str, Any] = {"iteration": 3, "split": "test", "k": 4, "avg@k": end / 4}
        (each.path / "evaluation.jsonl").write_text(json.dumps(row) + "\n")
