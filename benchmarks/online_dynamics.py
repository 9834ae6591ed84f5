"""What the entropy dynamics of every update cost: their share of the demo's iteration in the lab.

The demo's job (recipes/demo.toml: the tiny policy on `target_sum`, 32 prompts x 8 rollouts, 2
epochs of 2 minibatches), one thread. The figures read what an update has and change nothing, so a
run with them and a run without do the same work in each iteration, bit for bit (asserted on the
final weights). A round is two such runs in one process: the first has the figures in its even
iterations, the second in its odd ones, so that each iteration is timed both ways, and a slow moment
of the machine falls on either. Two answers:

- timed: the time inside the functions, over that of the iterations that have them;
- paired: by how much an iteration with them is longer than the same one without; the median over
  iterations, which the machine's noise blurs far more.

Asked for: at most 2 %.

Examples:
    OMP_NUM_THREADS=1 python benchmarks/online_dynamics.py
    OMP_NUM_THREADS=1 python benchmarks/online_dynamics.py --method clip_cov --iterations 60
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from entrostat import config
from entrostat.dynamics import online
from entrostat.runs.progress import Progress
from entrostat.trainers.lab import train

NAMES = ("sums", "of_rollouts", "figures")


class Switch(Progress):
    """Turns the figures on and off between iterations, and times what they take.

    Args:
        parity: the iterations of this remainder by 2 have the figures.
    """

    def __init__(self, parity: int) -> None:
        self.parity = parity
        self.on = parity == 1  # iteration 1 comes first
        self.spent = dict.fromkeys(NAMES, 0.0)
        self.whole: dict[int, float] = {}
        self.inside: dict[int, float] = {}

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed; while it is off, one that finds nothing.

        The loss's own metrics go the same way: they need the number of tokens and `figures`, whose
        whole time counts as that of the dynamics.
        """

        def timed(*args: Any) -> Any:
            if not self.on:
                return self._without(name, function, args)
            began = time.perf_counter()
            found = function(*args)
            self.spent[name] += time.perf_counter() - began
            return found

        return timed

    def _without(self, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if name == "sums":
            tokens = args[0].policy_mask.sum().double()
            unknown = torch.full_like(tokens, math.nan)
            known = {f"{online.PART}{part}": unknown for part in online.PARTS}
            return known | {f"{online.PART}tokens": tokens}
        return function(*args) if name == "figures" else {}

    def trained(self, iteration: int, metrics: dict[str, Any]) -> None:
        """Note the iteration's time, and switch for the next."""
        assert ("touched/share" in metrics) == self.on or not metrics["optim/updates"]
        self.whole[iteration] = metrics["time/iteration"]
        self.inside[iteration] = sum(self.spent.values())
        self.spent = dict.fromkeys(NAMES, 0.0)
        self.on = (iteration + 1) % 2 == self.parity


def run(args: argparse.Namespace, parity: int) -> tuple[Switch, dict[str, torch.Tensor]]:
    """One run, and its final weights."""
    switch = Switch(parity)
    real = online.sums, online.of_rollouts, online.figures
    wrapped = [switch.wrap(name, f) for name, f in zip(NAMES, real, strict=True)]
    online.sums, online.of_rollouts, online.figures = wrapped
    try:
        with tempfile.TemporaryDirectory() as directory:
            settings = config.TrainConfig(
                method=[args.method], task={"name": "target_sum"}, iterations=args.iterations,
                output=f"{directory}/run", device="cpu", threads=1,
                eval=config.Evaluation(prompts=0),
                save=config.Save(checkpoint_every=args.iterations, rollouts_every=0),
            )  # fmt: skip
            path = train(settings, progress=switch)
            return switch, load_file(path / "final" / "model.safetensors")
    finally:
        online.sums, online.of_rollouts, online.figures = real


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", default="grpo")
    parser.add_argument("--iterations", type=int, default=40, help="of a run, two at least")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs")
    parser.add_argument("--warm-up", type=int, default=2, help="iterations that do not count")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.iterations < 2 or args.warm_up > args.iterations - 2:
        parser.error("--iterations must be at least 2, and 2 more than --warm-up")

    inside, whole, longer = 0.0, 0.0, []
    for _ in range(args.rounds):
        (even, first), (odd, second) = run(args, 0), run(args, 1)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)
        for iteration in range(args.warm_up + 1, args.iterations + 1):
            on, off = (even, odd) if iteration % 2 == 0 else (odd, even)
            inside += on.inside[iteration]
            whole += on.whole[iteration]
            longer.append(on.whole[iteration] / off.whole[iteration] - 1)
    n = len(longer)
    result = {
        "iterations": n,
        "seconds": whole / n,
        "timed": inside / whole,
        "paired": statistics.median(longer),
    }
    print(f"{args.method}, {n} iterations both ways, torch {torch.__version__}")
    print(f"an iteration with the figures: {result['seconds']:.3f} s, mean")
    print(f"timed:  {1e3 * inside / n:.2f} ms of it, {100 * result['timed']:.2f} %")
    quarters = statistics.quantiles(longer, n=4) if n > 1 else [longer[0]] * 3
    print(
        f"paired: {100 * result['paired']:+.2f} %, quartiles {100 * quarters[0]:+.2f} and "
        f"{100 * quarters[2]:+.2f}"
    )
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
