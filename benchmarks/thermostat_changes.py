"""The thermostat when training changes in mid-run: three times the learning rate, another task.

    python benchmarks/thermostat_changes.py --output runs/thermostat_changes    # 2 minutes a run

`target_sum` with the tiny policy at .75 of the first entropy, 150 iterations; from iteration 76 on

    lr      the learning rate is three times what it was
    task    answers have five or six digits, after three or four

Prints the RMS deviation of means of five from the target before and after (iterations 46 to 75 and
106 to 150), how many iterations after the change a mean of five within 10% of the target begins,
and the largest deviation of an iteration after it. A finished run is not made again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from entrostat.config import from_dict
from entrostat.tasks import Example
from entrostat.tasks.target_sum import TargetSum
from entrostat.trainers.lab import train, updates
from thermostat import fives, rms

ITERATIONS, CHANGE, PROMPTS, TARGET = 150, 75, 32, 0.75


class Changing(TargetSum):
    """Three or four digits at first, five or six from an iteration on."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.before, self.after = TargetSum(seed, 3, 4), TargetSum(seed, 5, 6)

    def example(self, index: int, split: str) -> Example:
        """Of the one or the other."""
        now = self.before if index < CHANGE * PROMPTS else self.after
        return now.example(index, split)


def run(case: str, knob: str, seed: int, output: Path) -> list[float]:
    """Entropies over target, iteration by iteration."""
    path = output / f"{case}-{knob}-{seed}"
    log = path / "metrics.jsonl"
    if not (log.exists() and len(log.read_text().splitlines()) == ITERATIONS):
        settings: dict[str, Any] = {
            "method": [{"name": "thermostat", "knob": knob, "target": f"{TARGET}x"}],
            "seed": seed, "iterations": ITERATIONS, "output": str(path), "threads": 1,
            "sampling": {"prompts": PROMPTS}, "eval": {"prompts": 0},
            "save": {"checkpoint_every": 1000, "rollouts_every": 0},
        }  # fmt: skip
        rate = updates.learning_rate_at

        def changed(config: Any, place: int, made: int) -> float:
            factor = 3 if place >= CHANGE * config.updates else 1
            return factor * rate(config, place, made)

        if case == "lr":
            updates.learning_rate_at = changed
        try:
            task = Changing(seed) if case == "task" else None
            train(from_dict(settings), task=task, resume=path.exists())
        finally:
            updates.learning_rate_at = rate
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return [row["entropy/exact"] / row["control/target"] - 1 for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", default=["lr", "task"], choices=["lr", "task"])
    parser.add_argument("--knobs", nargs="+", default=["multiplier", "entropy_coef"])
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    print("change | knob | seed | before | after | back in band | largest")
    for case in given.cases:
        for knob in given.knobs:
            for seed in range(given.seeds):
                D = run(case, knob, seed, given.output)
                before, after = (
                    rms(fives(part)) for part in (D[CHANGE - 30 : CHANGE], D[CHANGE + 30 :])
                )
                near = (i for i, m in enumerate(fives(D[CHANGE:]), 1) if abs(m) <= 0.1)
                cells = [case, knob, seed, f"{before:.3f}", f"{after:.3f}", next(near, None)]
                print(*cells, f"{max(map(abs, D[CHANGE:])):.3f}", sep=" | ", flush=True)


if __name__ == "__main__":
    main()
