"""What a plan over ranks costs each of them: memory, bytes moved, seconds; every method. CPU, gloo.

A minibatch of 10^6 tokens (ragged rollouts of up to 4096, float32, groups of 8) lies on 1 and on 8
ranks. Each method prepares and plans it:

    memory   the most that the process holds while it plans, terms included, over what its own
             statistics take (seven values per token); bound: three times these plus 1 MB
    moved    bytes that a rank sends, as a ring does: twice what is reduced, once what it has
             gathered or exchanged; bound of a plan: 1 MB
    seconds  the slowest rank's plan, median

and, by arithmetic, what is moved for 10^9 tokens on 1,024 ranks: reductions are of 2048 counts or a
few numbers however many tokens there are, so that a plan's figure stays; what `prepare` gathers
grows with the rollouts, once per rollout batch.

Ranks are processes on one machine: with fewer cores than ranks their seconds say little.

Examples:
    python benchmarks/ranks.py
    python benchmarks/ranks.py --tokens 200000 --ranks 4 --rounds 3
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import entrostat as es
from entrostat.core.distributed import Array, Communicator
from entrostat.core.process_ranks import ProcessGroup, shared_generator

T, GROUP = 4096, 8
MEASURED = ("logp", "old_logp", "mask", "advantages", "entropy", "old_entropy", "ref_logp")
# other paths, and several at once
SETTINGS: dict[str, Any] = {
    "steer, linear": {"name": "steer", "mapping": "linear"},
    "steer, binary": {"name": "steer", "mapping": "binary"},
    "gtpo, steer, kl_cov": ["clip_higher", "gtpo", "steer", "kl_cov"],
}


class Counted(ProcessGroup):
    """A process group that adds up what this rank sends."""

    sent = 0

    def gather(self, rows: Array) -> Array:
        """The same."""
        found = super().gather(rows)
        self.sent += found.nbytes
        return found

    def exchange(self, parts: Sequence[Tensor], sizes: Sequence[int]) -> Sequence[Tensor]:
        """The same."""
        away = (part for rank, part in enumerate(parts) if rank != self.rank)
        self.sent += sum(part.nbytes for part in away)
        return super().exchange(parts, sizes)

    def _reduced(self, numbers: Array, how: Any) -> Array:
        self.sent += 2 * numbers.nbytes
        return super()._reduced(numbers, how)


def make_batch(tokens: int, rank: int, world: int, ranks: Communicator) -> es.TokenBatch:
    """This rank's rollouts of the minibatch; groups lie on neighbouring ranks."""
    rows = round(tokens / (0.75 * T) / GROUP) * GROUP
    mine = np.array_split(np.arange(rows), world)[rank]
    g = torch.Generator().manual_seed(rank)
    B = len(mine)
    mask = torch.arange(T) < torch.randint(T // 2, T + 1, (B, 1), generator=g)
    old = -torch.rand(B, T, generator=g).pow(6) * 6
    entropy = (-old * torch.rand(B, T, generator=g) * 2).clamp(min=1e-4)
    return es.TokenBatch(
        (old + 0.05 * torch.randn(B, T, generator=g)).clamp(max=0), old, mask,
        rewards=torch.randint(0, 2, (B,), generator=g).float(),
        group=torch.from_numpy(mine // GROUP), entropy=entropy, old_entropy=entropy.clone(),
        ref_logp=old.clone(), process_rewards=old, rollout=torch.from_numpy(mine), ranks=ranks,
        influence=1e-3 * torch.randn(B, T, generator=g),
        tempered=torch.from_numpy(mine % GROUP == GROUP - 1),
    )  # fmt: skip


def resident(peak: bool) -> int:
    """Bytes that this process holds, or held at most since the last `forget_peak`."""
    name = "VmHWM:" if peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def forget_peak() -> int:
    """Bytes held now, all that is free given back; `resident(peak=True)` counts from here."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return resident(peak=False)


def measure(rank: int, world: int, tokens: int, rounds: int, folder: Path) -> None:
    """One rank: every method, its figures as JSON."""
    torch.set_num_threads(1)
    ranks: Communicator = Communicator()
    if world > 1:
        meeting = f"file://{folder / 'rendezvous'}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
        ranks = Counted()
    batch, found = make_batch(tokens, rank, world, ranks), {}
    for name, spec in ({name: name for name in es.methods()} | SETTINGS).items():
        objective = es.make_objective(spec, max_length=T)
        objective.observe(entropy=0.3, nll=0.3, progress=0.5)
        before = getattr(ranks, "sent", 0)
        ready = objective.prepare(batch)
        prepared = getattr(ranks, "sent", 0) - before
        own = sum(getattr(ready, field).nbytes for field in MEASURED)
        seconds, extra, moved = [], 0, 0
        for i in range(rounds):
            sent = getattr(ranks, "sent", 0)
            held = forget_peak() if i == 0 else 0
            if world > 1:
                dist.barrier()
            began = time.perf_counter()
            terms = objective.plan(ready, shared_generator(0, "select", i))
            seconds.append(time.perf_counter() - began)
            if i == 0:
                extra, moved = resident(peak=True) - held, getattr(ranks, "sent", 0) - sent
            del terms
        found[name] = {
            "own": own, "extra": extra, "moved": moved, "prepare": prepared,
            "seconds": statistics.median(seconds),
        }  # fmt: skip
    (folder / f"{rank}.json").write_text(json.dumps(found))
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


def run(world: int, tokens: int, rounds: int) -> dict[str, dict[str, float]]:
    """The worst rank's figures of each method."""
    with tempfile.TemporaryDirectory() as place:
        folder, fork = Path(place), get_context("fork")
        each = [
            fork.Process(target=measure, args=(rank, world, tokens, rounds, folder))
            for rank in range(world)
        ]
        for process in each:
            process.start()
        for process in each:
            process.join()
        if any(process.exitcode for process in each):
            raise RuntimeError(f"a rank of {world} has failed; it says why above")
        found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
    return {
        name: {key: max(rank[name][key] for rank in found) for key in found[0][name]}
        for name in found[0]
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    alone = run(1, args.tokens, args.rounds)
    shared = run(args.ranks, args.tokens, args.rounds)
    print(f"{args.tokens} tokens; torch {torch.__version__}, numpy {np.__version__}")
    head = f"{'':28}{'memory/own':>22}{'moved KB':>20}{'plan s':>18}"
    print(f"{head}\n{'':28}{'1':>11}{args.ranks:>11}{'plan':>10}{'prepare':>10}{'1':>9}"
          f"{args.ranks:>9}")  # fmt: skip
    for name in alone:
        one, many = alone[name], shared[name]
        print(
            f"{name:28}{one['extra'] / one['own']:11.2f}{many['extra'] / many['own']:11.2f}"
            f"{many['moved'] / 1e3:10.1f}{many['prepare'] / 1e3:10.1f}{one['seconds']:9.4f}"
            f"{many['seconds']:9.4f}"
        )
    over = [
        f"{name} on {world}"
        for world, table in ((1, alone), (args.ranks, shared))
        for name, x in table.items()
        if x["extra"] > 3 * x["own"] + 1e6 or x["moved"] > 1e6
    ]
    print(f"beyond the bounds: {', '.join(over) or 'none'}")
    most = max(shared.values(), key=lambda x: x["moved"])["moved"]
    rollouts = 10**9 / 32768
    print(
        f"10^9 tokens on 1,024 ranks, rollouts of 32,768: a plan moves at most {most / 1e3:.0f} KB "
        "per rank as here; gathered in one place, 28 bytes per token were 28 GB. Advantages gather "
        f"40 bytes per rollout: {40 * rollouts / 1e6:.1f} MB, once per rollout batch"
    )


if __name__ == "__main__":
    main()
