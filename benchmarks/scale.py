"""What an update of an objective costs beside the trainer's own, from 8 to 1,024 GPUs.

Three kinds of figures, which no column mixes:

    published   the constants below, with their sources
    arithmetic  from a model's shape and those constants: `update`, `all_reduce`
    measured    here, on a CPU: `planned` has one rank plan its own share of the minibatch; the
                others' answers are made up from it, as if each held the same tokens, so that all
                but waiting for the network is as on a cluster. `prepared`: the driver of a veRL
                run, once a rollout batch

The tables of docs/scale.md. Examples:
    python benchmarks/scale.py
    python benchmarks/scale.py --only arithmetic --rollouts 512 --length 4096
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch

import entrostat as es
from entrostat.core.distributed import Array, Communicator
from entrostat.trainers.verl.driver import prepare
from ranks import forget_peak, resident

GPUS, NODE = (8, 64, 256, 1024), 8
MICRO = 16384  # tokens of a micro-batch on a GPU: a choice (veRL's ppo_max_token_len_per_gpu)
SETTINGS: dict[str, Any] = {
    "dapo": "dapo", "opefo": "opefo", "kl_cov": "kl_cov",
    "steer, binary": {"name": "steer", "mapping": "binary"}, "clip_cov": "clip_cov",
    "quadrant": "quadrant", "steer, kl_cov": ["clip_higher", "steer", "kl_cov"],
}  # fmt: skip

# ---------------------------------------------------------------------------- published

PEAK = 989e12  # operations a second: H100 SXM, bf16 without sparsity (NVIDIA's data sheet)
SHARE = 0.40  # of that: Llama 3 405B had 38 to 43% (arXiv 2407.21783, Table 4)
# bytes a second of a GPU, in a node of H800 and between nodes: DeepEP, docs/legacy.md
NVLINK, NETWORK = 153e9, 43e9
# seconds of an all-reduce by tree, protocol LL: NCCL, src/graph/tuning.cc
BASE, STEP_IN_NODE, STEP_BETWEEN = 6.8e-6, 0.6e-6, 5.0e-6


@dataclass(frozen=True)
class Model:
    """A dense decoder, by its `config.json`; the query heads together are as wide as it is."""

    name: str
    parameters: float
    layers: int
    width: int
    vocabulary: int

    def forward(self, length: int) -> float:
        """Operations of a token's forward pass, the mean over a causal sequence of `length`."""
        products = self.parameters - self.vocabulary * self.width  # embedding is a look-up
        return 2 * products + 2 * length * self.width * self.layers


MODELS = (
    Model("Qwen2.5-7B", 7.616e9, 28, 3584, 152064),
    Model("Qwen2.5-32B", 32.76e9, 64, 5120, 152064),
    Model("Llama-3.3-70B", 70.55e9, 80, 8192, 128256),
)

# ---------------------------------------------------------------------------- arithmetic


def update(model: Model, gpus: int, rollouts: int, length: int) -> tuple[float, float, float]:
    """The trainer's own optimizer step: FSDP2, activations recomputed, network beside products.

    Returns:
        seconds; bytes that a rank receives; bytes of a rank's float32 parameters, gradients and
        AdamW's two moments. A quarter of the first two is one forward pass: a backward pass is two
        of them and recomputes one, and gathers the bf16 parameters as a forward pass does; its
        float32 gradients are as many bytes as both.
    """
    tokens = rollouts * length / gpus
    gathered = 2 * model.parameters * math.ceil(tokens / MICRO)
    products = tokens * model.forward(length) / (PEAK * SHARE)
    forward = max(products, gathered / (NVLINK if gpus <= NODE else NETWORK))
    return 4 * forward, 4 * gathered, 16 * model.parameters / gpus


def all_reduce(calls: float, sent: float, gpus: int) -> float:
    """Seconds of `calls` all-reduces in which a rank sends so many bytes in all."""
    between = math.log2(math.ceil(gpus / NODE)) * STEP_BETWEEN
    return calls * (BASE + 2 * ((NODE - 1) * STEP_IN_NODE + between)) + sent / NETWORK


# ---------------------------------------------------------------------------- measured


class Mirror(Communicator):
    """One of `world` ranks that all hold the same tokens: counts its calls and bytes sent."""

    def __init__(self, world: int) -> None:
        self.world, self.calls, self.sent = world, 0, 0

    def max(self, numbers: Array) -> Array:
        """The maxima over all ranks: this one's."""
        self.calls, self.sent = self.calls + 1, self.sent + 2 * numbers.nbytes
        return numbers

    def sum(self, numbers: Array) -> Array:
        """The sums over all ranks: `world` times this one's."""
        return self.world * self.max(numbers)


