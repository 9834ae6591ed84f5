"""Time and memory of an iteration under the thermostat, beside GRPO's, in the lab. CPU.

Methods run in turn, each in a process of its own, the same number of times. The learning rate is
next to nothing, so that no policy changes and all do the same work: under GRPO a policy that learns
soon has prompts that all rollouts solve, which cost nothing. AdamW's momentum is off, so that it is
settled at once; until then the default takes a gradient before every update. With one or two
updates an iteration it takes one in every second iteration, so count an even number.

In one epoch the thermostat has minibatches of whole prompts, whose rollouts share the prompt's part
of a forward pass; `grpo_whole` is GRPO with the same.

Examples:
    python benchmarks/thermostat_cost.py
    python benchmarks/thermostat_cost.py --job chat --rounds 1
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import fmean
from typing import Any

from entrostat import config, train
from entrostat.runs.progress import Progress
from jobs import CHAT, TARGET_SUM, WORDS, Job

JOBS = {"target_sum": TARGET_SUM, "words": WORDS, "chat": CHAT}
METHODS: dict[str, dict[str, Any]] = {
    "grpo": {"name": "grpo_token"},
    "grpo_whole": {"name": "grpo_token"},
    "entropy_coef": {"name": "thermostat", "knob": "entropy_coef"},
    "thermostat": {"name": "thermostat"},
    "exact": {"name": "thermostat", "solve": "exact"},
}


class Rows(Progress):
    """Keeps every iteration's figures."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []

    def trained(self, iteration: int, metrics: dict[str, Any]) -> None:
        """Keep them."""
        self.rows.append(metrics)


def run(job: Job, name: str, seed: int, warm_up: int, counted: int) -> list[float]:
    """Mean seconds of a counted iteration, and peak memory in GB; of this process."""
    settings = config.TrainConfig(
        method=[METHODS[name]], advantage="grpo", task={"name": job.task}, model=job.model,
        iterations=warm_up + counted, seed=seed, threads=job.threads,
        sampling=config.Sampling(
            prompts=job.prompts, rollouts=job.rollouts, max_new_tokens=job.new_tokens
        ),
        optim=config.Optim(
            lr=1e-9, betas=(0.0, 0.95), epochs=job.epochs, minibatches=job.minibatches,
            micro_batch=job.minibatch, aggregation="token_mean",
            whole_groups=True if name == "grpo_whole" else None,
        ),
        eval=config.Evaluation(prompts=0),
        save=config.Save(checkpoint_every=1000, rollouts_every=0),
    )  # fmt: skip
    shown = Rows()
    with tempfile.TemporaryDirectory() as folder:
        settings.output = f"{folder}/run"
        train(settings, task=job.make_task(), progress=shown)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
    return [fmean(row["time/iteration"] for row in shown.rows[warm_up:]), peak]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--job", choices=JOBS, default="target_sum")
    parser.add_argument("--methods", choices=METHODS, nargs="+", default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=0, help="0 takes 10, or 4 of SmolLM2")
    args = parser.parse_args()
    job = JOBS[args.job]
    counted = args.iterations or (10 if job is TARGET_SUM else 4)
    print(f"{job}; {args.warm_up} iterations to warm up, {counted} counted\n")
    found: dict[str, list[list[float]]] = {name: [] for name in args.methods}
    for seed in range(args.rounds):
        for name in args.methods:
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                task = process.submit(run, job, name, seed, args.warm_up, counted)
                found[name].append(task.result())
            print(f"  {name}: {found[name][-1][0]:.3g} s", file=sys.stderr)
    print("| method | seconds of an iteration | of the first method's | peak memory, GB |")
    print("| --- | --- | --- | --- |")
    first = found[args.methods[0]]
    for name, each in found.items():
        seconds = ", ".join(f"{one[0]:.3g}" for one in each)
        ratios = ", ".join(f"{a[0] / b[0]:.2f}" for a, b in zip(each, first, strict=True))
        print(f"| {name} | {seconds} | {ratios} | {max(one[1] for one in each):.2f} |")


if __name__ == "__main__":
    main()
