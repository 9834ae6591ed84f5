"""Where OPEFO's balance points the step, to first order: along reward and along entropy. CPU.

The gradient is linear in OPEFO's lam: tokens that its closed form says raise entropy weigh 1 + lam,
those that lower it 1 - lam. So one batch says what any lam would do: how fast the expected reward
and the mean entropy (both by gradients on a *second* batch, so that the noise of one does not count
as agreement) change along the step that on-policy training makes (lam 0), along OPEFO's, and at
which lam each of the two stands still. Cosines are of the plain gradients; "AdamW's first step" is
that of their signs, which is the step that AdamW makes from empty moments.

    reward      cosine of the step with the gradient of the expected reward (RLOO, summed tokens)
    entropy     its cosine with the gradient of the mean entropy a token, exact at these states
    left        the reward's derivative at the lam where entropy's is 0, of that at lam 0
    best        the same of the best step that leaves entropy alone: 1 - cos^2 of the two gradients

How far that holds: along the signs of either step, by shares of the learning rate, what becomes of
the expected reward (importance weights on the second batch) and of the entropy at its states. In
float32: of weights from 4 bits many lie exactly between two neighbours of bf16, and a step of any
length tips them all.

Policies: the base, and after `--iterations` of on-policy training and of OPEFO. Each gradient is of
`--prompts` x `--rollouts` answers; a seed draws its own.

Examples:
    python benchmarks/balance_step.py --output runs/balance_step
    python benchmarks/balance_step.py --model smollm2 --task words --rate 1e-5 --prompts 22
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

import entrostat as es
from entrostat.batch import TokenBatch
from entrostat.config import TrainConfig, from_dict
from entrostat.hosts.lab.experience import measure, sample_rollouts
from entrostat.hosts.lab.rollout import Sequences
from entrostat.hosts.lab.state import State, build

ON_POLICY, OPEFO = ["grpo", "reinforce"], "opefo"
REWARD = ["rloo", "reinforce"]
TEMPERATURE = 1.0
SHARES = (0.01, 0.03, 0.1, 0.3)  # of the learning rate


@dataclass(frozen=True)
class Half:
    """A batch; gradients, flat [P] float32, of losses to be minimised, and of the entropy."""

    batch: TokenBatch
    sequences: Sequences
    reward: Tensor
    on_policy: Tensor
    opefo: Tensor
    entropy: Tensor
    lam: float


def half_of(state: State, iteration: int, micro_batch: int) -> Half:
    """A batch of that iteration's prompts."""
    with state.scorer as score:
        sampled = sample_rollouts(state, iteration, lambda tokens: None)
        rewards = sampled.scored(score)
    batch, sequences = measure(state, sampled, rewards), sampled.sequences

    def gradient(method: str | list[str], aggregation: Any) -> tuple[Tensor, float]:
        objective = es.make_objective(method, aggregation=aggregation, updates=1)
        return of_loss(state, sequences, batch, objective, micro_batch)

    opefo, lam = gradient(OPEFO, "token_mean")
    return Half(
        batch, sequences, gradient(REWARD, "seq_mean_token_sum_norm")[0],
        gradient(ON_POLICY, "token_mean")[0], opefo, of_entropy(state, sequences, micro_batch), lam,
    )  # fmt: skip


def of_loss(
    state: State, sequences: Sequences, batch: TokenBatch, objective: es.Objective, size: int
) -> tuple[Tensor, float]:
    """A loss's gradient [P], and how far its weights reach beyond 1."""
    batch = objective.prepare(batch)
    terms = objective.plan(batch)
    state.policy.model.zero_grad(set_to_none=True)
    for rows in torch.arange(len(batch)).split(size):
        stats = state.policy.token_stats(sequences[rows], TEMPERATURE)
        slice_ = batch[rows].replace(logp=stats.logp)
        objective.loss(slice_, terms[rows]).loss.backward()
    weights = terms.weight[batch.mask & (terms.advantage != 0)]
    return flat(state), float(weights.max()) - 1


def of_entropy(state: State, sequences: Sequences, size: int) -> Tensor:
    """The gradient [P] of the mean entropy over these tokens."""
    tokens = sequences.mask.sum()
    state.policy.model.zero_grad(set_to_none=True)
    for rows in torch.arange(len(sequences.tokens)).split(size):
        part = sequences[rows]
        entropy = state.policy.token_stats(part, TEMPERATURE).entropy
        (torch.where(part.mask, entropy, 0).sum() / tokens).backward()
    return flat(state)


def flat(state: State) -> Tensor:
    """The gradients of the trained parameters as one vector."""
    parts = [p.grad for p in state.policy.trained().values()]
    return torch.cat([p.flatten().float() for p in parts if p is not None])


def compared(one: Half, other: Half) -> dict[str, float]:
    """The step of `one` batch beside the gradients of the `other`.

    Norms are those of the part that both batches share (the product of their gradients), without
    the noise of either.
    """

    def norm(of: str) -> float:
        return math.sqrt(max(float(getattr(one, of) @ getattr(other, of)), 0.0)) or math.nan

    def cosine(step: str, along: str) -> float:
        return float(getattr(one, step) @ getattr(other, along)) / (norm(step) * norm(along))

    def slope(step: str, along: str) -> float:
        return float(getattr(one, step) @ getattr(other, along))

    def signed(step: str) -> float:
        return float(getattr(one, step).sign() @ other.reward)

    lam = one.lam
    # derivatives at lam 0 and at OPEFO's, and the line through them; a step goes against the loss
    reward, reward_there = slope("on_policy", "reward"), slope("opefo", "reward")
    entropy, entropy_there = -slope("on_policy", "entropy"), -slope("opefo", "entropy")
    still = lam * entropy / (entropy - entropy_there)
    both = cosine("reward", "entropy") * cosine("entropy", "reward")
    return {
        "lam": lam,
        "reward, on-policy": cosine("on_policy", "reward"),
        "reward, OPEFO": cosine("opefo", "reward"),
        "entropy, on-policy": -cosine("on_policy", "entropy"),
        "entropy, OPEFO": -cosine("opefo", "entropy"),
        "lam, entropy still": still,
        "left": 1 + still / lam * (reward_there / reward - 1),
        "best": 1 - both,
        "lam, reward still": lam * reward / (reward - reward_there),
        "AdamW's first step, OPEFO of on-policy": signed("opefo") / signed("on_policy"),
    }


