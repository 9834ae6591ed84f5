"""Where OPEFO's balance points the step, to first order: along reward and along entropy. CPU.

The gradient is linear in OPEFO's lam: tokens that its closed form says raise entropy weigh 1 + lam,
those that lower it 1 - lam. So one batch says what any lam would do: how fast the expected reward
and the mean entropy (both by gradients on a *second* batch, so that the noise of one does not count
as agreement) change along the step that on-policy training makes (lam 0), along OPEFO's, and at
which lam each of the two stands still. All in float32.

    reward      cosine of the step with the gradient of the expected reward (RLOO, summed tokens)
    entropy     its cosine with the gradient of the mean entropy a token, exact at these states
    left        the reward's derivative at the lam where entropy's is 0, of that at lam 0
    best        the same of the best step that leaves entropy alone: 1 - cos^2 of the two gradients

How far that holds: along the signs of either gradient, which is the step that AdamW makes from
empty moments, by shares of the learning rate, what becomes of the expected reward (importance
weights on the second batch) and of the entropy at its states. "real step" is the root mean square
of what one more iteration of the training moves the parameters by, of those that it moves.

Beside OPEFO's rule, which takes the sampled token's term of Eq. 6, the letter of Eq. 6, whose mean
over the vocabulary has the sign of the advantage. And how lam depends on the share of an answer
that decides its reward: with rewards shuffled within groups, and with `--join` answers in a row,
whose reward is the first one's.

Policies: the base, and after `--iterations` of on-policy training and of OPEFO. Each gradient is of
`--prompts` x `--rollouts` answers; a seed draws its own.

Examples:
    python benchmarks/balance_step.py --warmup 10
    python benchmarks/balance_step.py --model smollm2 --task words --rate 1e-5 --prompts 22 \\
        --rollouts 8 --micro-batch 32 --seeds 2 --iterations
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

import entrostat as es
from entrostat.analysis.influence import loss_gradient
from entrostat.config import from_dict
from entrostat.core.batch import TokenBatch
from entrostat.method.opefo import balance, entropy_change
from entrostat.models.policy_evaluator import PolicyEvaluator
from entrostat.models.rollout import Sequences
from entrostat.trainers.lab.analysis import evaluator_of
from entrostat.trainers.lab.experience import measure, sample_rollouts
from entrostat.trainers.lab.state import State, build

TRAINED = {"on-policy": ["grpo", "reinforce"], "OPEFO": "opefo"}
LOSSES: dict[str, dict[str, Any]] = {
    "reward": {"method": ["rloo", "reinforce"], "aggregation": "seq_mean_token_sum_norm"},
    **{name: {"method": m, "aggregation": "token_mean"} for name, m in TRAINED.items()},
}
SHARES = (0.01, 0.03, 0.1, 0.3)  # of the learning rate


@dataclass(frozen=True)
class Half:
    """A batch and its gradients.

    Attributes:
        batch: rollouts [B, T] of the policy as it stands.
        sequences: the same as token ids.
        gradients: flat [P] float32: of each of `LOSSES`, and of the mean "entropy" a token.
        lam: what OPEFO's rule asks for.
        lams: other lam by name: by Eq. 6 to the letter, of shuffled rewards, of joined answers.
    """

    batch: TokenBatch
    sequences: Sequences
    gradients: dict[str, Tensor]
    lam: float
    lams: dict[str, float]


def half_of(state: State, iteration: int, joined: Sequence[int] = ()) -> Half:
    """A batch of that iteration's prompts."""
    with state.scorer as score:
        sampled = sample_rollouts(state, iteration, lambda tokens: None)
        batch = measure(state, sampled, sampled.scored(score))
    planned = {name: with_terms(batch, **loss) for name, loss in LOSSES.items()}
    of_logp = {name: loss_gradient(*each)[0] for name, each in planned.items()}
    _, prepared, terms = planned["OPEFO"]
    assert prepared.entropy is not None
    change = entropy_change(terms.advantage, prepared.logp, prepared.entropy)
    lam = lam_of(change, prepared.mask)
    sequences, meter = sampled.sequences, evaluator_of(state)
    letter = -terms.advantage * vocabulary_mean(meter, sequences)
    lams = {"lam, by Eq. 6": lam_of(letter, prepared.mask)}
    weight = 1 + lams["lam, by Eq. 6"] * letter.sign()
    of_logp["by Eq. 6"] = of_logp["on-policy"] * weight
    shuffled = shuffled_within(terms.advantage[:, 0], batch.group)[:, None]
    token = entropy_change(torch.ones_like(shuffled), prepared.logp, prepared.entropy)
    lams["lam, rewards shuffled"] = lam_of(shuffled * token, prepared.mask)
    for k in joined:
        lams[f"lam, {k} answers joined"] = lam_joined(
            terms.advantage[:, 0], token, prepared.mask, k
        )
    return Half(batch, sequences, gradients(meter, sequences, of_logp), lam, lams)


