"""How near a target entropy stays: the thermostat, its knobs, the papers' controllers.

    python benchmarks/thermostat.py --output runs/thermostat                          # hours
    python benchmarks/thermostat.py --knobs multiplier --seeds 1 --output /tmp/quick  # minutes
    python benchmarks/thermostat.py --table --output runs/thermostat          # of what is there

Runs `target_sum` with the tiny policy, 150 iterations, once for each knob, target and seed; a
finished run is not made again. Of iterations 10 to 150, entropy before each iteration's updates:

    off         RMS of the deviation of means of five iterations from the target, over the target
    noise       standard error of such a mean: of an iteration's entropy between prompts, over
                sqrt 5 and the target
    mean        the mean deviation, over the target
    settled     the first iteration with which a mean of five within 10% begins, seed by seed
    reward      of the last ten iterations
    coefficient mean and standard deviation over iterations 10 to 30

Results are ratios of one run; nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KNOBS = ("multiplier", "zeta", "zeta_d", "entropy_coef", "balance")
# the papers' controllers, on their own knobs
PAPERS = {
    "repo_r": ["repo_r", "--method.bidirectional", "true", "--method.zeta_max", "0.5"],
    "adapo": ["adapo"],
    "pos_adv": ["pos_adv"],
}
TARGETS = (0.5, 0.75, 1.0, 1.25)
ITERATIONS, FROM = 150, 10
ON_POLICY = ["--optim.epochs", "1", "--optim.minibatches", "1"]


def command(name: str, target: float, seed: int, path: Path) -> list[str]:
    """The run's command line; name is a knob or a paper's controller."""
    if name in KNOBS:
        method = ["thermostat", "--method.knob", name, "--method.target", f"{target:g}x"]
        method += ON_POLICY if name == "balance" else []
    else:
        method = [*PAPERS[name], "--method.target", f"{target:g}x"]
    return [
        sys.executable, "-m", "entrostat", "train", "--method", *method, "--seed", str(seed),
        "--iterations", str(ITERATIONS), "--output", str(path), "--eval.prompts", "0",
        "--save.checkpoint-every", "1000", "--save.rollouts-every", "0",
    ]  # fmt: skip


def lines(path: Path) -> list[dict[str, float]]:
    """Of each iteration of a finished run; empty without one."""
    log = path / "metrics.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return rows if len(rows) == ITERATIONS else []


def run(name: str, target: float, seed: int, output: Path) -> None:
    path = output / f"{name}-{target:g}-{seed}"
    if lines(path):
        return
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        command(name, target, seed, path), capture_output=True, text=True, env=environment
    )
    print(f"{path.name}: {'done' if found.returncode == 0 else found.stderr[-300:]}", flush=True)


def fives(values: Sequence[float]) -> list[float]:
    return [statistics.fmean(values[i : i + 5]) for i in range(len(values) - 4)]


def rms(values: Sequence[float]) -> float:
    return math.sqrt(statistics.fmean(x * x for x in values))


def figures(rows: Sequence[dict[str, float]], target: float) -> dict[str, float]:
    """What is said of one run; `target` is a share of the first entropy."""
    wanted = target * rows[0]["entropy/exact"]
    off = [row["entropy/exact"] / wanted - 1 for row in rows]
    settled = [i for i, mean in enumerate(fives(off), 1) if abs(mean) <= 0.1]
    found = {
        "off": rms(fives(off[FROM - 1 :])),
        "mean": statistics.fmean(off[FROM - 1 :]),
        "settled": settled[0] if settled else math.inf,
        "reward": statistics.fmean(row["reward/mean"] for row in rows[-10:]),
    }
    if "entropy/stderr" in rows[0]:
        errors = [row["entropy/stderr"] / wanted for row in rows[FROM - 1 :]]
        found["noise"] = rms(errors) / math.sqrt(5)
    keys = [k for k in rows[-1] if k.startswith("control/") and k != "control/target"]
    if keys:
        values = [row[keys[0]] for row in rows[FROM - 1 : 30]]
        found |= {"coefficient": statistics.fmean(values), "spread": statistics.pstdev(values)}
    return found


def row(name: str, target: float, seeds: int, output: Path) -> str | None:
    """A line of the table: means over the seeds, with the least and the largest."""
    runs = [lines(output / f"{name}-{target:g}-{seed}") for seed in range(seeds)]
    found = [figures(rows, target) for rows in runs if rows]
    if not found:
        return None

    def of(key: str, form: str = ".3f") -> str:
        values = [one[key] for one in found if key in one]
        if not values:
            return ""
        low, high = min(values), max(values)
        return f"{statistics.fmean(values):{form}} ({low:{form}} to {high:{form}})"

    ratios = [one["off"] / one["noise"] for one in found if "noise" in one]
    cells = [
        name, f"{target:g}x", str(len(found)), of("off"), of("noise"),
        f"{statistics.fmean(ratios):.2f}" if ratios else "", of("mean", "+.3f"),
        " ".join(f"{one['settled']:g}" for one in found), of("reward", ".2f"),
        of("coefficient", ".2f"), of("spread", ".2f"),
    ]  # fmt: skip
    return " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--knobs", nargs="+", default=[*KNOBS, *PAPERS], choices=[*KNOBS, *PAPERS])
    parser.add_argument("--targets", nargs="+", type=float, default=list(TARGETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="only of the runs that are there")
    given = parser.parse_args()
    jobs = [
        (name, target, seed)
        for seed in range(given.seeds)
        for target in given.targets
        for name in given.knobs
    ]
    if not given.table:
        with ThreadPoolExecutor(given.jobs) as pool:
            list(pool.map(lambda job: run(job[0], job[1], job[2], given.output), jobs))
    print(
        "knob | target | seeds | off | noise | off / noise | mean | settled | reward | "
        "coefficient | its spread"
    )
    for name in given.knobs:
        for target in given.targets:
            line = row(name, target, given.seeds, given.output)
            if line:
                print(line)


if __name__ == "__main__":
    main()
