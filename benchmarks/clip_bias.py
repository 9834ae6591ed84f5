"""What PPO's clip catches when log-probs are rounded to 16 bits, on the same batches. CPU.

REPO (arXiv 2603.11682, App. A.1, Fig. 5): FSDP2 casts the model's outputs to bfloat16, the
log-probs of the old and of the current policy alike, and with them the ratio; more tokens are
clipped above and fewer below, which lowers entropy. Here a policy is trained in the lab with an
exact ratio, and before every update but a batch's first (there the ratio is 1) the tokens of its
minibatch are clipped by the exact ratio and by the ratio of rounded log-probs: the same weights,
the same tokens, the same advantages.

Three tables: the shares clipped, a seed per row; which side's rounding does it; and the same by the
size of the old log-prob beside the bounds that the grid of bfloat16 puts in the place of the clip's
(docs/numerics.md says how). `--train` trains each seed without and with rounding and compares the
entropy at the end.

Examples:
    python benchmarks/clip_bias.py
    python benchmarks/clip_bias.py --seeds 2 --iterations 30 --epochs 4
    python benchmarks/clip_bias.py --train
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from entrostat import TokenBatch
from entrostat.config import Numerics, TrainConfig, from_dict
from entrostat.core.loss import importance_ratio
from entrostat.models.rounding import rounds, with_rounded_ratio
from entrostat.trainers.lab import train, updates

VARIANTS = {
    "exact": Numerics(),
    "bf16, both": Numerics("bf16", "bf16"),
    "bf16, current only": Numerics("bf16"),
    "bf16, old only": Numerics(None, "bf16"),
    "fp16, both": Numerics("fp16", "fp16"),
}
ROUNDED = "bf16, both"
EDGES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, math.inf)  # of |old log-prob|, nats
BITS = 7  # bfloat16 stores so many bits of the mantissa


class Counts:
    """Tokens clipped above and below by each variant, by the size of the old log-prob."""

    def __init__(self) -> None:
        self.edges = torch.tensor(EDGES)
        self.tokens = torch.zeros(len(EDGES) - 1)
        self.clipped = {name: torch.zeros(2, len(EDGES) - 1) for name in VARIANTS}
        self.changed = dict.fromkeys(VARIANTS, 0)

    def add(self, batch: TokenBatch, objective: Any, generator: torch.Generator) -> None:
        """The tokens of a minibatch whose `logp` and `entropy` are the current policy's."""
        terms = objective.plan(batch, generator)
        size = (torch.bucketize(batch.old_logp.abs(), self.edges, right=True) - 1)[batch.mask]
        self.tokens += torch.bincount(size, minlength=len(self.tokens))
        exact: torch.Tensor | None = None
        for name, numerics in VARIANTS.items():
            seen = with_rounded_ratio(batch, numerics) if rounds(numerics) else batch
            ratio = importance_ratio(seen, terms)
            if ratio is None:
                raise SystemExit("this method has no ratio, so nothing is clipped")
            above = (ratio > terms.ratio_max) & (terms.advantage > 0)
            below = (ratio < terms.ratio_min) & (terms.advantage < 0)
            sides = torch.stack([above, below])[:, batch.mask]  # [2, tokens]
            for row, side in zip(self.clipped[name], sides, strict=True):
                row += torch.bincount(size[side], minlength=len(self.tokens))
            exact = sides if exact is None else exact
            self.changed[name] += int((sides != exact).any(0).sum())

    def shares(self, name: str) -> tuple[float, float, float]:
        """Percent of all tokens: clipped above, clipped below, clipped otherwise than exactly."""
        above, below = (float(side.sum()) for side in self.clipped[name])
        n = float(self.tokens.sum()) / 100
        return above / n, below / n, self.changed[name] / n


def config_of(args: argparse.Namespace, seed: int, output: Path, half: str | None) -> TrainConfig:
    """A run of the lab; `half` rounds both log-probs."""
    numerics = {} if half is None else {"round_logp": half, "round_old_logp": half}
    optim: dict[str, Any] = {"epochs": args.epochs}
    if args.lr is not None:
        optim["lr"] = args.lr
    return from_dict(
        {
            "method": args.method, "task": args.task, "model": args.model, "seed": seed,
            "iterations": args.iterations, "output": str(output), "threads": args.threads,
            "optim": optim, "numerics": numerics, "eval": {"prompts": 0},
            "save": {"rollouts_every": 0, "checkpoint_every": args.iterations, "checkpoints": 0},
        }
    )  # fmt: skip


def watch(config: TrainConfig) -> Counts:
    """Train, counting before every update but the first of a batch."""
    counts, update = Counts(), updates.update

    def counting(state, batch, sequences, *rest: Any, made: int, **more: Any) -> Any:
        if made:
            temperature, size = config.sampling.temperature, config.optim.micro_batch
            now = state.policy.measure(sequences, temperature, size)
            current = batch.replace(logp=now.logp, entropy=now.entropy)
            counts.add(current, state.objective, torch.Generator().manual_seed(0))
        return update(state, batch, sequences, *rest, made=made, **more)

    with mock.patch.object(updates, "update", counting):
        train(config)
    return counts


