"""Does holding entropy pay: scores after training at several held entropies, with intervals.

    python benchmarks/held_entropy.py --output runs/held_entropy --picture docs/held_entropy.png
    python benchmarks/held_entropy.py --output runs/held_entropy --only-table

`target_sum` with the tiny policy, 150 iterations under the thermostat at shares of the first
entropy, three seeds, and GRPO without it; then 256 answers to each of 64 problems of `test` and
`ood` (7 or 8 digits, where training has 3 to 6): pass@k for k up to 256 and distinct right answers
of 16. Rows by the entropy that was really held, the mean of iterations 101 to 150 over the first.
Intervals: 95%, Student's t over seeds. Finished runs and evaluations are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from entrostat.study.seeds import interval

ITERATIONS, LATE = 150, 100
TARGETS = ("0.4", "0.6", "0.8", "1", "1.2")
FIGURES = ("avg@256", "pass@16", "pass@256", "distinct@16")
SETS = ("test", "ood")


def command(name: str, knob: str, seed: int, path: Path) -> list[str]:
    """`name` is a share, or "grpo"."""
    method = ["grpo_token"]
    if name != "grpo":
        held = {"name": "thermostat", "knob": knob, "target": f"{name}x"}
        method = ["thermostat", "--method.knob", held["knob"], "--method.target", held["target"]]
        method += ["--advantage", "grpo", "--optim.aggregation", "token_mean"]
    if path.exists():
        return [sys.executable, "-m", "entrostat", "train", "--resume", str(path)]
    return [
        sys.executable, "-m", "entrostat", "train", "--method", *method, "--seed", str(seed),
        "--iterations", str(ITERATIONS), "--output", str(path), "--eval.prompts", "0",
        "--save.checkpoint-every", "1000", "--save.rollouts-every", "0",
    ]  # fmt: skip


def make(name: str, knob: str, seed: int, output: Path) -> None:
    """A run and its evaluation, unless they are there."""
    path = output / f"{name}-{seed}"
    results = output / "eval" / path.name
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    steps = [
        (path / "final", command(name, knob, seed, path)),
        (
            results / "results.json",
            [
                sys.executable, "-m", "entrostat", "eval", str(path), "--k", "256", "--problems",
                "64", "--on", ",".join(f"target_sum/{split}" for split in SETS), "--output",
                str(results),
            ],
        ),
    ]  # fmt: skip
    for done, words in steps:
        if not done.exists():
            found = subprocess.run(words, capture_output=True, text=True, env=environment)
            if found.returncode:
                print(f"{path.name}: {found.stderr[-300:]}", flush=True)
                return
    print(f"{path.name}: done", flush=True)


def row(name: str, seed: int, output: Path) -> dict[str, float] | None:
    """What one run held and what it scores."""
    log, results = output / f"{name}-{seed}/metrics.jsonl", output / f"eval/{name}-{seed}"
    if not (results / "results.json").exists():
        return None
    H = [json.loads(line)["entropy/exact"] for line in log.read_text().splitlines()]
    found = {"held": statistics.fmean(H[LATE:]) / H[0]}
    sets = json.loads((results / "results.json").read_text())["sets"]
    for split in SETS:
        metrics = sets[f"target_sum/{split}"]["metrics"]
        found |= {f"{split} {key}": metrics[key]["value"] for key in FIGURES if key in metrics}
    return found


def together(values: list[float]) -> str:
    return str(interval(values)) if len(values) > 1 else f"{values[0]:.2f}"


def draw(rows: dict[str, list[dict[str, float]]], path: Path) -> None:
    """pass@k against held entropy; a point for each run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, split in zip(axes, SETS, strict=True):
        for key, marker in (("avg@256", "o"), ("pass@16", "s"), ("pass@256", "^")):
            points = [(r["held"], r[f"{split} {key}"]) for runs in rows.values() for r in runs]
            axis.plot(*zip(*sorted(points), strict=True), marker=marker, ms=4, lw=0.8, label=key)
        for r in rows.get("grpo", []):
            axis.axvline(r["held"], color="0.8", lw=0.8, zorder=0)
        axis.set(title=split, xlabel="entropy held, share of the first", ylim=(-0.03, 1.03))
    axes[0].legend(frameon=False)
    axes[0].set_ylabel("score")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--knob", default="entropy_coef")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--only-table", action="store_true", help="of the runs that are there")
    given = parser.parse_args()
    names = ["grpo", *given.targets]
    if not given.only_table:
        jobs = [(name, seed) for seed in range(given.seeds) for name in names]
        with ThreadPoolExecutor(given.jobs) as pool:
            list(pool.map(lambda job: make(job[0], given.knob, job[1], given.output), jobs))
    found = {
        name: [r for seed in range(given.seeds) if (r := row(name, seed, given.output))]
        for name in names
    }
    found = {name: runs for name, runs in found.items() if runs}
    columns = [key for key in next(iter(found.values()))[0] if key != "held"]
    print(" | ".join(["target", "seeds", "held", *columns]))
    for name, runs in found.items():
        cells = [together([r[key] for r in runs]) for key in ("held", *columns)]
        print(" | ".join([name, str(len(runs)), *cells]))
    if given.picture:
        draw(found, given.picture)


if __name__ == "__main__":
    main()
