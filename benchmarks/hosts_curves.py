"""One recipe in several hosts: entropy and reward, iteration by iteration, beside the lab's.

Each host runs the recipe with several seeds, as `entrostat train --config RECIPE --host HOST` does:
prompts, order, groups, updates and objective are the same, samples and (by each host's own design)
minibatches are not. The table compares mean curves: how far a host's is from the lab's, and
in how many iterations it is inside the lab's seed band. That is two standard deviations of the
difference of two such means if both hosts do the same, 2 s sqrt(1/m + 1/n) for the lab's m and the
host's n runs, with s the standard deviation of one of the lab's runs over its seeds, averaged over
three iterations, and at least 1% of the lab's mean. Beside it, how often the host's single runs are
inside two such deviations of one run, 2 s sqrt(1/m + 1). The lab's own line says what to expect of
a host that does the same: each of its runs beside the mean and the band of the others. With one
seed there is no band, and the table has the gaps alone.

`--cpu` runs veRL as its tests do (tests/verl_env), with rollouts by transformers.

`--picture FILE` draws the curves: every run thin, every host's mean, and the lab's band.

A run that is there whole is not made again, one that was stopped goes on; `entrostat report` on the
directory lays the runs' curves over each other.

Example:
    python benchmarks/hosts_curves.py
    python benchmarks/hosts_curves.py --hosts trl verl --verl-python .venv-verl/bin/python --cpu
    python benchmarks/hosts_curves.py --hosts trl --seeds 10 --picture docs/hosts.png
    python benchmarks/hosts_curves.py --seeds 1 --iterations 20 \\
        --config recipes/three_hosts_words.toml
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, stdev

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/verl_env"))
import cpu_recipe
from cluster import cluster

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
    words += args.options if host == "verl" else []
    if (directory / "config.toml").exists():
        words = ["--resume", str(directory)]
    command = [
        sys.executable, "-m", "entrostat", "train", *words, "--iterations", str(args.iterations),
        *(["--verl-python", str(args.verl_python)] if host == "verl" and args.verl_python else []),
    ]  # fmt: skip
    log = args.output / f"{host}-s{seed}.log"
    log.unlink(missing_ok=True)
    with started(command, log, cpu=args.cpu and host == "verl") as process:
        code = process.wait()
    if code:
        sys.exit(f"{host}, seed {seed} failed; the end of {log}:\n{log.read_text()[-3000:]}")
    return curves(directory)


@contextmanager
def started(command: list[str], log: Path, cpu: bool) -> Iterator[subprocess.Popen[bytes]]:
    """The process; with `cpu` as veRL's tests start it, and nothing of Ray is left of it."""
    if cpu:
        with cluster(command, log, cpu_recipe.environment()) as job:
            yield job.process
    else:
        with log.open("w") as out:
            yield subprocess.Popen(command, env=os.environ | ENVIRONMENT, stdout=out, stderr=out)


def curves(directory: Path) -> Curves:
    """What a run directory has of the figures compared."""
    try:
        lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        lines = []
    rows = [json.loads(line) for line in lines]
    return {key: [row[key] for row in rows] for key in KEYS}


def band(lab: list[list[float]], runs: int) -> list[float]:
    """Half of its width at each iteration, for a mean of so many `runs` (see top)."""
    T = len(lab[0])
    at = [stdev(run[t] for run in lab) for t in range(T)]
    spread = [mean(at[max(0, t - 1) : t + 2]) for t in range(T)]
    return [
        max(2 * s * (1 / len(lab) + 1 / runs) ** 0.5, 0.01 * abs(mean(run[t] for run in lab)))
        for t, s in enumerate(spread)
    ]


def average(runs: list[list[float]]) -> list[float]:
    """The mean curve."""
    return [mean(at) for at in zip(*runs, strict=True)]


def inside(lab: list[list[float]], runs: list[list[float]]) -> float:
    """The share of the iterations in which the mean of `runs` is inside the lab's band."""
    both = zip(average(lab), average(runs), band(lab, len(runs)), strict=True)
    return mean(abs(theirs - ours) <= width for ours, theirs, width in both)


