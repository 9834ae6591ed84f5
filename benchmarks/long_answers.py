"""OPEFO on long answers whose length decides nothing: trainings beside on-policy ones. CPU.

The tiny policy answers `target_sum` in about nine tokens, which together decide the reward. OPEFO's
lam falls as answers get longer by tokens that decide nothing (`balance_step.py` measures it of one
batch). Here the policy is trained on such answers. A rollout is `k` answers in a row; its reward is
that of the first. The objective sees one row of k times the tokens. Nothing else differs from a run
of the lab, and k = 1 is one, to the last bit.

The other k - 1 answers are to the same prompt, as all tokens of a long answer are. Answers to other
prompts would also show the policy k times as many prompts a batch.

Under `token_mean` the tokens that decide are 1/k of the loss; the others add noise to its gradient.
That costs score with any method, so compare OPEFO with on-policy training at the same k. At the
rate of `recipes/study/balance.toml`, 4.24e-4, on-policy training does not learn at k = 4 and 16, so
the default is a lower one; the other settings are those of that recipe.

A run's file has a line an iteration, before its update:

    entropy, deciding   nats per token: over all tokens, and over those of the first answers
    reward              mean of the first answers
    lam                 that balances the closed-form flow; OPEFO's weights are 1 + lam and 1 - lam
    length              tokens of a rollout

and a last line with avg@16, pass@16 and the different right answers on prompts of `test`, one
answer a sample as ever. Finished runs of the same size are not run again; one that was stopped
begins anew. The tables have means and ranges over seeds; "end" is the last ten iterations.

Examples:
    python benchmarks/long_answers.py
    python benchmarks/long_answers.py --rate 4.24e-4 --prompts 16 --output runs/long_answers_fast
    python benchmarks/long_answers.py --k 4 --methods OPEFO --iterations 20 --seeds 1
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from balance_step import TRAINED
from entrostat.config import TrainConfig, from_dict
from entrostat.core.batch import TokenBatch, masked_mean
from entrostat.core.rollouts import describe
from entrostat.core.stats import TokenStats
from entrostat.data.prompts import draw
from entrostat.evaluation.in_training import evaluate
from entrostat.logs.lines import JsonLines
from entrostat.models.policy import Policy
from entrostat.models.rollout import Sequences
from entrostat.runs.progress import Progress
from entrostat.trainers.lab.experience import Selection, generate_for, measure
from entrostat.trainers.lab.state import State, build
from entrostat.trainers.lab.updates import update_policy

LATE = 10  # iterations that are the end
SCORES = {"avg@16": "avg@k", "pass@16": "pass@k", "different": "distinct"}


@dataclass
class JoinedSequences(Sequences):
    """B * k answers, indexed by the B rows that k of them in a row make."""

    k: int = 1

    def __getitem__(self, rows: Tensor) -> Sequences:
        return super().__getitem__((rows[:, None] * self.k + torch.arange(self.k)).flatten())


@dataclass
class JoinedPolicy(Policy):
    """The policy, whose statistics of B * k answers [B * k, T] come as rows [B, k * T]."""

    k: int = 1

    def token_stats(
        self, sequences: Sequences, temperature: float, moments: bool = False
    ) -> TokenStats:
        """As `Policy.token_stats`, in rows."""
        found = super().token_stats(sequences, temperature, moments)
        return TokenStats(joined(found.logp, self.k), joined(found.entropy, self.k))


def joined(values: Tensor, k: int) -> Tensor:
    """[B, k * T]: k rows of [B * k, T] one after another."""
    return values.reshape(len(values) // k, -1)


def joined_batch(batch: TokenBatch, k: int) -> TokenBatch:
    """[B, k * T]: rollouts of k answers each; the first decides the reward.

    Args:
        batch: [B * k, T] the answers, measured; those of a rollout side by side.
        k: answers in a row.
    """
    assert batch.rewards is not None
    assert batch.group is not None
    assert batch.old_entropy is not None
    logp, entropy = joined(batch.old_logp, k), joined(batch.old_entropy, k)
    return TokenBatch(
        logp, logp, joined(batch.mask, k), rewards=batch.rewards[::k], group=batch.group[::k],
        entropy=entropy, old_entropy=entropy, rollout=torch.arange(len(logp)),
    )  # fmt: skip


def settings(args: argparse.Namespace, method: str, seed: int) -> TrainConfig:
    """Those of the same run in `recipes/study/balance.toml`."""
    return from_dict({
        "model": "tiny", "task": "target_sum", "method": TRAINED[method], "seed": seed,
        "iterations": args.iterations,
        "sampling": {"prompts": args.prompts, "rollouts": args.rollouts},
        "optim": {"aggregation": "token_mean", "epochs": 1, "minibatches": 1, "lr": args.rate},
        "eval": [{"split": "test", "prompts": args.problems, "samples": 16}],
    }).validate()  # fmt: skip


def train_once(args: argparse.Namespace, k: int, method: str, seed: int, log: JsonLines) -> None:
    """A training, written into the log."""
    started = time.perf_counter()
    state = build(settings(args, method, seed), None, lambda *said: None)
    # what updates the policy counts micro-batches in rows
    size = max(1, state.config.optim.micro_batch // k)
    long = replace(
        state,
        config=replace(state.config, optim=replace(state.config.optim, micro_batch=size)),
        policy=JoinedPolicy(**vars(state.policy), k=k),
    )
    with state.scorer as score, state.held_out:
        for iteration in range(1, args.iterations + 1):
            sampled = generate_for(
                state, draw(state.task, state.config, iteration), iteration, "sample",
                lambda tokens: None, rollouts=args.rollouts * k, exact=False,
            )  # fmt: skip
            answers = measure(state, sampled, sampled.scored(score))
            figures = iterate(
                long, answers, JoinedSequences(**vars(sampled.sequences), k=k), iteration
            )
            log.append([{"iteration": iteration, **figures}])
        (row,) = evaluate(state.policy, state.held_out, args.iterations, Progress())
    scores = {name: row[key] for name, key in SCORES.items()}
    log.append([size_of(args) | scores | {"seconds": time.perf_counter() - started}])


def iterate(
    long: State, answers: TokenBatch, sequences: JoinedSequences, iteration: int
) -> dict[str, Any]:
    """Update the policy on the answers [B * k, T] in rows; figures of before that."""
    k = sequences.k
    batch = joined_batch(answers, k)
    figures = describe(batch)
    graded = long.objective.rollouts(batch, figures)
    kept, chosen = long.objective.drop_zero_advantage(graded)
    selection = Selection(graded, kept, chosen, sequences[kept], {})
    made = update_policy(long, selection, None, iteration)
    first = answers[slice(None, None, k)]
    assert first.old_entropy is not None
    return {
        "entropy": figures["entropy/exact"],
        "deciding": float(masked_mean(first.old_entropy, first.mask)),
        "reward": figures["reward/mean"],
        "lam": made.get("flow/balance"),  # absent where no group has a signal
        "length": figures["rollout/length_mean"],
    }


def size_of(args: argparse.Namespace) -> dict[str, float]:
    """What makes finished runs of one name differ."""
    names = ("iterations", "prompts", "rollouts", "problems", "rate")
    return {name: getattr(args, name) for name in names}


def finished(args: argparse.Namespace, log: JsonLines) -> bool:
    """Whether a log is that of a whole run of this size."""
    rows = log.read()
    return bool(rows) and "avg@16" in rows[-1] and size_of(args).items() <= rows[-1].items()


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """A finished run's row of the table."""
    *course, last = rows

    def end(key: str) -> float:
        found = [row[key] for row in course[-LATE:] if row[key] is not None]
        return mean(found) if found else 0.0

    lams = [row["lam"] for row in course if row["lam"] is not None]
    return {
        "tokens": course[0]["length"],
        "tokens, end": end("length"),
        "lam": lams[0] if lams else 0.0,
        "lam, all": mean(lams) if lams else 0.0,
        "lam, end": end("lam"),
        "entropy": course[0]["entropy"],
        "entropy, end": end("entropy"),
        "reward": course[0]["reward"],
        "reward, end": end("reward"),
        **{name: last[name] for name in (*SCORES, "seconds")},
    }


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("runs/long_answers"))
    parser.add_argument("--k", type=int, nargs="+", default=[1, 4, 16], help="answers in a row")
    parser.add_argument("--methods", nargs="+", choices=[*TRAINED], default=[*TRAINED])
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--prompts", type=int, default=32, help="of an iteration")
    parser.add_argument("--rollouts", type=int, default=8, help="of each of its prompts")
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate")
    parser.add_argument("--problems", type=int, default=64, help="of `test`, at the end")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    found: dict[tuple[int, str], list[dict[str, float]]] = {}
    for seed in range(args.seeds):
        for k in args.k:
            for method in args.methods:
                log = JsonLines(args.output / f"{method}-k{k}-{seed}.jsonl".lower())
                if not finished(args, log):
                    log.path.unlink(missing_ok=True)
                    train_once(args, k, method, seed, log)
                found.setdefault((k, method), []).append(figures_of(log.read()))
                said = ", ".join(f"{n} {x:.3f}" for n, x in found[k, method][-1].items())
                print(f"seed {seed}, k = {k}, {method}: {said}", flush=True)
    for (k, method), runs in found.items():
        print(f"\nk = {k}, {method} (mean and range over {len(runs)} seeds)")
        for key in runs[0]:
            values = [run[key] for run in runs]
            print(f"  {key:14s} {mean(values):8.3f}  ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
