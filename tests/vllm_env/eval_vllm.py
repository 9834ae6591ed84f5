"""`entrostat eval` with vLLM on the CPU, beside the lab's sampler: `make test-eval-vllm`."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROBLEMS, K = 64, 16
ENGINES = ("vllm", "transformers")
SET = "target_sum/test"


def evaluated(
    folder: Path, variables: dict[str, str], engine: str, *words: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Metrics and responses, a line a problem; a process of its own."""
    out = folder / f"{engine}-{len(words)}"
    command = [
        sys.executable, "-m", "entrostat", "eval", str(folder / "policy"), "--on", SET,
        "--problems", str(PROBLEMS), "--precision", "fp32", "--engine", engine,
        "--output", str(out), *words,
    ]  # fmt: skip
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    metrics = json.loads((out / "results.json").read_text())["sets"][SET]["metrics"]
    lines = (out / "responses/target_sum_test.jsonl").read_text().splitlines()
    return metrics, [json.loads(line) for line in lines]


def test_the_likeliest_tokens_are_the_labs(folder: Path, variables: dict[str, str]) -> None:
    (_, mine), (_, theirs) = (
        evaluated(folder, variables, engine, "--greedy") for engine in ENGINES
    )
    pairs = list(zip(mine, theirs, strict=True))
    same = [(a, b) for a, b in pairs if a["responses"] == b["responses"]]
    assert len(same) >= PROBLEMS - 2  # two tokens may be as likely as rounding tells
    assert len({a["responses"][0] for a, _ in same}) > 8  # they are not one answer to all
    for a, b in same:
        assert a["scores"] == b["scores"]
        assert a["logp"] == pytest.approx(b["logp"], abs=2e-3)


def test_samples_are_of_the_same_policy(folder: Path, variables: dict[str, str]) -> None:
    (mine, lines), (theirs, _) = (
        evaluated(folder, variables, engine, "--k", str(K), "--seed", "3") for engine in ENGINES
    )
    assert all(len(set(line["responses"])) > 1 for line in lines)  # each of a problem's is another
    p = theirs["avg@16"]["value"]
    assert 0.02 < p < 0.98
    error = math.sqrt(2 * p * (1 - p) / (PROBLEMS * K))  # between problems they are paired
    assert abs(mine["avg@16"]["value"] - p) < 4 * error
    lengths = [figures["length"]["value"] for figures in (mine, theirs)]
    assert lengths[0] == pytest.approx(lengths[1], abs=0.3)
