"""What each method costs beside plain GRPO, and beside a training step of a 0.5B model. CPU.

For one minibatch of 16 rollouts x 2048 tokens (ragged: a tenth of the places is padding), float32:
`TokenBatch`, `prepare`, `loss` (which plans) and `backward` to the log-probs (and entropies, where
a method has a bonus), the whole of what an objective adds to an update. Rounds are interleaved,
every method once a round in shuffled order, so that a slow moment of the machine falls on all
alike; the table gives medians, minima and ratios to `grpo` of the same round.

The step of a 0.5B model is estimated from below: the forward pass of a Qwen2.5-0.5B built from its
published shape with random weights, without its head, measured here on `--sequences` sequences of
2048 tokens, times 3 for forward and backward, times 16 / sequences. (A real step adds the head, the
log-probs, the optimizer and the rollouts.)

Examples:
    python benchmarks/objective_cost.py
    python benchmarks/objective_cost.py --rounds 100 --threads 1 --skip-model
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import entrostat as es

B, T = 16, 2048
GROUP = 4
# what adds up in one objective costs more than its parts: reported, without a bound
CHAINS = {
    "dapo + repo_r + clip_cov": ["dapo", "repo_r", "clip_cov"],
    "grpo + steer + entropy_bonus": ["grpo", "steer", "entropy_bonus"],
}
SETTINGS = {
    "repo_d, token": {"name": "repo_d", "scope": "token"},
    "kl_cov, k3": {"name": "kl_cov", "penalty": "k3"},
    "steer, linear": {"name": "steer", "mapping": "linear"},
    "steer, binary": {"name": "steer", "mapping": "binary"},
}


def make_data(seed: int = 0) -> dict[str, Any]:
    """A minibatch's fields as a training step has them: 4 prompts x 4 rollouts of 0.8 T to T.

    With what single methods need: token rewards, influences, a rollout of another temperature.
    """
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(int(0.8 * T), T + 1, (B,), generator=g)
    mask = torch.arange(T) < lengths[:, None]
    # most tokens of a reasoning policy are nearly certain
    old = -torch.rand(B, T, generator=g).pow(6) * 6
    new = old + 0.05 * torch.randn(B, T, generator=g)
    entropy = (-old * torch.rand(B, T, generator=g) * 2).clamp(min=1e-4)
    return {
        "logp": new.requires_grad_(),
        "old_logp": old,
        "mask": mask,
        "rewards": torch.randint(0, 2, (B,), generator=g).float(),
        "group": torch.arange(B) // GROUP,
        "entropy": entropy.clone().requires_grad_(),
        "old_entropy": entropy,
        "ref_logp": old + 0.02 * torch.randn(B, T, generator=g),
        "process_rewards": old,
        "influence": 1e-3 * torch.randn(B, T, generator=g),
        "tempered": torch.arange(B) % GROUP == GROUP - 1,
    }


def step(objective: es.Objective, data: dict[str, Any], generator: torch.Generator) -> float:
    """Seconds from the fields to the gradient: `TokenBatch`, prepare, loss, backward."""
    data["logp"].grad = data["entropy"].grad = None
    began = time.perf_counter()
    prepared = objective.prepare(es.TokenBatch(**data))
    objective.loss(prepared, generator=generator).loss.backward()
    return time.perf_counter() - began


def forward_seconds(sequences: int) -> float:
    """Seconds of a 0.5B model's forward pass over `sequences` x T tokens, the faster of two."""
    from transformers import Qwen2Config, Qwen2Model

    config = Qwen2Config(
        vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
        num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen2Model(config).eval()
    print(f"model: {sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")
    tokens = torch.randint(0, config.vocab_size, (sequences, T))
    times = []
    with torch.no_grad():
        for _ in range(2):
            began = time.perf_counter()
            model(tokens, use_cache=False)
            times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sequences", type=int, default=1, help="of the 0.5B model's forward pass")
    parser.add_argument("--skip-model", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    specs = {name: name for name in es.methods()} | SETTINGS | CHAINS
    objectives = {name: es.make_objective(spec) for name, spec in specs.items()}
    for objective in objectives.values():
        objective.observe(entropy=0.3, nll=0.3, progress=0.75)
        objective.observe(entropy=0.1, nll=0.1, progress=0.75)
    data, generator = make_data(), torch.Generator().manual_seed(0)
    for objective in objectives.values():  # warm up
        for _ in range(3):
            step(objective, data, generator)
    times: dict[str, list[float]] = {name: [] for name in specs}
    order = list(specs)
    for _ in range(args.rounds):
        random.shuffle(order)
        for name in order:
            times[name].append(step(objectives[name], data, generator))

    print(
        f"{B} x {T} tokens, {args.threads} threads, {args.rounds} rounds, torch {torch.__version__}"
    )
    print(f"{'':32}{'median ms':>10}{'min ms':>9}{'ratio':>8}{'of minima':>11}")
    result = {}
    for name in sorted(times, key=lambda name: statistics.median(times[name])):
        pairs = zip(times[name], times["grpo"], strict=True)
        ratio = statistics.median(mine / grpo for mine, grpo in pairs)
        minima = min(times[name]) / min(times["grpo"])
        middle, least = 1e3 * statistics.median(times[name]), 1e3 * min(times[name])
        print(f"{name:32}{middle:10.2f}{least:9.2f}{ratio:8.2f}{minima:11.2f}")
        result[name] = {"median_ms": middle, "min_ms": least, "ratio": ratio, "of_minima": minima}
    if not args.skip_model:
        forward = forward_seconds(args.sequences)
        whole = 3 * forward * B / args.sequences
        worst = max(result, key=lambda name: result[name]["median_ms"])
        share = result[worst]["median_ms"] / 1e3 / whole
        print(
            f"0.5B forward pass of {args.sequences} x {T}: {forward:.2f} s; a step of {B}: at "
            f"least {whole:.0f} s. The dearest, {worst}: {100 * share:.4f}% of it"
        )
        result["step_seconds"] = whole
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
