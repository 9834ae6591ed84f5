"""benchmarks/thermostat.py: its figures, by hand."""

import json
import math
from pathlib import Path

import pytest

from scripts import load_script


def test_the_table_of_a_made_up_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = load_script("benchmarks/thermostat.py")
    # at the target from iteration 4 on, but for a tenth too much, every other iteration
    H = [1.0, 1.0, 1.0, *([0.5, 0.6] * 74)][: bench.ITERATIONS]
    rows = [
        {"iteration": i, "entropy/exact": h, "entropy/stderr": 0.02, "reward/mean": 0.25,
         "control/multiplier": 0.1 * (i % 2), "control/target": 0.5}
        for i, h in enumerate(H, 1)
    ]  # fmt: skip
    found = bench.figures(rows, 0.5)
    # means of five alternate between .54 and .56: two or three of them are a fifth too much
    means = [(0.08 if i % 2 else 0.12) for i in range(len(H) - 13)]
    assert found["off"] == pytest.approx(math.sqrt(sum(m * m for m in means) / len(means)), 1e-2)
    assert found["noise"] == pytest.approx(0.02 / 0.5 / math.sqrt(5))
    assert found["settled"] == 4
    assert found["reward"] == 0.25
    assert found["spread"] == pytest.approx(0.05, rel=1e-2)
    run = tmp_path / "multiplier-0.5-0"
    run.mkdir()
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = bench.row("multiplier", 0.5, 1, tmp_path)
    assert line.startswith("multiplier | 0.5x | 1 | 0.1")
    assert bench.row("zeta", 0.5, 1, tmp_path) is None
