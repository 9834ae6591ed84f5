"""Evaluation of the policy during training, on held-out prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._text import cut
from ..config import TrainConfig
from ..core.batch import masked_mean
from ..data.generation import answer
from ..data.prompts import encode, example, new_tokens
from ..data.seeds import generator
from ..logs.lines import JsonLines, finite
from ..models.policy import Policy
from ..models.rollout import Sequences
from ..runs.progress import Progress, figures
from ..tasks import Example, Task
from .canonical import canonical
from .eval_sets import ResolvedEvalSet
from .metrics import avg_at_k, pass_at_k

MOST = 32  # most distinct right answers kept per prompt
_LABEL, _QUESTION, _ANSWER = 24, 80, 80  # characters kept of each


def evaluate(
    policy: Policy, sets: Iterable[ResolvedEvalSet], iteration: int, progress: Progress,
    answers: JsonLines | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Sample the prompts of some sets; returns one row of metrics per set.

    A row has avg@k and pass@k with k = `eval.samples`, distinct right answers per prompt, `entropy`
    of the responses (exact, mean over tokens, nats) and `prompt_entropy` (mean of
    `prompt_entropies`). Prompts and random stream are the same at every iteration. `answers`
    receives one line per prompt (`line_of`).
    """
    rows = []
    for one in sets:
        task, split, config, score, count = one.task, one.split, one.config, one.score, one.count
        progress.note(f"evaluating {one.name}: {count} prompts x {config.eval.samples}")
        examples = [example(task, i, split) for i in range(count)]
        k = config.eval.samples
        prompts = encode(policy, config, examples, new_tokens(task, config, split))
        source = None if one.greedy else generator(config.seed, 0, "evaluate", policy.device)
        said = answer(
            policy, config, task, split, examples, prompts, rollouts=k, training=False,
            generator=source,
        )  # fmt: skip
        sequences = said.sequences
        right = said.scored(score, examples, iteration).view(count, k).tolist()
        entropy = policy.measure(
            sequences, one.run.sampling.temperature, config.optim.micro_batch
        ).entropy
        of_prompts = finite(prompt_entropies(policy, prompts, one.run).tolist())
        known = [h for h in of_prompts if h is not None]
        texts = [said.texts[i * k : (i + 1) * k] for i in range(count)]
        row, lines = summarized(one, iteration, dict(enumerate(examples)), texts, right)
        row["entropy"] = float(masked_mean(entropy, sequences.mask))
        row["prompt_entropy"] = sum(known) / len(known) if known else None
        rows.append(row | ({"failed": score.failed} if score.failed else {}))
        if answers is not None:
            each = zip(lines, of_prompts, strict=True)
            answers.append([line | {"prompt_entropy": h} for line, h in each])
        if iteration < config.iterations:  # the last is shown at the end, against the first
            progress.note(f"{one.name}: {figures(rows[-1])}")
    return rows


def summarized(
    one: ResolvedEvalSet, iteration: int, examples: Mapping[int, Example],
    texts: Sequence[Sequence[str]], scores: Sequence[Sequence[float]],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:  # fmt: skip
    """A set's row of metrics and one line per prompt, from k texts and k scores per prompt.

    `examples` maps a prompt's index in the set to the prompt.
    """
    k, prompts = one.config.eval.samples, len(examples)
    head = {"iteration": iteration, "set": one.name, "split": one.split}
    each = zip(texts, scores, strict=True)
    counts = [count_right(one.task, said, found, iteration) for said, found in each]
    row = head | {
        "prompts": prompts,
        "k": k,
        "avg@k": avg_at_k(scores),
        "pass@k": sum(pass_at_k(k, found.total(), k) for found in counts) / prompts,
        "distinct": sum(map(len, counts)) / prompts,
    }
    asked = zip(examples.items(), counts, strict=True)
    lines = [head | {"prompt": i} | line_of(example, found, k) for (i, example), found in asked]
    return row, lines


def prompt_entropies(policy: Policy, prompts: list[list[int]], config: TrainConfig) -> Tensor:
    """Entropy of the policy on its prompts (PAR App. C.2 and C.3), one number per prompt.

    It is the mean of the exact next-token entropy over the positions that predict the prompt's own
    tokens, all but the first, at the sampling temperature. Tokens of a chat template belong to the
    prompt. PAR does not specify its mean; its C.3 compares one number per prompt with accuracy.

    Returns:
        [len(prompts)] float32, nats; nan for a prompt of one token.
    """
    # pass the first token as the prompt and the rest as the completion
    as_completions = Sequences.ragged(
        [ids[:1] for ids in prompts], [ids[1:] for ids in prompts], range(len(prompts)),
        policy.pad, policy.device,
    )  # fmt: skip
    mask = as_completions.mask
    if not mask.any():
        return torch.full((len(prompts),), torch.nan, device=policy.device)
    entropy = policy.measure(
        as_completions, config.sampling.temperature, config.optim.micro_batch
    ).entropy
    return torch.where(mask, entropy, 0).sum(-1) / mask.sum(-1)


def count_right(
    task: Task, completions: Sequence[str], scores: Sequence[float], iteration: int
) -> Counter[str]:
    """Count of each distinct right answer, by `task.canonical`."""
    where = f"iteration {iteration}, evaluation: "
    return Counter(
        canonical(task, completion, where)
        for completion, score in zip(completions, scores, strict=True)
        if score >= 1
    )


def line_of(example: Example, counts: Counter[str], k: int) -> dict[str, Any]:
    """Summary of the k samples of one prompt.

    `label` and `question` (the prompt's last line) are for figures. `right` has the most frequent
    right answers with their counts, `more` the number of further ones, `wrong` the number of wrong
    samples. Long texts are cut; of answers equal after the cut, the most frequent is kept.
    """
    lines = [line.strip() for line in example.prompt.splitlines() if line.strip()]
    question = lines[-1] if lines else ""
    label = (example.data or {}).get("label")
    right: dict[str, int] = {}
    for text, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST]:
        right.setdefault(cut(text, _ANSWER), count)
    return {
        "label": cut(label if isinstance(label, str) else question, _LABEL),
        "question": cut(question, _QUESTION),
        "k": k,
        "right": right,
        "more": len(counts) - len(right),
        "wrong": k - counts.total(),
    }