def share(rollouts: int, length: int, ranks: Communicator) -> es.TokenBatch:
    """A rank's part of the minibatch, all its rollouts of full length; advantages are given."""
    g = torch.Generator().manual_seed(0)
    old = -torch.rand(rollouts, length, generator=g).pow(6) * 6
    entropy = (-old * torch.rand(rollouts, length, generator=g) * 2).clamp(min=1e-4)
    return es.TokenBatch(
        (old + 0.05 * torch.randn(rollouts, length, generator=g)).clamp(max=0), old,
        torch.ones(rollouts, length, dtype=torch.bool), torch.randn(rollouts, length, generator=g),
        entropy=entropy, old_entropy=entropy, rollout=torch.arange(rollouts), ranks=ranks,
    )  # fmt: skip


def planned(spec: Any, world: int, rollouts: int, length: int, rounds: int = 3) -> dict[str, float]:
    """One of `world` ranks plans its `rollouts`: collectives, bytes sent and held, CPU seconds."""
    objective, before = es.make_objective(spec), forget_peak()
    batch = share(rollouts, length, Communicator())
    own, seconds, ranks = forget_peak() - before, [], Mirror(world)
    for i in range(rounds):
        ranks = Mirror(world)
        batch = batch.replace(ranks=ranks)
        began = time.process_time()
        objective.plan(batch, torch.Generator().manual_seed(i))
        seconds.append(time.process_time() - began)
    held, median = resident(peak=True) - before, statistics.median(seconds)
    return {"calls": ranks.calls, "sent": ranks.sent, "own": own, "held": held, "seconds": median}


def prepared(
    rollouts: int, length: int, ragged: bool, threads: int
) -> tuple[float, float, float, float]:
    """What veRL's driver does once a rollout batch.

    Args:
        rollouts: of the batch.
        length: places of a rollout.
        ragged: whether rollouts take a quarter of their places on average, not all of them.
        threads: that share the work.

    Returns:
        Seconds, CPU seconds, bytes held with the batch, tokens.
    """
    objective, before = es.make_objective("dapo"), forget_peak()
    whole = share(rollouts, length, Communicator())
    # x^3, x uniform: a few as long as can be, most of them short
    used = (torch.arange(1, rollouts + 1) / rollouts).pow(3) if ragged else torch.ones(rollouts)
    mask = torch.arange(length) < (used[torch.randperm(rollouts)] * length).long()[:, None]
    batch = es.TokenBatch(
        whole.logp, whole.old_logp, mask, entropy=whole.entropy, old_entropy=whole.old_entropy,
        rewards=torch.arange(rollouts) % 3.0, group=torch.arange(rollouts) // 8,
    )  # fmt: skip
    del whole
    real = torch.ones(rollouts, dtype=torch.bool)
    forget_peak()
    cpu, began = time.process_time(), time.perf_counter()
    prepare(objective, batch, real, 0.5, batch.logp, threads)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return seconds, cpu, resident(peak=True) - before, float(mask.sum())


def row(*cells: object) -> None:
    """A line of a table in Markdown."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("arithmetic", "measured"))
    parser.add_argument("--rollouts", type=int, default=512)
    parser.add_argument("--length", type=int, default=32768)
    args = parser.parse_args()
    rollouts, length = args.rollouts, args.length
    torch.set_num_threads(1)
    if args.only != "measured":
        row("model", "GPUs", "update s", "GB moved", "GB of state", "a forward pass s", "GB moved")
        for model, gpus in product(MODELS, GPUS):
            seconds, moved, state = update(model, gpus, rollouts, length)
            row(model.name, gpus, f"{seconds:.3g}", f"{moved / 1e9:,.0f}", f"{state / 1e9:.3g}",
                f"{seconds / 4:.3g}", f"{moved / 4e9:,.0f}")  # fmt: skip
    if args.only == "arithmetic":
        return
    print(f"\ntorch {torch.__version__}, numpy {np.__version__}, one thread\n")
    row("plan", "GPUs", "calls", "KB sent", "MB own", "MB held", "s", "network ms, arithmetic")
    for (name, spec), gpus in product(SETTINGS.items(), GPUS):
        world = min(gpus, rollouts)  # beyond that several GPUs share a rollout
        x = planned(spec, world, rollouts // world, length)
        row(name, gpus, x["calls"], f"{x['sent'] / 1e3:.1f}", f"{x['own'] / 1e6:.0f}",
            f"{x['held'] / 1e6:.0f}", f"{x['seconds']:.3f}",
            f"{1e3 * all_reduce(x['calls'], x['sent'], gpus):.1f}")  # fmt: skip
    print("\nveRL's driver, a rollout batch\n")
    row("places, M", "tokens, M", "threads", "s", "CPU s", "CPU s a million places", "MB held")
    prepared(8, length, False, 1)  # what a process does once
    for rows, ragged, threads in product((64, 256), (False, True), (1, 2, 4)):
        seconds, cpu, held, tokens = prepared(rows, length, ragged, threads)
        places = rows * length / 1e6
        row(f"{places:.1f}", f"{tokens / 1e6:.1f}", threads, f"{seconds:.2f}", f"{cpu:.2f}",
            f"{cpu / places:.3f}", f"{held / 1e6:.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
