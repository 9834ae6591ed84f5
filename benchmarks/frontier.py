"""The score at the entropy held: the thermostat beside every rival, with intervals.

    python benchmarks/frontier.py --output runs/frontier --picture docs/frontier.png  # hours
    python benchmarks/frontier.py --output runs/frontier --only-table         # of what is there
    python benchmarks/frontier.py --output runs/frontier --only-table --course docs/thermostat.png
    python benchmarks/frontier.py --task words --iterations 30 --seeds 3 --output runs/words

Trains once for each method, target (a share of the first entropy) and seed, then gives 16 answers
to each held-out problem: entropy, avg@16, pass@16 and distinct right answers of the final policy.
`grpo` and `opefo` have no target. Tables and figure have the mean over the seeds with its 95%
interval (Student's t); "less multiplier" is the difference seed by seed, at the same target. A
finished run is not made again; seeds are completed in turn. `--course` draws entropy and training
reward by iteration: GRPO and the multiplier at 0.75x, a line a seed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from entrostat.study.results import interval

TARGETS = ("0.5", "0.75", "1")
RIVALS = {  # {} is the target
    "multiplier": "thermostat --method.target {}",
    "exact": "thermostat --method.solve exact --method.target {}",
    "whole_groups": "thermostat --optim.whole_groups true --method.target {}",  # as in one epoch
    "rollouts": "thermostat --optim.whole_groups false --method.target {}",  # as in two epochs
    "entropy_coef": "thermostat --method.knob entropy_coef --method.target {}",
    "dual": "entropy_bonus --method.controller dual --method.target {}",
    "doubling": "repo_r --method.bidirectional true --method.zeta_max 0.5 --method.target {}",
    "entropic": "entropic --method.target {}",
    "adapo": "adapo --method.target {}",
    "below": "thermostat --method.side below --method.target {}",
    "grpo": "grpo_token",
    "opefo": "opefo",
}
SMOLLM2 = (
    "--model smollm2 --sampling.prompts 16 --sampling.rollouts 8 --optim.lr 1e-5 --optim.epochs 1 "
    "--optim.minibatches 2 --precision fp32"
)
TASKS = {
    "target_sum": "",
    "words": SMOLLM2,
    "arithmetic": SMOLLM2,
    "gym:chain_sum": f"{SMOLLM2} --task.min_terms 2 --task.max_terms 2 --task.max_digits 1 "
    "--task.max_new_tokens 8 --prompt.chat false --sampling.stop NEWLINE",  # as in llm_gym
}
FIGURES = ("entropy", "avg@k", "pass@k", "distinct")
TITLES = {"avg@k": "avg@16", "pass@k": "pass@16", "distinct": "distinct right answers of 16"}


@dataclass(frozen=True)
class Job:
    """One training."""

    method: str
    target: str
    seed: int

    def path(self, output: Path) -> Path:
        name = self.method if self.target == "" else f"{self.method}-{self.target}"
        return output / f"{name}-{self.seed}"


def command(job: Job, given: argparse.Namespace) -> list[str]:
    method = RIVALS[job.method].format(f"{job.target}x")
    words = (
        f"--method {method} --advantage grpo --optim.aggregation token_mean "
        f"--task {given.task} {TASKS[given.task]} --seed {job.seed} "
        f"--iterations {given.iterations} --eval.prompts {given.problems} "
        "--eval.samples 16 --eval.every 100000 --save.checkpoint-every 1000 --save.rollouts-every 0"
    ).split()
    words = [word.replace("NEWLINE", "\n") for word in words]
    path = ["--output", str(job.path(given.output))]
    return [sys.executable, "-m", "entrostat", "train", *words, *path]


def figures(job: Job, output: Path) -> dict[str, float] | None:
    """What the final policy scores on held-out problems; None unless the run is finished."""
    path = job.path(output)
    if not (path / "final").exists():
        return None
    log = (path / "evaluation.jsonl").read_text().splitlines()
    last = [row for row in map(json.loads, log) if row["set"] == "test"][-1]
    lines = (path / "metrics.jsonl").read_text().splitlines()
    H = [json.loads(line)["entropy/exact"] for line in lines]
    late = statistics.fmean(H[-len(H) // 3 :]) / H[0]
    return {key: last[key] for key in FIGURES} | {"held": late}


def make(job: Job, given: argparse.Namespace) -> None:
    if figures(job, given.output) is not None:
        return
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run(command(job, given), capture_output=True, text=True, env=environment)
    said = "done" if found.returncode == 0 else found.stderr[-300:]
    print(f"{job.path(given.output).name}: {said}", flush=True)


def jobs_of(given: argparse.Namespace) -> list[Job]:
    return [
        Job(method, target, seed)
        for seed in range(given.seeds)
        for method in given.methods
        for target in (given.targets if "{}" in RIVALS[method] else [""])
    ]


Found = dict[tuple[str, str], dict[int, dict[str, float]]]


def table(found: Found) -> str:
    columns = ["held", *FIGURES]
    lines = [" | ".join(["method", "target", "seeds", *columns])]
    for (method, target), runs in found.items():
        cells = [interval([run[key] for run in runs.values()]).cell(2) for key in columns]
        lines.append(" | ".join([method, target, str(len(runs)), *cells]))
    lines.append("\nless multiplier, at the same target")
    for (method, target), runs in found.items():
        base = found.get(("multiplier", target), {})
        both = sorted(runs.keys() & base.keys())
        if method != "multiplier" and both:
            cells = [
                interval([runs[s][key] - base[s][key] for s in both]).cell(2) for key in columns
            ]
            lines.append(" | ".join([method, target, str(len(both)), *cells]))
    return "\n".join(lines)


def draw(found: Found, path: Path) -> None:
    """Each score against the held-out entropy, a line a method, intervals of both."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    axes = figure.subplots(1, len(TITLES))
    names = list(dict.fromkeys(method for method, _ in found))
    for axis, (key, title) in zip(axes, TITLES.items(), strict=True):
        for place, name in enumerate(names):
            runs = [list(r.values()) for (method, _), r in found.items() if method == name]
            points = [[interval([r[k] for r in rows]) for k in ("entropy", key)] for rows in runs]
            points.sort(key=lambda pair: pair[0].mean)
            axis.errorbar(
                [x.mean for x, _ in points], [y.mean for _, y in points],
                xerr=[x.half for x, _ in points], yerr=[y.half for _, y in points],
                marker="osD^v<>pXhdP"[place], ms=5, color=f"C{place}", label=name, capsize=2,
                lw=1.8 if name == "multiplier" else 0.7, elinewidth=0.8,
            )  # fmt: skip
        axis.set(xlabel="entropy on held-out problems, nats per token", ylabel=title)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def draw_course(output: Path, seeds: int, path: Path) -> None:
    """Entropy and training reward by iteration, means of five: GRPO beside the multiplier."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.8), layout="constrained")
    axes = figure.subplots(1, 2)
    styles = {("grpo", ""): ("C1", "GRPO"), ("multiplier", "0.75"): ("C0", "held at 0.75x")}
    for (method, target), (color, label) in styles.items():
        for seed in range(seeds):
            log = Job(method, target, seed).path(output) / "metrics.jsonl"
            if not log.exists():
                continue
            rows = [json.loads(line) for line in log.read_text().splitlines()]
            for axis, key in zip(axes, ("entropy/exact", "reward/mean"), strict=True):
                values = [row[key] for row in rows]
                means = [statistics.fmean(values[max(0, i - 4) : i + 1]) for i in range(len(rows))]
                axis.plot(
                    [row["iteration"] for row in rows], means, color=color, lw=1.3, label=label
                )
                label = ""
            if target:
                level = float(target) * rows[0]["entropy/exact"]
                axes[0].axhline(level, color=color, ls=":", lw=1)
    axes[0].set(xlabel="iteration", ylabel="entropy, nats per token", ylim=(0, None))
    axes[1].set(xlabel="iteration", ylabel="reward in training", ylim=(0, 1))
    axes[0].legend(frameon=False, loc="lower left")
    figure.savefig(path, dpi=100, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--task", default="target_sum", choices=TASKS)
    parser.add_argument("--methods", nargs="+", default=list(RIVALS), choices=RIVALS)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--problems", type=int, default=128, help="held out")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--course", type=Path, help="picture of entropy and reward by iteration")
    parser.add_argument("--only-table", action="store_true", help="of the runs that are there")
    given = parser.parse_args()
    jobs = jobs_of(given)
    if not given.only_table:
        with ThreadPoolExecutor(given.jobs) as pool:
            list(pool.map(lambda job: make(job, given), jobs))
    found: Found = {}
    for job in jobs:
        if run := figures(job, given.output):
            found.setdefault((job.method, job.target), {})[job.seed] = run
    print(table(found))
    if given.picture:
        draw({key: runs for key, runs in found.items() if len(runs) > 1}, given.picture)
    if given.course:
        draw_course(given.output, given.seeds, given.course)


if __name__ == "__main__":
    main()
