"""One recipe in several hosts: entropy and reward, iteration by iteration, beside the lab's.

Each host runs the recipe with several seeds, as `entrostat train --config RECIPE --host HOST` does:
prompts, order, groups, updates and objective are the same, samples and (by each host's own design)
minibatches are not. The table compares mean curves: how far a host's is from the lab's, and
in how many iterations it is inside the lab's seed band. That is two standard deviations of the
difference of two such means if both hosts do the same, 2 s sqrt(2/n), with s the standard deviation
of one of the lab's runs over its seeds, averaged over three iterations, and at least 1% of the
lab's mean. With one seed there is no band, and the table has the gaps alone.

A run that is there whole is not made again, one that was stopped goes on; `entrostat report` on the
directory lays the runs' curves over each other.

Example:
    python benchmarks/hosts_curves.py
    python benchmarks/hosts_curves.py --hosts lab trl verl --verl-python .venv-verl/bin/python
    python benchmarks/hosts_curves.py --config recipes/llm_words.toml --seeds 1 --iterations 20
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev

KEYS = ("entropy/exact", "reward/mean")
ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore",
}  # fmt: skip

Curves = dict[str, list[float]]


def run(host: str, seed: int, args: argparse.Namespace) -> Curves:
    """One run, in its own process, or what it left; exits with its error where it fails."""
    directory = args.output / f"{host}-s{seed}"
    found = curves(directory)
    if len(found[KEYS[0]]) >= args.iterations:
        return found
    new = ["--config", str(args.config), "--host", host, "--seed", str(seed)]
    words = [*new, "--output", str(directory)]
    if (directory / "config.toml").exists():
        words = ["--resume", str(directory)]
    command = [
        sys.executable, "-m", "entrostat", "train", *words, "--iterations", str(args.iterations),
        *(args.options if host == "verl" else []),
    ]  # fmt: skip
    log = args.output / f"{host}-s{seed}.log"
    with log.open("w") as out:
        done = subprocess.run(command, env=os.environ | ENVIRONMENT, stdout=out, stderr=out)
    if done.returncode:
        sys.exit(f"{host}, seed {seed} failed; the end of {log}:\n{log.read_text()[-3000:]}")
    return curves(directory)


def curves(directory: Path) -> Curves:
    """What a run directory has of the figures compared."""
    try:
        lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        lines = []
    rows = [json.loads(line) for line in lines]
    return {key: [row[key] for row in rows] for key in KEYS}


def band(lab: list[list[float]]) -> list[float]:
    """The half-width around the lab's mean at each iteration (see the top)."""
    n, T = len(lab), len(lab[0])
    at = [stdev(run[t] for run in lab) for t in range(T)]
    spread = [mean(at[max(0, t - 1) : t + 2]) for t in range(T)]
    return [
        max(2 * s * (2 / n) ** 0.5, 0.01 * abs(mean(run[t] for run in lab)))
        for t, s in enumerate(spread)
    ]


def row(host: str, key: str, lab: list[list[float]], theirs: list[list[float]]) -> str:
    """A host beside the lab, in one figure, as a line of the table."""
    T = len(lab[0])
    ours, other = ([mean(run[t] for run in runs) for t in range(T)] for runs in (lab, theirs))
    gaps = [abs(b - a) for a, b in zip(ours, other, strict=True)]
    width, inside = "-", "-"
    if len(lab) > 1:
        bounds = band(lab)
        width = f"{mean(bounds):.3f}"
        inside = f"{mean(g <= b for g, b in zip(gaps, bounds, strict=True)):.0%}"
    last = slice(-max(1, T // 6), None)
    figures = [ours[0], other[0], mean(ours[last]), mean(other[last]), mean(gaps)]
    numbers = " | ".join(f"{x:.3f}" for x in figures)
    return f"| {host} | {key} | {numbers} | {width} | {inside} |"


def main() -> None:
    """Run the hosts and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--config", type=Path, default=Path("recipes/three_hosts.toml"), metavar="RECIPE")
    add("--hosts", nargs="+", default=["lab", "trl"], choices=["lab", "trl", "verl"])
    add("--seeds", type=int, default=3, help="runs per host (default 3)")
    add("--iterations", type=int, default=60)
    add("--output", type=Path, default=Path("runs/three_hosts"), metavar="DIR")
    add("--verl-python", metavar="PYTHON", help="the interpreter of veRL's environment")
    args, options = parser.parse_known_args()  # the rest goes to the runs of veRL: --verl.KEY V
    args.options = options
    if args.verl_python:
        args.options += ["--verl-python", args.verl_python]
    if min(args.seeds, args.iterations) < 1:
        parser.error("--seeds and --iterations must be at least 1")
    args.output.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Curves]] = {host: [] for host in dict.fromkeys(["lab", *args.hosts])}
    for seed in range(args.seeds):
        for host, runs in found.items():
            runs.append(run(host, seed, args))
            print(f"{host}, seed {seed}: done", file=sys.stderr, flush=True)
    print(
        "| host | figure | lab first | host first | lab last sixth | host last sixth | mean gap | "
        "band | inside |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    for host in args.hosts:
        for key in KEYS:
            lab, theirs = ([one[key] for one in found[each]] for each in ("lab", host))
            if host != "lab":
                print(row(host, key, lab, theirs))


if __name__ == "__main__":
    main()