def mean_bound(log_bound: float, size: float) -> float:
    """Where a grid of spacing u puts a bound of the log-ratio, on average over places on the grid.

    Both log-probs are multiples of u, `size` the lower end of their binade. A log-ratio passes the
    bound where its multiple does, so from K u on with K = floor(|bound| / u) + 1; a true log-ratio
    d rounds to K u or beyond with a probability that rises from 0 to 1 over u around (K - 1/2) u.
    """
    u = size * 2.0**-BITS
    return math.copysign((math.floor(abs(log_bound) / u) + 0.5) * u, log_bound)


def table(head: list[str], rows: list[list[str]]) -> None:
    """A Markdown table, numbers to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    rules = ["-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    for row in [head, rules, *rows]:
        cells = [
            x.ljust(w) if i == 0 else x.rjust(w)
            for i, (x, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("| " + " | ".join(cells) + " |")
    print()


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Clip shares with and without rounding, on the same batches."""
    runs = [config_of(args, seed, folder / f"watched{seed}", None) for seed in range(args.seeds)]
    found = [watch(config) for config in runs]
    n = sum(int(c.tokens.sum()) for c in found)
    print(f"{args.method}: {n} tokens of every update but a batch's first; shares in percent\n")
    by_seed(found)
    by_side(found)
    by_size(found)
    return {
        name: [dict(zip(("above", "below", "changed"), c.shares(name), strict=True)) for c in found]
        for name in VARIANTS
    }


def by_seed(found: list[Counts]) -> None:
    """Shares clipped, a seed per row, and the mean."""
    rows = []
    for seed, c in enumerate(found):
        row = [str(seed)]
        for one, two in zip(c.shares("exact")[:2], c.shares(ROUNDED)[:2], strict=True):
            row += [f"{one:.3f}", f"{two:.3f}", f"{100 * (two / one - 1):+.2f}%" if one else ""]
        rows.append([*row, f"{c.shares(ROUNDED)[2]:.3f}"])
    head = [
        f"{side}, {what}" for side in ("above", "below") for what in ("exact", "bf16", "change")
    ]
    table(["seed", *head, "otherwise"], rows)


def by_side(found: list[Counts]) -> None:
    """What is rounded: the change of the shares in percentage points, mean over seeds."""
    rows = []
    for name in VARIANTS:
        row = [name]
        for side in (0, 1):
            changes = [c.shares(name)[side] - c.shares("exact")[side] for c in found]
            up = sum(change > 0 for change in changes)
            row += [f"{statistics.mean(changes):+.4f}", f"{up} of {len(found)}"]
        rows.append([*row, f"{statistics.mean(c.shares(name)[2] for c in found):.4f}"])
    table(["rounded", "above", "seeds up", "below", "seeds up", "otherwise"], rows[1:])


def by_size(found: list[Counts]) -> None:
    """Tokens clipped by the size of the old log-prob, beside where the grid puts the bounds."""
    rows, tokens = [], torch.stack([c.tokens for c in found]).sum(0)
    for i, size in enumerate(EDGES[:-1]):
        row = [f"{size:g} to {EDGES[i + 1]:g}", f"{100 * float(tokens[i] / tokens.sum()):.2f}"]
        for side, bound in enumerate((1.28, 0.8)):
            moved = math.exp(mean_bound(math.log(bound), size)) if size else math.nan
            row.append(f"{moved:.4f}" if size else "")
            row += [
                f"{sum(float(c.clipped[name][side, i]) for c in found):.0f}"
                for name in ("exact", ROUNDED)
            ]
        rows.append(row)
    head = [x for bound in ("1.28", ".8") for x in (f"{bound} becomes", "exact", "bf16")]
    table(["old log-prob", "% of tokens", *head], rows)


def compare(args: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Mean entropy of the last tenth of runs trained without and with rounding."""
    ends: dict[str, list[float]] = {"exact": [], "bf16": []}
    for seed in range(args.seeds):
        for name, values in ends.items():
            half = None if name == "exact" else name
            run = train(config_of(args, seed, folder / f"{name}{seed}", half))
            lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            last = [json.loads(line) for line in lines[-max(1, len(lines) // 10) :]]
            values.append(statistics.mean(line["entropy/exact"] for line in last))
    print(f"Entropy over the last tenth of {args.iterations} iterations, nats")
    print()
    rows = [
        [str(seed), f"{a:.3f}", f"{b:.3f}", f"{b - a:+.3f}"]
        for seed, (a, b) in enumerate(zip(*ends.values(), strict=True))
    ]
    table(["seed", "exact", "bf16", "difference"], rows)
    return ends


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--method", default="dapo", help="one with the clip (.2, .28)")
    parser.add_argument("--task", default="target_sum")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--train", action="store_true", help="train with the rounding, too")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = compare if args.train else measure
        result = work(args, Path(folder))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