def lam_of(change: Tensor, mask: Tensor) -> float:
    """OPEFO's lam of the changes [B, T] at mask."""
    change = torch.where(mask, change, 0).double()
    return balance(float(change.clamp(min=0).sum()), float((-change).clamp(min=0).sum()))


@torch.no_grad()
def vocabulary_mean(meter: PolicyEvaluator, sequences: Sequences) -> Tensor:
    """[B, T]: E over the vocabulary of (1 - p)^2 (log p + H), of Eq. 6 without its advantage."""
    found = torch.zeros(sequences.mask.shape)
    for rows in meter.pieces(sequences):
        some = sequences[rows]
        logp = (meter.policy.padded(some).float() / meter.temperature).log_softmax(-1)  # [n, V]
        p = logp.exp()
        H = -(p * logp).sum(-1, keepdim=True)
        inside = torch.zeros(some.mask.shape)
        inside[some.mask] = (p * (1 - p).square() * (logp + H)).sum(-1)
        found[rows] = inside
    return found


def shuffled_within(values: Tensor, group: Tensor | None) -> Tensor:
    """The values [B] dealt anew among the rollouts of each group."""
    assert group is not None
    found, chance = values.clone(), torch.Generator().manual_seed(0)
    for one in group.unique():
        rows = (group == one).nonzero()[:, 0]
        found[rows] = values[rows[torch.randperm(len(rows), generator=chance)]]
    return found


def lam_joined(advantage: Tensor, token: Tensor, mask: Tensor, k: int) -> float:
    """lam where k - 1 answers of others follow each answer, which alone decides the reward.

    Args:
        advantage: [B] of each answer.
        token: [B, T] change of entropy of a token for an advantage of 1.
        mask: [B, T].
        k: answers in all.
    """
    token, B = torch.where(mask, token, 0).double(), len(token)
    up, down = token.clamp(min=0).sum(1), (-token).clamp(min=0).sum(1)
    chance, more, less = torch.Generator().manual_seed(0), 0.0, 0.0
    for place in range(k):
        other = torch.arange(B) if place == 0 else torch.randperm(B, generator=chance)
        plus, minus = advantage.clamp(min=0).double(), (-advantage).clamp(min=0).double()
        more += float(plus @ up[other] + minus @ down[other])
        less += float(plus @ down[other] + minus @ up[other])
    return balance(more, less)


def with_terms(batch: TokenBatch, **loss: Any) -> tuple[es.Objective, TokenBatch, es.Terms]:
    """An objective, the batch prepared for it, and its terms."""
    objective = es.make_objective(**loss, updates=1)
    prepared = objective.prepare(batch)
    return objective, prepared, objective.plan(prepared)


