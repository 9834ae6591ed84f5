"""How often the alarm is right, on recorded runs, and how its threshold was set.

    python benchmarks/alarms.py --make --output runs/alarms      # an hour: trains what is missing
    python benchmarks/alarms.py --output runs/alarms --also runs/law runs/thermostat
    entrostat study recipes/study --record docs/study --report --output runs/study
    python benchmarks/alarms.py --measure runs/study      # runs that set nothing, the study's

A run collapses (or explodes) if the mean of five entropies in a row leaves the alarm's band, in
iteration T of 30 or later; of one that leaves it earlier, nothing can be said 20 iterations ahead,
and it is counted apart. It held if it never does and the verdict of its whole course is held, with
60 iterations or more. Detected: an alarm at T - 20 or before. False: any alarm in a run that held.

Runs are dealt by a hash of their entropies: a third sets the probability at which the alarm is
raised (the most detections with at most one false alarm in twenty), two thirds measure it. With
--measure the probability stays what it is and all runs measure it; those that held are also counted
without policies that died: a reward at the end of less than half of that at the beginning.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from entrostat.control import Alarm
from entrostat.control.alarm import AHEAD, RAISED, ROW
from entrostat.diagnosis import judge
from verdicts import wilson

SEEDS = range(20, 41)
LEVELS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LEAD, EARLIEST, LONG = 20, 30, 60


@dataclass(frozen=True)
class Watched:
    """A run: its name, when it left the band (None: never), and what the alarm said."""

    name: str
    left: int | None
    held: bool
    alive: bool
    probabilities: tuple[float, ...]
    setting: bool

    def first(self, level: float) -> int | None:
        """Iteration of the first alarm at a probability; None without one."""
        row = 0
        for iteration, probability in enumerate(self.probabilities, 1):
            row = row + 1 if probability >= level else 0
            if row >= ROW:
                return iteration
        return None


def make(output: Path) -> None:
    """Train what is missing: policies that collapse, and that a thermostat holds."""
    common = [
        "--sampling.prompts", "16", "--optim.lr", "6e-4", "--iterations", "100", "--eval.prompts",
        "0", "--save.checkpoint-every", "1000", "--save.rollouts-every", "0",
    ]  # fmt: skip
    for seed in SEEDS:
        falling = ("grpo", "clip_higher", "loop_token")[seed % 3]
        target = ("0.6x", "0.75x", "0.9x")[seed % 3]
        knob = "zeta" if seed % 2 and target != "0.9x" else "entropy_coef"
        held = ["thermostat", "--method.target", target, "--method.knob", knob]
        for name, method in (
            (f"h-{falling}-{seed}", [falling]),
            (f"h-held{target}-{knob}-{seed}", held),
        ):
            path = output / name
            if (path / "final").exists():
                continue
            words = ["--method", *method, "--seed", str(seed), *common, "--output", str(path)]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            subprocess.run(
                [sys.executable, "-m", "entrostat", "train", *words], check=True, env=environment,
                stdout=subprocess.DEVNULL,
            )  # fmt: skip
            print(path.name, flush=True)


def watched(logs: Iterable[Path]) -> list[Watched]:
    """Of the logs that differ, of 40 iterations or more."""
    found: dict[str, Watched] = {}
    for log in sorted(logs):
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        rows = [row for row in rows if "entropy/exact" in row]
        entropy = [row["entropy/exact"] for row in rows]
        key = hashlib.sha256(json.dumps(entropy).encode()).hexdigest()
        if len(rows) < 40 or key in found:
            continue
        targets = [row.get("control/target") for row in rows]
        alarm, probabilities = Alarm(), []
        for value, target in zip(entropy, targets, strict=True):
            alarm = alarm.seen(value, target)
            forecast = alarm.forecast()
            trusted = forecast is None or alarm.trusted
            probabilities.append(0.0 if trusted or forecast is None else forecast.probability)
        low, high = alarm.band
        means = np.convolve(entropy, np.full(5, 0.2), "valid")
        out = np.flatnonzero((means < low) | (means > high))
        left = int(out[0]) + 3 if len(out) else None  # the middle one of the five
        known = [t for t in targets if t is not None]
        steps = range(1, len(entropy) + 1)
        verdict = judge(steps, entropy, target=known).verdict
        held = left is None and verdict == "held" and len(rows) >= LONG
        reward = [row.get("reward/mean", 0.0) for row in rows]
        alive = np.mean(reward[-10:]) >= np.mean(reward[:10]) / 2
        setting = int(key[:8], 16) % 3 == 0
        found[key] = Watched(
            log.parent.name, left, held, bool(alive), tuple(probabilities), setting
        )
    return list(found.values())


def rates(runs: Sequence[Watched], level: float) -> tuple[int, int, int, int]:
    """Detected, of how many that could be; false alarms, of how many that held."""
    gone = [run for run in runs if run.left is not None and run.left >= EARLIEST]
    held = [run for run in runs if run.held]
    detected = sum(
        (at := run.first(level)) is not None and at <= run.left - LEAD
        for run in gone if run.left is not None
    )  # fmt: skip
    return detected, len(gone), sum(run.first(level) is not None for run in held), len(held)


def measure(name: str, runs: Sequence[Watched]) -> None:
    """Print the rates at the probability that the alarm has."""
    a, b, c, d = rates(runs, RAISED)
    print(f"\nmeasured on {name} at {RAISED}:\ndetected {wilson(a, b)}\nfalse {wilson(c, d)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    places = parser.add_mutually_exclusive_group(required=True)
    places.add_argument("--output", type=Path, help="where the runs are")
    places.add_argument("--measure", type=Path, nargs="+", help="runs to measure the alarm on")
    parser.add_argument("--make", action="store_true", help="train those that are missing")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="other runs' directories")
    given = parser.parse_args()
    if given.make and given.output is None:
        parser.error("--make trains into --output")
    if given.make:
        make(given.output)
    roots = given.measure or (given.output, *given.also)
    runs = watched(log for root in roots for log in root.rglob("metrics.jsonl"))
    early = sum(run.left is not None and run.left < EARLIEST for run in runs)
    print(f"{len(runs)} runs that differ; {early} left the band before iteration {EARLIEST}")
    if given.measure:
        measure("all", runs)
        measure("policies that died left out", [run for run in runs if run.alive])
        return
    print(f"probability within {AHEAD} iterations, {ROW} in a row; detected {LEAD} ahead | false")
    setting = [run for run in runs if run.setting]
    for level in LEVELS:
        a, b, c, d = rates(setting, level)
        print(f"set on a third: {level}: {a} of {b} | {c} of {d}")
    measure("the others", [run for run in runs if not run.setting])


if __name__ == "__main__":
    main()
