"""Measuring the policy on prompts it is not trained on."""

from __future__ import annotations

from typing import Any

from ...batch import masked_mean
from ...config import TrainConfig
from ...evaluate.metrics import avg_at_k, distinct_correct, pass_at_k
from ...tasks import Task
from .policy import Policy
from .progress import Progress, figures
from .prompts import encode, example, new_tokens, settings
from .rollout import sample
from .scoring import score
from .seeds import generator


def evaluate(
    policy: Policy, task: Task, config: TrainConfig, iteration: int, progress: Progress
) -> list[dict[str, Any]]:
    """Sample the evaluation prompts of every split but the first; one row of figures a split.

    avg@k and pass@k with k = `eval.samples`, distinct right answers a prompt, entropy (exact and
    sampled, nats a token). The prompts and the random stream are the same at every iteration.
    """
    rows = []
    for split in task.splits[1:] if config.eval.prompts else ():
        size = task.size(split)
        count = min(config.eval.prompts, size) if size is not None else config.eval.prompts
        progress.note(f"evaluating {split}: {count} prompts x {config.eval.samples}")
        examples = [example(task, i, split) for i in range(count)]
        k = config.eval.samples
        new = new_tokens(task, config, split)
        prompts = encode(policy, config, examples, new)
        sequences = sample(
            policy.model, prompts, rollouts=k,
            generator=generator(config.seed, 0, "evaluate", policy.device),
            **settings(policy, config, new),
        )  # fmt: skip
        texts = policy.decode(sequences)
        scores = score(task, texts, [e for e in examples for _ in range(k)], iteration)
        entropy = policy.measure(
            sequences, config.sampling.temperature, config.optim.micro_batch
        ).entropy
        right = [[float(s) for s in row] for row in scores.view(count, k)]
        hits = [sum(s >= 1 for s in row) for row in right]
        rows.append(
            {
                "iteration": iteration,
                "split": split,
                "prompts": count,
                "k": k,
                "avg@k": avg_at_k(right),
                "pass@k": sum(pass_at_k(k, c, k) for c in hits) / count,
                "distinct": sum(
                    distinct_correct(texts[i * k : (i + 1) * k], right[i]) for i in range(count)
                )
                / count,
                "entropy": float(masked_mean(entropy, sequences.mask)),
            }
        )
        if iteration < config.iterations:  # the last is shown against the first, when all is over
            progress.note(f"{split}: {figures(rows[-1])}")
    return rows
