"""Does holding entropy pay: scores after training at several held entropies, with intervals.

    python benchmarks/held_entropy.py --output runs/held_entropy --picture docs/held_entropy.png
    python benchmarks/held_entropy.py --output runs/held_entropy --only-table

`target_sum` with the tiny policy, 150 iterations under the thermostat at shares of the first
entropy, five seeds, and GRPO without it; then 256 answers to each of 64 problems of `test`: pass@k
for k up to 256 and distinct right answers of the 256. "held" is the entropy that was really held,
the mean of iterations 101 to 150 over the first; differences are from GRPO, seed by seed.
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
TARGETS = ("0.5", "0.75", "1", "1.25")
FIGURES = ("avg@256", "pass@4", "pass@16", "pass@256", "distinct")
SET = "target_sum/test"


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
                "64", "--on", SET, "--output", str(results),
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
    metrics = json.loads((results / "results.json").read_text())["sets"][SET]["metrics"]
    return found | {key: metrics[key]["value"] for key in FIGURES}


def together(values: list[float]) -> str:
    return str(interval(values)) if len(values) > 1 else f"{values[0]:.2f}"


def draw(rows: dict[str, dict[int, dict[str, float]]], path: Path) -> None:
    """Scores and distinct right answers against held entropy, with intervals of both."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axis, keys in ((left, ("avg@256", "pass@16", "pass@256")), (right, ("distinct",))):
        for color, key in enumerate(keys):
            points = {
                name: [interval([r[k] for r in runs.values()]) for k in ("held", key)]
                for name, runs in rows.items()
            }
            held = [pair for name, pair in points.items() if name != "grpo"]
            for pairs, fill, label in ((held, None, key), ([points["grpo"]], "white", None)):
                axis.errorbar(
                    [x.mean for x, _ in pairs], [y.mean for _, y in pairs],
                    xerr=[x.half for x, _ in pairs], yerr=[y.half for _, y in pairs],
                    marker="os^"[color], ms=5, mfc=fill, lw=0.8 if fill is None else 0,
                    elinewidth=1.0, capsize=2, color=f"C{color}", label=label,
                )  # fmt: skip
        axis.set(xlabel="entropy held, share of the first")
    left.legend(frameon=False, loc="lower left")
    left.set(ylabel="score on test", ylim=(0, 1.03))
    right.set(ylabel="distinct right answers of 256", ylim=(0, None))
    figure.suptitle("Under the thermostat (filled); GRPO, which holds nothing (open)", size=10)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--knob", default="multiplier")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument("--seeds", type=int, default=5)
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
        name: {s: r for s in range(given.seeds) if (r := row(name, s, given.output))}
        for name in names
    }
    found = {name: runs for name, runs in found.items() if runs}
    columns = ["held", *FIGURES]
    print(" | ".join(["target", "seeds", *columns]))
    for name, runs in found.items():
        cells = [together([r[key] for r in runs.values()]) for key in columns]
        print(" | ".join([name, str(len(runs)), *cells]))
    base = found.get("grpo", {})
    for name, runs in found.items():
        both = sorted(runs.keys() & base.keys())
        if name != "grpo" and len(both) > 1:
            cells = [together([runs[s][key] - base[s][key] for s in both]) for key in columns]
            print(" | ".join([f"{name} less grpo", str(len(both)), *cells]))
    if given.picture:
        draw(found, given.picture)


if __name__ == "__main__":
    main()
