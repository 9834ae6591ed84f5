"""What each paper's estimator says of one update, beside the truth: docs/dynamics_record.md.

The demo's settings: the tiny policy on `target_sum`, 32 prompts x 8 rollouts at temperature 1,
GRPO, AdamW (.9, .95). One update per iteration on the whole batch, so that the truth (entropy after
minus before, at the same states) is what a single AdamW step did. Two policies: the base as it is
shipped, and half trained (75 iterations of the demo's GRPO). Two steps: the first (AdamW at step 0,
its second moment this gradient's) and the tenth (warm). Two learning rates, three seeds.

    where   against the true change of each trained token's entropy
    which   against the token's influence: what its gradient does to the batch's mean entropy

Then the cost: `es.dynamics.influence` on a batch of 256 rollouts against the forward and backward
pass of training on it, interleaved, one thread.

Example:
    OMP_NUM_THREADS=1 python benchmarks/dynamics.py --output dynamics
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

import entrostat as es
from entrostat.config import from_dict
from entrostat.data.prompts import draw, encode
from entrostat.dynamics import adamw_preconditioner, forward_mode, functional, influence
from entrostat.models.loading import load_policy
from entrostat.models.rollout import sample

WARM = 10
RATES = (3e-4, 3e-5)


def half_trained(seed: int, output: Path, iterations: int) -> Path:
    """The demo's GRPO, stopped half way; its final model."""
    run = output / f"half-s{seed}"
    if not (run / "final").exists():
        es.train(from_dict({
            "method": "grpo_token", "iterations": iterations, "seed": seed, "output": str(run),
            "eval": {"prompts": 0}, "save": {"rollouts_every": 0, "checkpoint_every": 1000},
        }))  # fmt: skip
    return run / "final"


def analysed(model: str, rate: float, seed: int, run: Path) -> list[dict[str, Any]]:
    """Analyses of the first and the tenth single-update iteration."""
    if not (run / "final").exists():
        es.train(from_dict({
            "model": model, "method": "grpo_token", "iterations": WARM, "seed": 100 + seed,
            "output": str(run), "analyze": {"every": WARM}, "eval": {"prompts": 0},
            "optim": {"lr": rate, "epochs": 1, "minibatches": 1, "micro_batch": 256},
            "save": {"rollouts_every": 0, "checkpoint_every": 1000},
        }))  # fmt: skip
    return [json.loads(line) for line in (run / "analysis.jsonl").read_text().splitlines()]


def span(values: list[float], digits: int = 2) -> str:
    """Mean, and smallest to largest over the seeds."""
    return f"{mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def table(lines: list[dict[str, Any]]) -> None:
    """One block: all seeds of one policy, step and rate."""
    print("| estimator | where: Pearson | where: Spearman | where: scaled MSE | which: Pearson |"
          " which: Spearman | which: same sign |")  # fmt: skip
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in lines[0]["estimators"]:
        cells = []
        for kind, keys in (("where", ("pcc", "srcc", "scaled_mse")),
                           ("which", ("pcc", "srcc", "sign"))):  # fmt: skip
            for key in keys:
                values = [line["estimators"][name].get(kind, {}).get(key) for line in lines]
                cells.append("" if None in values else span(values))
        print(f"| {name} | {' | '.join(cells)} |")
    for key, of in (
        ("change/first_order", "change/mean"),
        ("change/simpson", "change/mean"),
        ("influence/sum", "change/mean"),
        ("influence/sum", "influence/predicted"),
    ):
        ratios = [line[key] / line[of] for line in lines]
        digits = 6 if of == "influence/predicted" else 3
        print(f"{key} / {of}: " + ", ".join(f"{r:.{digits}f}" for r in ratios))
    for key in ("change/mean", "influence/top_1", "influence/top_10"):
        print(f"{key}: {span([line[key] for line in lines], 4)}")
    print()