def gradients(
    meter: PolicyEvaluator, sequences: Sequences, of_logp: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Of the losses whose derivatives by the log-probs [B, T] are given, and of the entropy."""
    params, tokens = list(meter.policy.trained().values()), sequences.mask.sum()
    found = {name: torch.zeros(sum(p.numel() for p in params)) for name in (*of_logp, "entropy")}
    for rows in meter.pieces(sequences):
        stats, mask = meter.stats(sequences[rows]), sequences.mask[rows]
        values = {name: (each[rows] * stats.logp).sum() for name, each in of_logp.items()}
        values["entropy"] = torch.where(mask, stats.entropy, 0).sum() / tokens
        for name, value in values.items():
            parts = torch.autograd.grad(
                value, params, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            found[name] += torch.cat([part.flatten() for part in parts])
    return found


def compared(one: Half, other: Half) -> dict[str, float]:
    """The step of `one` batch beside the gradients of the `other`.

    Norms are those of the part that both batches share (the product of their gradients), without
    the noise of either.
    """

    def slope(step: str, along: str) -> float:
        return float(one.gradients[step] @ other.gradients[along])

    def norm(of: str) -> float:
        return math.sqrt(max(slope(of, of), 0.0)) or math.nan

    def cosine(step: str, along: str) -> float:
        return slope(step, along) / (norm(step) * norm(along))

    lam = one.lam
    # derivatives at lam 0 and at OPEFO's, and the line through them; a step goes against the loss
    reward, reward_there = slope("on-policy", "reward"), slope("OPEFO", "reward")
    entropy, entropy_there = -slope("on-policy", "entropy"), -slope("OPEFO", "entropy")
    still = lam * entropy / (entropy - entropy_there)
    return {
        "lam": lam,
        "reward, on-policy": cosine("on-policy", "reward"),
        "reward, OPEFO": cosine("OPEFO", "reward"),
        "entropy, on-policy": -cosine("on-policy", "entropy"),
        "entropy, OPEFO": -cosine("OPEFO", "entropy"),
        "lam, entropy still": still,
        "left": 1 + still / lam * (reward_there / reward - 1),
        "best": 1 - cosine("reward", "entropy") * cosine("entropy", "reward"),
        "lam, reward still": lam * reward / (reward - reward_there),
        "reward's slope, OPEFO's of on-policy's": reward_there / reward,
    }


def by_the_letter(one: Half, other: Half) -> dict[str, float]:
    """The step of Eq. 6 to the letter, as shares of on-policy training's slopes; and all lam."""

    def share(along: str) -> float:
        letter, plain = (
            one.gradients[s] @ other.gradients[along] for s in ("by Eq. 6", "on-policy")
        )
        return float(letter / plain)

    return one.lams | {
        "reward's slope, by Eq. 6 of on-policy's": share("reward"),
        "entropy's slope, by Eq. 6 of on-policy's": share("entropy"),
    }


def along(state: State, one: Half, other: Half, lengths: list[float]) -> dict[str, float]:
    """Changes of the expected reward and of the mean entropy, by how far every parameter moves.

    Along the signs of `one` batch's gradients, from where the policy stands and with it there again
    in the end; by the rollouts of the `other`, weighted to the moved policy.
    """
    meter = evaluator_of(state)
    params, mask = list(meter.policy.trained().values()), other.sequences.mask
    start = [p.detach().clone() for p in params]
    sizes = [p.numel() for p in params]

    def move(step: Tensor) -> None:
        for p, old, part in zip(params, start, step.split(sizes), strict=True):
            p.data.copy_(old + part.view_as(p))

    assert other.batch.rewards is not None
    assert other.batch.old_entropy is not None
    centred = (other.batch.rewards - other.batch.rewards.mean()).double()
    logp, entropy = other.batch.old_logp.double(), other.batch.old_entropy.double()
    found: dict[str, float] = {}
    for name in TRAINED:
        step = -one.gradients[name].sign()
        for length in lengths:
            move(length * step)
            there = meter.measure(other.sequences)
            weight = torch.where(mask, there.logp - logp, 0).sum(1).exp()
            rise = torch.where(mask, there.entropy - entropy, 0).sum() / mask.sum()
            found[f"{name} by {length:.1e}: reward"] = float(weight @ centred / weight.sum())
            found[f"{name} by {length:.1e}: entropy"] = float(rise)
    move(torch.zeros(sum(sizes)))
    return found


def policies(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """The base and what training makes of it: a name and where it is."""
    yield f"base of {args.model}", args.model
    for name in TRAINED:
        for iterations in args.iterations:
            here, further = (trained(args, name, iterations + more) for more in (0, 1))
            step = torch.cat([(further[k] - here[k]).flatten() for k in here]).float()
            step = float(step[step != 0].square().mean().sqrt()) / args.rate
            yield (
                f"after {iterations} iterations, {name}; real step {step:.2f} of the rate",
                str(place(args, name, iterations) / "final"),
            )


def place(args: argparse.Namespace, name: str, iterations: int) -> Path:
    """Where a training is."""
    return args.output / f"{args.model}-{args.task}-{name}-{iterations}".lower()


def trained(args: argparse.Namespace, name: str, iterations: int) -> dict[str, Tensor]:
    """The parameters after so many iterations; not trained again where they are."""
    run = place(args, name, iterations)
    if not (run / "final").exists():
        es.train(from_dict({
            "model": args.model, "task": args.task, "method": TRAINED[name],
            "iterations": iterations, "output": str(run),
            "sampling": {"prompts": args.batch[0], "rollouts": args.batch[1]},
            "optim": {
                "aggregation": "token_mean", "epochs": 1, "minibatches": 1,
                "lr": args.rate, "warmup": args.warmup,
            },
            "eval": {"prompts": 0}, "save": {"rollouts_every": 0, "checkpoints": 0},
        }))  # fmt: skip
    return load_file(run / "final" / "model.safetensors")


def of_policy(args: argparse.Namespace, model: str, seed: int) -> dict[str, float]:
    """Both ways round: either batch's step beside the other's gradients; means of the two."""
    config = from_dict({
        "model": model, "task": args.task, "seed": 1000 + seed, "method": "rloo",
        "sampling": {"prompts": args.prompts, "rollouts": args.rollouts},
        "optim": {"epochs": 1, "minibatches": 1, "micro_batch": args.micro_batch},
    })  # fmt: skip
    state = build(config.validate(), None, lambda *said: None)
    one, two = (half_of(state, iteration, args.join) for iteration in (1, 2))
    lengths = [args.rate * share for share in SHARES]
    ways = [
        compared(*pair) | by_the_letter(*pair) | along(state, *pair, lengths)
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
    parser.add_argument("--prompts", type=int, default=256, help="of a gradient")
    parser.add_argument("--rollouts", type=int, default=16, help="of each of its prompts")
    parser.add_argument("--micro-batch", type=int, default=256)
    parser.add_argument("--join", type=int, nargs="*", default=[1, 4, 16, 64, 256])
    parser.add_argument("--seeds", type=int, default=4)
    args = parser.parse_args()
    for name, model in policies(args):
        found = [of_policy(args, model, seed) for seed in range(args.seeds)]
        print(f"{name} ({args.task}; mean and range over {args.seeds} seeds)")
        for key in found[0]:
            values = [each[key] for each in found]
            print(f"  {key:42s} {mean(values):+.4f}  ({min(values):+.4f} to {max(values):+.4f})")
        print(flush=True)


if __name__ == "__main__":
    main()
