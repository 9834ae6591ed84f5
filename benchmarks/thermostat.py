"""The thermostat on every knob beside the papers' controllers: how near a target entropy stays.

    python benchmarks/thermostat.py --output runs/thermostat                    # hours: 5 seeds
    python benchmarks/thermostat.py --knobs zeta --seeds 1 --output /tmp/quick  # minutes
    python benchmarks/thermostat.py --table --output runs/thermostat            # of what is there

Runs `target_sum` with the tiny policy, 150 iterations, once for each knob, target and seed; a
finished run is not made again. Of iterations 60 to 150, entropy before each iteration's updates:

    deviation   RMS of (H - target) / target
    mean        the largest |mean of ten iterations in a row - target| / target
    arrived     the first iteration with which a mean of ten within 5% of the target begins
    noise       standard deviation of H at a policy that does not move (lr 0), over its mean

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

KNOBS = (
    "zeta", "zeta_d", "clip_high", "clip_low", "entropy_coef", "pos_weight", "balance",
    "lambda_min",
)  # fmt: skip
# the papers' controllers, on their own knobs
PAPERS = {
    "repo_r": ["repo_r", "--method.bidirectional", "true", "--method.zeta_max", "0.5"],
    "adapo": ["adapo"],
    "pos_adv": ["pos_adv"],
}
TARGETS = (0.5, 0.75, 1.0, 1.25)
ITERATIONS, LATE = 150, 60
ON_POLICY = ["--optim.epochs", "1", "--optim.minibatches", "1"]


def command(name: str, target: float, seed: int, path: Path) -> list[str]:
    """The run's command line; name is a knob, a paper's controller or "still"."""
    if name == "still":
        method = ["grpo", "--optim.lr", "1e-12"]
    elif name in KNOBS:
        method = ["thermostat", "--method.knob", name, "--method.target", f"{target:g}x"]
        method += ON_POLICY if name == "balance" else []
    else:
        method = [*PAPERS[name], "--method.target", f"{target:g}x"]
    return [
        sys.executable, "-m", "entrostat", "train", "--method", *method, "--seed", str(seed),
        "--iterations", str(ITERATIONS), "--output", str(path), "--eval.prompts", "0",
        "--save.checkpoint-every", "1000", "--save.rollouts-every", "0",
    ]  # fmt: skip


def entropies(path: Path) -> list[float]:
    """Of each iteration of a finished run; empty without one."""
    log = path / "metrics.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [row["entropy/exact"] for row in rows] if len(rows) == ITERATIONS else []


def run(name: str, target: float, seed: int, output: Path) -> None:
    path = output / f"{name}-{target:g}-{seed}"
    if entropies(path):
        return
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        command(name, target, seed, path), capture_output=True, text=True, env=environment
    )
    print(f"{path.name}: {'done' if found.returncode == 0 else found.stderr[-300:]}", flush=True)


def tens(values: Sequence[float]) -> list[float]:
    return [statistics.fmean(values[i : i + 10]) for i in range(len(values) - 9)]


def arrived(deviations: Sequence[float]) -> int | None:
    """The first iteration with which a mean of ten deviations within 5% begins."""
    near = (i for i, mean in enumerate(tens(deviations), 1) if abs(mean) <= 0.05)
    return next(near, None)


def row(name: str, target: float, seeds: int, output: Path) -> str | None:
    rms, worst, when = [], [], []
    for seed in range(seeds):
        H = entropies(output / f"{name}-{target:g}-{seed}")
        if H:
            D = [x / (target * H[0]) - 1 for x in H]
            rms.append(math.sqrt(statistics.fmean(d * d for d in D[LATE - 1 :])))
            worst.append(max(abs(m) for m in tens(D[LATE - 1 :])))
            when.append(arrived(D))
    if not rms:
        return None
    times = " ".join("-" if t is None else str(t) for t in when)
    mean = statistics.fmean(rms)
    return f"{name} | {target:g}x | {len(rms)} | {mean:.3f} | {max(worst):.3f} | {times}"


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
    jobs.insert(0, ("still", 1.0, 0))
    if not given.table:
        with ThreadPoolExecutor(given.jobs) as pool:
            list(pool.map(lambda job: run(job[0], job[1], job[2], given.output), jobs))
    still = entropies(given.output / "still-1-0")
    if still:
        noise = statistics.stdev(still) / statistics.fmean(still)
        print(f"noise of a measurement: {noise:.4f} of the entropy")
    print("knob | target | seeds | deviation | worst mean of ten | arrived")
    for name in given.knobs:
        for target in given.targets:
            line = row(name, target, given.seeds, given.output)
            if line:
                print(line)


if __name__ == "__main__":
    main()