def along(
    state: State, one: Half, other: Half, lengths: list[float], micro_batch: int
) -> dict[str, float]:
    """Changes of the expected reward and of the mean entropy, by how far every parameter moves.

    Along the signs of `one` batch's gradients, from where the policy stands and with it there again
    in the end; by the rollouts of the `other`, weighted to the moved policy.
    """
    assert other.batch.rewards is not None
    params, mask = list(state.policy.trained().values()), other.sequences.mask
    start = [p.detach().clone() for p in params]
    sizes = [p.numel() for p in params]

    def move(step: Tensor) -> None:
        for p, old, part in zip(params, start, step.split(sizes), strict=True):
            p.data.copy_(old + part.view_as(p))

    centred = (other.batch.rewards - other.batch.rewards.mean()).double()
    logp, entropy = other.batch.old_logp.double(), other.batch.old_entropy
    assert entropy is not None
    found: dict[str, float] = {}
    for name in ("on_policy", "opefo"):
        step = -getattr(one, name).sign()
        for length in lengths:
            move(length * step)
            there = state.policy.measure(other.sequences, TEMPERATURE, micro_batch)
            weight = torch.where(mask, there.logp.double() - logp, 0).sum(1).exp()
            rise = torch.where(mask, there.entropy.double() - entropy, 0).sum() / mask.sum()
            found[f"{name} by {length:.1e}: reward"] = float(weight @ centred / weight.sum())
            found[f"{name} by {length:.1e}: entropy"] = float(rise)
    move(torch.zeros_like(one.reward))
    return found


def policies(args: argparse.Namespace) -> dict[str, str]:
    """The base and what training makes of it, by name; those that are there are not made again."""
    found = {"base": args.model}
    for name, method in (("on-policy", ON_POLICY), ("OPEFO", OPEFO)):
        for iterations in args.iterations:
            run = args.output / f"{args.model}-{args.task}-{name}-{iterations}".lower()
            if not (run / "final").exists():
                es.train(from_dict(settings(args, args.model) | {
                    "method": method, "iterations": iterations, "output": str(run),
                    "sampling": {"prompts": args.batch[0], "rollouts": args.batch[1]},
                    "optim": {
                        "aggregation": "token_mean", "epochs": 1, "minibatches": 1,
                        "lr": args.rate, "warmup": args.warmup,
                    },
                    "eval": {"prompts": 0}, "save": {"rollouts_every": 0, "checkpoints": 0},
                }))  # fmt: skip
            found[f"{name}, {iterations} iterations"] = str(run / "final")
    return found


def settings(args: argparse.Namespace, model: str) -> dict[str, object]:
    """What trainings and batches have in common."""
    return {"model": model, "task": args.task, "seed": 0, "precision": args.precision}


def of_policy(args: argparse.Namespace, model: str, seed: int) -> dict[str, float]:
    """Both ways round: either batch's step beside the other's gradients; means of the two."""
    config: TrainConfig = from_dict(settings(args, model) | {
        "seed": 1000 + seed, "method": "rloo",
        "sampling": {"prompts": args.prompts, "rollouts": args.rollouts},
        "optim": {"epochs": 1, "minibatches": 1},
    })  # fmt: skip
    state = build(config.validate(), None, lambda *said: None)
    one, two = (half_of(state, iteration, args.micro_batch) for iteration in (1, 2))
    lengths = [args.rate * share for share in SHARES]
    ways = [
        compared(*pair) | along(state, *pair, lengths, args.micro_batch)
        for pair in ((one, two), (two, one))
    ]
    return {name: mean(way[name] for way in ways) for name in ways[0]}


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("runs/balance_step"))
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--task", default="target_sum")
    parser.add_argument("--iterations", type=int, nargs="*", default=[15, 75])
    parser.add_argument("--batch", type=int, nargs=2, default=[32, 8], help="of the trainings")
    parser.add_argument("--rate", type=float, default=4.24e-4, help="learning rate of these")
    parser.add_argument("--warmup", type=int, default=0, help="updates of warm-up of these")
    parser.add_argument("--precision", default="fp32", help="as of `entrostat train`")
    parser.add_argument("--prompts", type=int, default=256, help="of a gradient")
    parser.add_argument("--rollouts", type=int, default=16, help="of each of its prompts")
    parser.add_argument("--micro-batch", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=4)
    args = parser.parse_args()
    for name, model in policies(args).items():
        found = [of_policy(args, model, seed) for seed in range(args.seeds)]
        print(f"{name} ({args.model}, {args.task}; mean and range over {args.seeds} seeds)")
        for key in found[0]:
            values = [each[key] for each in found]
            print(f"  {key:40s} {mean(values):+.4f}  ({min(values):+.4f} to {max(values):+.4f})")
        print(flush=True)


if __name__ == "__main__":
    main()