def row(host: str, key: str, lab: list[list[float]], runs: list[list[float]]) -> str:
    """A host beside the lab, in one figure, as a line of the table; the lab beside itself."""
    ours, theirs = average(lab), average(runs)
    last = slice(-max(1, len(ours) // 6), None)
    figures = [theirs[0], mean(theirs[last])]
    gap, width, of_mean, single = "-", "-", "-", "-"
    if host != "lab":
        gap = f"{mean(abs(b - a) for a, b in zip(ours, theirs, strict=True)):.3f}"
        if len(lab) > 1:
            width = f"{mean(band(lab, len(runs))):.3f}"
            of_mean = f"{inside(lab, runs):.0%}"
            single = f"{mean(inside(lab, [run]) for run in runs):.0%}"
    elif len(lab) > 2:
        others = [[*lab[:i], *lab[i + 1 :]] for i in range(len(lab))]
        of_each = mean(inside(rest, [run]) for rest, run in zip(others, lab, strict=True))
        single = f"{of_each:.0%}"
    numbers = " | ".join(f"{x:.3f}" for x in figures)
    return f"| {host} | {key} | {len(runs)} | {numbers} | {gap} | {width} | {of_mean} | {single} |"


def draw(found: dict[str, list[Curves]], path: Path) -> None:
    """Every host's mean curve, its runs behind it, and the band around the lab's mean."""
    from matplotlib.figure import Figure

    lab, others = found["lab"], [len(runs) for host, runs in found.items() if host != "lab"]
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots(1, len(KEYS))
    for axis, key in zip(axes, KEYS, strict=True):
        middle = average([one[key] for one in lab])
        place = range(1, len(middle) + 1)
        if len(lab) > 1:
            width = band([one[key] for one in lab], min(others))
            low, high = (
                [m + sign * w for m, w in zip(middle, width, strict=True)] for sign in (-1, 1)
            )
            axis.fill_between(place, low, high, color="0.9", lw=0, label="band of such means")
        for number, (host, runs) in enumerate(found.items()):
            color = f"C{number}"
            for one in runs if len(runs) > 1 else []:
                axis.plot(place, one[key], color=color, lw=0.4, alpha=0.35)
            label = f"{host}, {len(runs)} run{'s' * (len(runs) > 1)}"
            axis.plot(place, average([one[key] for one in runs]), color=color, lw=1.8, label=label)
        axis.set(xlabel="iteration", title=key)
        axis.set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run the hosts and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--config", type=Path, default=Path("recipes/three_hosts.toml"), metavar="RECIPE")
    add("--hosts", nargs="+", default=["trl"], choices=["trl", "verl"], help="beside the lab")
    add("--seeds", type=int, default=3, help="runs per host (default 3)")
    add("--lab-seeds", type=int, metavar="N", help="runs of the lab (default: as many)")
    add("--iterations", type=int, default=60)
    add("--output", type=Path, default=Path("runs/three_hosts"), metavar="DIR")
    add("--verl-python", type=Path, metavar="PYTHON", help="the interpreter of veRL's environment")
    add("--picture", type=Path, metavar="PNG", help="the curves as a picture")
    add("--cpu", action="store_true", help="veRL on the CPU, with rollouts by transformers")
    args, args.options = parser.parse_known_args()  # the rest goes to veRL's runs: --verl.KEY VALUE
    args.lab_seeds = args.lab_seeds or args.seeds
    if min(args.seeds, args.lab_seeds, args.iterations) < 1:
        parser.error("--seeds, --lab-seeds and --iterations must be at least 1")
    args.config, args.output = args.config.absolute(), args.output.absolute()
    args.verl_python = args.verl_python and args.verl_python.absolute()
    if args.cpu:
        settings = cpu_recipe.CPU | cpu_recipe.ranks(1) | cpu_recipe.TRANSFORMERS
        args.options += [f"--verl.{key}={json.dumps(value)}" for key, value in settings.items()]
    args.output.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or Ray would be left
    seeds = {"lab": args.lab_seeds} | dict.fromkeys(args.hosts, args.seeds)
    found: dict[str, list[Curves]] = {host: [] for host in seeds}
    for seed in range(max(seeds.values())):
        for host, runs in found.items():
            if seed < seeds[host]:
                runs.append(run(host, seed, args))
                print(f"{host}, seed {seed}: done", file=sys.stderr, flush=True)
    print(
        "| host | figure | runs | first | last sixth | mean gap | band | inside | one run inside |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for host, runs in found.items():
        for key in KEYS:
            print(row(host, key, [one[key] for one in found["lab"]], [one[key] for one in runs]))
    if args.picture:
        draw(found, args.picture)


if __name__ == "__main__":
    main()
