"""Measuring the policy on prompts it is not trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...batch import masked_mean
from ...config import TrainConfig
from ...errors import RunStopped, in_one_line
from ...evaluate.metrics import avg_at_k, pass_at_k
from ...logs.lines import JsonLines
from ...tasks import Example, Task
from .policy import Policy
from .progress import Progress, figures
from .prompts import encode, example, new_tokens, settings, stop_strings
from .rollout import sample
from .scoring import score
from .seeds import generator

MOST = 32  # different right answers of a prompt that are kept
_LABEL, _QUESTION, _ANSWER = 24, 80, 80  # characters kept of each


def evaluate(
    policy: Policy, task: Task, config: TrainConfig, iteration: int, progress: Progress,
    answers: JsonLines | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Sample the evaluation prompts of every split but the first; one row of figures a split.

    avg@k and pass@k with k = `eval.samples`, distinct right answers a prompt, entropy (exact and
    sampled, nats a token). The prompts and the random stream are the same at every iteration.
    `answers` takes what the policy said: a line a prompt (`line_of`).
    """
    rows = []
    stop = stop_strings(task, config)
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
            **settings(policy, config, new, stop),
        )  # fmt: skip
        texts = policy.decode(sequences, stop)
        scores = score(task, texts, [e for e in examples for _ in range(k)], iteration)
        entropy = policy.measure(
            sequences, config.sampling.temperature, config.optim.micro_batch
        ).entropy
        right = [[float(s) for s in row] for row in scores.view(count, k)]
        counts = [
            count_right(task, texts[i * k : (i + 1) * k], row, iteration)
            for i, row in enumerate(right)
        ]
        hits = [found.total() for found in counts]
        rows.append(
            {
                "iteration": iteration,
                "split": split,
                "prompts": count,
                "k": k,
                "avg@k": avg_at_k(right),
                "pass@k": sum(pass_at_k(k, c, k) for c in hits) / count,
                "distinct": sum(map(len, counts)) / count,
                "entropy": float(masked_mean(entropy, sequences.mask)),
            }
        )
        if answers is not None:
            head = {"iteration": iteration, "split": split}
            answers.append(
                [
                    head | {"prompt": i} | line_of(example, found, k)
                    for i, (example, found) in enumerate(zip(examples, counts, strict=True))
                ]
            )
        if iteration < config.iterations:  # the last is shown against the first, when all is over
            progress.note(f"{split}: {figures(rows[-1])}")
    return rows


def count_right(
    task: Task, completions: Sequence[str], scores: Sequence[float], iteration: int
) -> Counter[str]:
    """How often each right answer was given; those with the same `task.canonical` are one.

    Raises:
        RunStopped: `canonical` raised, or gave something else than a text.
    """
    canonical = getattr(task, "canonical", None)
    counts: Counter[str] = Counter()
    for completion, score_ in zip(completions, scores, strict=True):
        if score_ < 1:
            continue
        form = completion
        if canonical is not None:
            where = f"iteration {iteration}, evaluation: {task.name}.canonical"
            try:
                form = canonical(completion)
            except Exception as error:
                raise RunStopped(
                    f"{where} raised {in_one_line(error)} on {completion[:60]!r}"
                ) from error
            if not isinstance(form, str):
                raise RunStopped(
                    f"{where} must give a text, not {form!r:.80}, on {completion[:60]!r}"
                )
        counts[form] += 1
    return counts


def line_of(example: Example, counts: Counter[str], k: int) -> dict[str, Any]:
    """What the policy said to one prompt, of k samples.

    `label` and `question` (the prompt's last line) for a figure; `right`, the right answers with
    their counts, the largest first; `more`, how many others there were; `wrong`, the samples that
    were not right. Long texts are cut; of those that a cut makes equal the largest is kept.
    """
    lines = [line.strip() for line in example.prompt.splitlines() if line.strip()]
    question = lines[-1] if lines else ""
    label = (example.data or {}).get("label")
    right: dict[str, int] = {}
    for answer, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST]:
        right.setdefault(_cut(answer, _ANSWER), count)
    return {
        "label": _cut(label if isinstance(label, str) else question, _LABEL),
        "question": _cut(question, _QUESTION),
        "k": k,
        "right": right,
        "more": len(counts) - len(right),
        "wrong": k - counts.total(),
    }


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