def summary(blocks: dict[str, list[dict[str, Any]]]) -> None:
    """Means over seeds of every block, side by side."""
    names = list(next(iter(blocks.values()))[0]["estimators"])
    for kind, key in (("where", "pcc"), ("where", "srcc"), ("which", "pcc"), ("which", "srcc"),
                      ("which", "sign")):  # fmt: skip
        print(f"### {kind}: {key}\n\n| | {' | '.join(blocks)} |")
        print("| --- |" + " --- |" * len(blocks))
        for name in names:
            cells = [
                [line["estimators"][name].get(kind, {}).get(key) for line in lines]
                for lines in blocks.values()
            ]
            if None not in cells[0]:
                print(f"| {name} | {' | '.join(f'{mean(c):.2f}' for c in cells)} |")
        print()


def tables(output: Path, seeds: int, iterations: int) -> None:
    """Train, analyse and print every block."""
    blocks: dict[str, list[dict[str, Any]]] = {}
    for policy in ("base", "half trained"):
        for rate in RATES:
            runs = []
            for seed in range(seeds):
                half = policy == "half trained"
                model = str(half_trained(seed, output, iterations)) if half else "tiny"
                name = f"{policy.split()[0]}-{rate:g}-s{seed}"
                runs.append(analysed(model, rate, seed, output / name))
            for step, which in ((1, 0), (WARM, -1)):
                print(f"### {policy}, learning rate {rate:g}, step {step}\n")
                lines = [found[which] for found in runs]
                blocks[f"{policy}, {rate:g}, step {step}"] = lines
                table(lines)
    summary(blocks)


def cost(rounds: int) -> None:
    """Influence of 256 rollouts against training's forward and backward pass on them."""
    torch.set_num_threads(1)
    config = from_dict({"optim": {"micro_batch": 256}})
    policy = load_policy(config)
    task = es.make_task("target_sum", seed=0)
    examples = draw(task, config, 1)
    sequences = sample(
        policy.model, encode(policy, config, examples, 13), rollouts=8, max_new_tokens=13,
        eos=policy.eos, pad=policy.pad, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    params = policy.trained()
    A = torch.randn(len(sequences.tokens), generator=torch.Generator().manual_seed(1))

    def train() -> None:
        policy.model.zero_grad(set_to_none=True)
        stats = policy.token_stats(sequences, 1.0)
        (A[:, None] * stats.logp).sum().backward()

    train()
    optimizer = torch.optim.AdamW(params.values(), lr=3e-4)
    optimizer.step()
    P = adamw_preconditioner(optimizer, params)

    def influences() -> None:
        stats = functional(policy.model, lambda: policy.token_stats(sequences, 1.0))
        with forward_mode(policy.model):
            influence(
                lambda p: stats(p).logp, lambda p: stats(p).entropy, params, A, sequences.mask, P
            )

    times: dict[str, list[float]] = {"train": [], "influence": []}
    both: tuple[tuple[str, Callable[[], None]], ...] = (("train", train), ("influence", influences))
    for _ in range(rounds):
        for name, work in both:
            began = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - began)
    ratios = [b / a for a, b in zip(*times.values(), strict=True)]
    print(
        f"influence / training forward + backward, {len(sequences.tokens)} rollouts, "
        f"{int(sequences.mask.sum())} tokens: median {median(ratios):.2f}, by minima "
        f"{min(times['influence']) / min(times['train']):.2f} "
        f"({min(times['train']):.3f} s per forward and backward pass)"
    )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("runs/dynamics"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--half", type=int, default=75, help="iterations of half a training")
    parser.add_argument("--rounds", type=int, default=15, help="of the timing")
    parser.add_argument("--only", choices=("tables", "cost"))
    args = parser.parse_args()
    if args.only != "cost":
        tables(args.output, args.seeds, args.half)
    if args.only != "tables":
        cost(args.rounds)


if __name__ == "__main__":
    main()
